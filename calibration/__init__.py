"""Which data shapes the scales, and what scales come out: sources, roles, export, ranges, Q/DQ schemes."""
