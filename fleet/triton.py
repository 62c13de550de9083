"""A Triton server that the controller drives through its gRPC model-control API: load, unload, ready. Needs `grpcio` (extra `triton`).

Messages are the few fields of the GRPCInferenceService protocol that these calls need, written by hand: string fields of protocol buffers
(developers.google.com/protocol-buffers/docs/encoding). The server must run with `--model-control-mode=explicit`.
"""

from __future__ import annotations

import queue
import threading
from contextlib import AbstractContextManager, nullcontext

from fleet.drivers import Event
from fleet.models import Action, Kind, ModelSpec
from pipeline.errors import TargetError

SERVICE = "/inference.GRPCInferenceService/"
LOAD_TIMEOUT_S, CALL_TIMEOUT_S = 600.0, 5.0
CHECK_EVERY_S = 2.0


def field(number: int, text: str) -> bytes:
    """A length-delimited field."""
    content = text.encode()
    return bytes([number << 3 | 2]) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    made = bytearray()
    while value > 127:
        made.append(value & 127 | 128)
        value >>= 7
    return bytes([*made, value])


class Triton:
    """`address`: gRPC `host:port`; `url`: where the same server answers HTTP."""

    def __init__(self, address: str, url: str) -> None:
        try:
            import grpc  # the extra `triton`
        except ImportError as error:
            raise TargetError(
                "Triton is driven over gRPC", where=address, expected="the package grpcio", got=str(error), next="pip install grpcio"
            ) from error
        self._grpc, self.url = grpc, url
        self._channel = grpc.insecure_channel(address)
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._warm: set[str] = set()
        self._checked = 0.0

    def _call(self, method: str, request: bytes, seconds: float) -> bytes:
        stub = self._channel.unary_unary(SERVICE + method, request_serializer=bytes, response_deserializer=bytes)
        return bytes(stub(request, timeout=seconds))

    def ready(self, name: str) -> bool:
        """Whether the server says that the model is ready; raises grpc.RpcError when it does not answer."""
        return b"\x08\x01" in self._call("ModelReady", field(1, name), CALL_TIMEOUT_S)

    def begin(self, action: Action, spec: ModelSpec, now: float) -> None:  # noqa: ARG002
        """Call in a thread of its own: a load answers when it has ended."""
        if action.kind is not Kind.HURRY:
            threading.Thread(target=self._work, args=(action.kind, spec.name), name=f"triton {spec.name}", daemon=True).start()

    def _work(self, kind: Kind, name: str) -> None:
        loading = kind is Kind.LOAD
        try:
            self._call("RepositoryModelLoad" if loading else "RepositoryModelUnload", field(2, name), LOAD_TIMEOUT_S)
        except self._grpc.RpcError as error:
            reason = f"{error.code().name}: {error.details()}"
            self._warm.discard(name)
            unreachable = error.code() is self._grpc.StatusCode.UNAVAILABLE
            self._events.put(Event(name, "unloaded" if not loading else "unreachable" if unreachable else "failed", reason))
            return
        (self._warm.add if loading else self._warm.discard)(name)
        self._events.put(Event(name, "loaded" if loading else "unloaded"))

    def poll(self, now: float) -> list[Event]:
        """Calls that ended; every two seconds also whether warm models still are (a server that restarted has none)."""
        events = []
        while not self._events.empty():
            events.append(self._events.get())
        if now - self._checked > CHECK_EVERY_S and self._warm:
            self._checked = now
            threading.Thread(target=self._check, args=(sorted(self._warm),), name="triton check", daemon=True).start()
        return events

    def _check(self, names: list[str]) -> None:
        for name in names:
            try:
                lost, reason = not self.ready(name), "the server no longer has it"
            except self._grpc.RpcError as error:
                lost, reason = True, f"the server does not answer: {error.code().name}"
            if lost and name in self._warm:
                self._warm.discard(name)
                self._events.put(Event(name, "lost", reason))

    def address(self, name: str) -> str | None:
        """The server's, for a model that it has."""
        return self.url if name in self._warm else None

    def answering(self) -> AbstractContextManager[None]:
        """The server orders its own loads."""
        return nullcontext()

    def found(self) -> list[str]:
        """Not asked: models of an earlier controller are loaded again, which Triton answers at once for one that it has."""
        return []

    def close(self, unload: bool) -> None:
        """Hang up; the models stay, or are unloaded first."""
        for name in sorted(self._warm) if unload else ():
            self._work(Kind.UNLOAD, name)
        self._channel.close()
