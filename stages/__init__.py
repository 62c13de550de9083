"""Which step runs when: one thin file a DVC stage, each with `run`."""
