"""A real server that runs out of memory while it loads: those who wait are told, its neighbour answers, and the controller does not die of it."""

from __future__ import annotations

import http.client
import json
import sys
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import tiny
from serving import ZEROS, body

from fleet.control import Control
from fleet.controller import Controller
from fleet.logs import Log
from fleet.models import ModelSpec
from fleet.processes import ServeProcesses
from pipeline.errors import TrialError

LIMIT_MB = 300
"""Address space: enough for Python and its server's threads, too little for the runtime."""
LIMITED = (
    f"import resource, runpy, sys; 'greedy' in sys.argv[2] and resource.setrlimit(resource.RLIMIT_AS, ({LIMIT_MB} << 20,) * 2);"
    "runpy.run_module('fleet.main', run_name='__main__')"
)


def test_the_load_fails_with_its_reason_and_nothing_else_does(parts: dict[str, Any], tmp_path: Path) -> None:
    specs = [ModelSpec(name, load_s=1.0, bundle=str(tiny.pack(parts, tmp_path / name, name=name))) for name in ("greedy", "modest")]
    with open(tmp_path / "log", "w") as stream:
        driver = ServeProcesses(tmp_path / "servers", allow_unsigned=True, program=[sys.executable, "-c", LIMITED])
        log = Log(stream=stream)
        control = Control(Controller(specs, log=log.info), driver, log=log)
        try:
            with control.using("modest", 60.0) as warm:
                with pytest.raises(TrialError), control.using("greedy", 60.0) as never:
                    never()
                url = urlsplit(warm())
                connection = http.client.HTTPConnection(str(url.hostname), url.port, timeout=30)
                connection.request("POST", "/v2/models/modest/infer", json.dumps(body(ZEROS)))
                assert connection.getresponse().status == 200
            models = control.status()["models"]
            assert models["modest"]["load_failures"] == 0
        finally:
            control.close(unload=True)
    failures = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines() if '"load_failed"' in line]
    assert failures
    assert all("exit code" in failure["reason"] for failure in failures)
