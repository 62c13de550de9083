"""An open TensorRT or TensorRT-RTX plan: contexts, streams, pinned host memory, CUDA graphs. Nothing here has ever run on hardware."""

from __future__ import annotations

import dataclasses
import os
from typing import TYPE_CHECKING, Any

from engines.caches import Key, Store
from engines.contract import Session
from engines.trt_caches import RUNTIME_FILE
from pipeline.errors import TargetError
from pipeline.records import Engine
from pipeline.tensors import Batch

if TYPE_CHECKING:
    import numpy as np

MOST_GRAPHS = 16
"""Shapes that a slot keeps a CUDA graph of; others run eagerly."""


@dataclasses.dataclass
class _Buffers:
    """Of one shape: pinned on the host and on the device, by tensor. `graph` is captured after one eager run."""

    host: dict[str, Any]
    device: dict[str, Any]
    runs: int = 0
    graph: Any = None


@dataclasses.dataclass
class _Slot:
    context: Any
    stream: Any
    shapes: dict[tuple[tuple[int, ...], ...], _Buffers] = dataclasses.field(default_factory=dict)


class TensorRTSession(Session):
    """Each slot is an execution context with a stream of its own; device and pinned memory come from torch.

    `graphs`: capture a CUDA graph for each shape after its first, eager run. `kept`: where TensorRT-RTX's runtime cache lies in the store; it
    is read now, and what grew is kept at `close`.
    """

    def __init__(self, library: Any, engine: Engine, cuda_engine: Any, concurrency: int, *, graphs: bool, kept: tuple[Store, Key] | None) -> None:
        import torch

        self._torch, self._cuda_engine, self._graphs, self._kept = torch, cuda_engine, graphs, kept
        self._runtime_cache: Any = None
        self._seed = b""
        runtime_config = self._runtime_config(library) if kept is not None else None
        contexts = [
            cuda_engine.create_execution_context() if runtime_config is None else cuda_engine.create_execution_context(runtime_config)
            for _ in range(concurrency)
        ]
        if any(context is None for context in contexts):
            got = f"no room beside {cuda_engine.device_memory_size_v2} bytes each"
            raise TargetError("The runtime makes no execution context", where=engine.target, expected=f"{concurrency} contexts", got=got)
        super().__init__(engine, [_Slot(context, torch.cuda.Stream()) for context in contexts])

    def _runtime_config(self, library: Any) -> Any:
        """Every shape's kernels are made before they are asked for, and those of an earlier process are taken from the store."""
        runtime_config = self._cuda_engine.create_runtime_config()
        runtime_config.dynamic_shapes_kernel_specialization_strategy = library.DynamicShapesKernelSpecializationStrategy.EAGER
        runtime_cache = runtime_config.create_runtime_cache()
        if self._kept is not None:
            store, key = self._kept
            self._seed = store.read(key, RUNTIME_FILE)[1] or b""
            if self._seed and not runtime_cache.deserialize(self._seed):
                runtime_cache.reset()
        runtime_config.set_runtime_cache(runtime_cache)
        self._runtime_cache = runtime_cache
        return runtime_config

    @property
    def settings(self) -> dict[str, str]:
        return {
            "CUDA_MODULE_LOADING": os.environ.get("CUDA_MODULE_LOADING", "LAZY, the default"),
            "cuda_graphs": str(self._graphs).lower(),
            "device_memory_bytes": str(self._cuda_engine.device_memory_size_v2),
            "runtime_cache_seed_bytes": str(len(self._seed)),
        }

    def _infer(self, slot: Any, inputs: Batch) -> dict[str, np.ndarray]:
        torch = self._torch
        buffers = self._buffers(slot, inputs)
        for name, array in inputs.items():
            buffers.host[name].numpy()[...] = array
        with torch.cuda.stream(slot.stream):
            for name in inputs:
                buffers.device[name].copy_(buffers.host[name], non_blocking=True)
            if buffers.graph is not None:
                buffers.graph.replay()
            else:
                self._enqueue(slot)
            for spec in self.engine.outputs:
                buffers.host[spec.name].copy_(buffers.device[spec.name], non_blocking=True)
        slot.stream.synchronize()
        buffers.runs += 1
        if self._graphs and buffers.runs == 1 and sum(each.graph is not None for each in slot.shapes.values()) < MOST_GRAPHS:
            buffers.graph = self._captured(slot)
        return {spec.name: buffers.host[spec.name].numpy().copy() for spec in self.engine.outputs}

    def _buffers(self, slot: Any, inputs: Batch) -> _Buffers:
        """The buffers of this shape, made at its first run; the context's shapes and addresses are set to them."""
        torch, context = self._torch, slot.context
        shape = tuple(inputs[spec.name].shape for spec in self.engine.inputs)
        for spec in self.engine.inputs:
            context.set_input_shape(spec.name, inputs[spec.name].shape)
        if (missing := context.infer_shapes()) != []:
            raise TargetError("The plan does not take these shapes", where=self.engine.target, expected="shapes of its profile", got=str(missing))
        if shape not in slot.shapes:
            sizes = {spec.name: tuple(inputs[spec.name].shape) for spec in self.engine.inputs}
            sizes |= {spec.name: tuple(context.get_tensor_shape(spec.name)) for spec in self.engine.outputs}
            types = {spec.name: getattr(torch, spec.dtype) for spec in (*self.engine.inputs, *self.engine.outputs)}
            host = {name: torch.empty(size, dtype=types[name], pin_memory=True) for name, size in sizes.items()}
            slot.shapes[shape] = _Buffers(host, {name: torch.empty(size, dtype=types[name], device="cuda") for name, size in sizes.items()})
        buffers = slot.shapes[shape]
        for name, tensor in buffers.device.items():
            context.set_tensor_address(name, tensor.data_ptr())
        return buffers

    def _enqueue(self, slot: Any) -> None:
        if not slot.context.execute_async_v3(slot.stream.cuda_stream):
            raise TargetError("The runtime did not run the plan", where=self.engine.target, expected="execute_async_v3 to accept the inputs")

    def _captured(self, slot: Any) -> Any:
        graph = self._torch.cuda.CUDAGraph()
        with self._torch.cuda.graph(graph, stream=slot.stream):
            self._enqueue(slot)
        return graph

    def _release(self) -> None:
        if self._kept is not None and self._runtime_cache is not None:
            store, key = self._kept
            content = bytes(self._runtime_cache.serialize())
            if content != self._seed:
                with store.locked(key) as refusal:
                    if refusal is None:
                        store.keep(key, {RUNTIME_FILE: content})
        self._cuda_engine = self._runtime_cache = None
