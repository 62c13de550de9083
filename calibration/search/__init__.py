"""Which layers stay in float, and which range method is taken, so that the model is near enough to float at the least latency."""
