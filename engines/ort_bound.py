"""An ONNX Runtime session on a GPU: plain, or with buffers that a shape's CUDA graph is bound to. On a GPU it has never run."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from engines.contract import Session
from pipeline.errors import ConfigError, TargetError
from pipeline.records import Engine
from pipeline.tensors import Batch

if TYPE_CHECKING:
    import numpy as np


@dataclasses.dataclass
class _Bound:
    """One shape's buffers on the device, bound once. `graph_id` is the runtime's name of its CUDA graph."""

    binding: Any
    inputs: dict[str, Any]
    outputs: dict[str, Any]
    graph_id: int


class BoundSession(Session):
    """All slots are the one session. With `graphs` there is one slot, and each shape has bound buffers after its first, eager run.

    `device`: where buffers lie; "cpu" in tests, which have no other.
    """

    def __init__(self, runtime: Any, engine: Engine, session: Any, concurrency: int, *, graphs: bool, device: str = "cuda") -> None:
        if graphs and concurrency > 1:
            raise ConfigError(
                "CUDA graphs of ONNX Runtime serve one caller", where=engine.target, expected="concurrency 1", got=str(concurrency),
                next="set warmup.concurrency to [1], or leave out cuda_graphs",
            )  # fmt: skip
        super().__init__(engine, [session] * concurrency)
        self._runtime, self._session, self._graphs, self._device = runtime, session, graphs, device
        self._names = [spec.name for spec in engine.outputs]
        self._bound: dict[tuple[tuple[int, ...], ...], _Bound] = {}
        wanted = engine.recipe["settings"].get("provider")
        if wanted not in session.get_providers():
            raise TargetError("ONNX Runtime took another provider", where=engine.target, expected=str(wanted), got=str(session.get_providers()))

    @property
    def settings(self) -> dict[str, str]:
        wanted = self.engine.recipe["settings"]["provider"]
        options = {name: str(value) for name, value in self._session.get_provider_options().get(wanted, {}).items()}
        return {"providers": ", ".join(self._session.get_providers()), **options}

    def _infer(self, slot: Any, inputs: Batch) -> dict[str, np.ndarray]:
        shape = tuple(inputs[spec.name].shape for spec in self.engine.inputs)
        if not self._graphs:
            return dict(zip(self._names, slot.run(self._names, dict(inputs)), strict=True))
        if shape not in self._bound:
            eager = self._options(-1)
            results = dict(zip(self._names, slot.run(self._names, dict(inputs), eager), strict=True))
            self._bound[shape] = self._bind(slot, inputs, results)
            return results
        bound = self._bound[shape]
        for name, array in inputs.items():
            bound.inputs[name].update_inplace(array)
        slot.run_with_iobinding(bound.binding, self._options(bound.graph_id))
        return {name: value.numpy().copy() for name, value in bound.outputs.items()}

    def _options(self, graph_id: int) -> Any:
        options = self._runtime.RunOptions()
        options.add_run_config_entry("gpu_graph_id", str(graph_id))
        return options

    def _bind(self, slot: Any, inputs: Batch, results: Mapping[str, np.ndarray]) -> _Bound:
        import numpy as np

        place = self._runtime.OrtValue.ortvalue_from_numpy
        given = {name: place(np.ascontiguousarray(array), self._device, 0) for name, array in inputs.items()}
        taken = {name: place(array, self._device, 0) for name, array in results.items()}
        binding = slot.io_binding()
        for name, value in given.items():
            binding.bind_ortvalue_input(name, value)
        for name, value in taken.items():
            binding.bind_ortvalue_output(name, value)
        return _Bound(binding, given, taken, len(self._bound) + 1)

    def _release(self) -> None:
        self._bound.clear()
        self._session = None
