"""`serve`: one process that is live at once, ready when it is warm, and ends without losing a request."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from fleet import host
from fleet.logs import Log
from fleet.server import Server
from fleet.verify import verify
from pipeline.errors import QwarmError

SIGNALS = (signal.SIGTERM, signal.SIGINT)


@contextlib.contextmanager
def on_stop_signal(act: Callable[[], None]) -> Iterator[None]:
    """Call `act`, in a thread of its own, at each SIGTERM or SIGINT. Must be entered in the main thread.

    Python runs its own handlers in the main thread only, and only once that wakes: with the signal delivered to another
    thread a main thread that waits for the warm-up or for the end does not (seen in 1 of 5 ends under load).
    """
    reader, writer = socket.socketpair()
    writer.setblocking(False)

    def watch() -> None:
        while reader.recv(1):
            act()

    watcher = threading.Thread(target=watch, name="signals", daemon=True)
    watcher.start()
    handlers = {number: signal.signal(number, lambda *_: None) for number in SIGNALS}
    wakeup = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
    try:
        yield
    finally:
        signal.set_wakeup_fd(wakeup)
        for number, handler in handlers.items():
            signal.signal(number, handler)
        writer.close()
        watcher.join(1.0)
        reader.close()


def serve(
    bundle: str | os.PathLike[str],
    *,
    address: tuple[str, int],
    state: Path,
    target: str | None = None,
    concurrency: int | None = None,
    key: str | os.PathLike[str] | None = None,
    allow_unsigned: bool = False,
    queue: int = 64,
    connections: int = 256,
    drain_seconds: float = 30.0,
    log: Log | None = None,
    ready: Callable[[host.Served, str], None],
) -> None:
    """Answer until SIGTERM or SIGINT; must be called in the main thread.

    The server listens before the bundle is verified, so that `live` tells loading from dead. `ready(served, url)` is called
    once, when the state in folder `state` says so. `queue`: requests that may wait beyond those the engine runs at once.
    `connections`: open ones that are served; see `Server`.
    A signal that comes before the engine is warm ends the process at once with exit code 0.

    Raises what `fleet.open` raises, ConfigError when it cannot listen, QwarmError when requests outlast `drain_seconds`.
    """
    log = log or Log()
    stopping, loading = threading.Event(), True

    def stop() -> None:
        if loading:  # no request was taken and no state written; unwinding would wait for the warm-up's threads
            log.info("stopped", reason="before the engine was warm")
            os._exit(0)
        stopping.set()

    server: Server | None = None
    served: host.Served | None = None
    with on_stop_signal(stop):
        try:
            server = Server(*address, places=queue, connections=connections, log=log)
            server.start()
            log.info("live", address=server.address, bundle=str(bundle), next="verify, load, warm")
            start = time.perf_counter()
            verified = verify(bundle, key, allow_unsigned=allow_unsigned)
            server.manifest = verified.manifest
            served = host.load(verified, target=target, concurrency=concurrency, verify_ms=(time.perf_counter() - start) * 1000.0)
            loading = False
            for name, reason in served.fell_back.items():
                log.warning("fell back", target=name, taken=served.target, reason=reason)
            for step in served.warmed.retried:
                log.warning("retried", target=served.target, step=step)
            server.serve_warm(served)
            served.announce(state, server.address)
            log.info("ready", address=server.address, target=served.target, origin=verified.origin, timings_ms=served.timings_ms)
            ready(served, server.address)
            stopping.wait()
            served.withdraw()
            log.info("draining", seconds=drain_seconds)
            if not server.drain(drain_seconds):
                raise QwarmError("Requests were still running when the time to drain was over", where=server.address, expected=f"{drain_seconds:g} s")
            log.info("drained")
        finally:
            loading = False
            if server is not None and not server.draining:
                server.drain(0)
            if served is not None:
                served.withdraw()
                if server is not None and server.idle:
                    served.close()
