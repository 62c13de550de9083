"""What every measured child process does: time a call, and print one record as JSON, or one error."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable

from pipeline.errors import QwarmError
from pipeline.strict import Record


def answer(make: Callable[[], Record]) -> int:
    """Print what `make` gives on standard output, or its error on standard error; the exit code."""
    try:
        record = make()
    except QwarmError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    print(json.dumps(record.to_json()), flush=True)
    return 0


def milliseconds(call: Callable[..., object], *arguments: object) -> float:
    """How long one call takes."""
    begun = time.perf_counter_ns()
    call(*arguments)
    return (time.perf_counter_ns() - begun) / 1e6
