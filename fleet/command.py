"""`control`: the controller in front of real servers, or beside them in shadow, until SIGTERM."""

from __future__ import annotations

import argparse
import dataclasses
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fleet.announced import announce
from fleet.control import Control
from fleet.controller import Controller
from fleet.drivers import Driver, Shadow
from fleet.forecast_process import ForecastProcess
from fleet.gateway import Gateway
from fleet.logs import Log
from fleet.processes import ServeProcesses
from fleet.serve import on_stop_signal
from fleet.settings import read_settings
from fleet.watch import Watch
from pipeline.errors import ConfigError, QwarmError

ANNOUNCE_S = 2.0
DRAIN_S = 30.0


def control(arguments: argparse.Namespace, state: Path, log: Log, show: Callable[[dict[str, Any], str], None]) -> int:
    """See `qwarm control --help`. Raises ConfigError before anything is started."""
    settings = read_settings(arguments.settings)
    lacking = [spec.name for spec in settings.models if not (spec.bundle or arguments.triton)]
    if arguments.act and lacking:
        raise ConfigError("A model has no bundle to serve", where=", ".join(lacking), expected="bundle in FLEET.json, or --triton", got="none")
    watched = {spec.name: spec.address for spec in settings.models if spec.address}
    if not arguments.act and not watched:
        raise ConfigError(
            "There is nothing to watch",
            where=str(arguments.settings),
            expected="an address for at least one model (shadow), or --act",
            got="no address",
            next='give the models "address": "http://HOST:PORT" of the servers that they have, or add --act',
        )
    state.mkdir(parents=True, exist_ok=True)
    driver: Driver = Shadow()
    if arguments.act and arguments.triton:
        from fleet.triton import Triton

        driver = Triton(arguments.triton, arguments.triton_http)
    elif arguments.act:
        driver = ServeProcesses(state / "servers", key=arguments.key, allow_unsigned=arguments.allow_unsigned)
    # neither server gives back contexts alone
    models = [dataclasses.replace(spec, weights_mb=spec.size_mb, contexts_mb=0.0) for spec in settings.models]
    forecasts = ForecastProcess(settings.forecast_options(), log.warning)
    controller = Controller(models, price_s=settings.price_s, cap_mb=settings.cap_mb, forecasts=forecasts, log=log.info)
    running = Control(controller, driver, state=state, log=log)
    gateway = Gateway(arguments.host, arguments.port, running, log=log)
    watch = None if arguments.act else Watch(running, watched, log)
    stopping = threading.Event()
    with on_stop_signal(stopping.set):
        gateway.start()
        log.info("controlling", address=gateway.address, shadow=not arguments.act, models=sorted(controller.models))
        show({"address": gateway.address, "shadow": not arguments.act}, f"{'acting' if arguments.act else 'watching (shadow)'} at {gateway.address}")
        while True:
            try:
                announce(state, gateway.address, not arguments.act, running.status())
            except QwarmError as error:
                log.error("not_announced", **error.as_json())
            if stopping.wait(ANNOUNCE_S):
                break
        if watch is not None:
            watch.close()
        drained = gateway.drain(DRAIN_S)
        running.close(unload=arguments.unload)
        log.info("stopped", drained=drained)
    return 0 if drained else 1
