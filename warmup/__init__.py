"""What makes an engine hot, and how that is proven: plans, the runner, trials in fresh processes, statistics."""
