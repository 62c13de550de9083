"""May it ship, and as what? Drift, gates, bundle, report."""
