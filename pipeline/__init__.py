"""What flows between stages: records, configuration, digests, platform fingerprint, verdicts."""
