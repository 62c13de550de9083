"""A host's process of benchmarks/warmup.py: everything until its server may say "ready".

    python -P benchmarks/opened.py BUNDLE PUBLIC_KEY STATE_FOLDER STARTED

Prints `{"ready_ms": ...}` since STARTED (CLOCK_MONOTONIC, ns): signature and every byte verified, engine loaded, plan run, state announced.
"""

import json
import sys
import time

import fleet


def main(bundle: str, key: str, state: str, started: str) -> None:
    with fleet.open(bundle, key=key, state=state):
        print(json.dumps({"ready_ms": (time.monotonic_ns() - int(started)) / 1e6}))


if __name__ == "__main__":
    main(*sys.argv[1:])
