"""Which precision a plan executes in, from TensorRT's engine inspector. Written from its documentation; no GPU has been asked yet.

Versions 10 and 11 name the same facts otherwise: `Bindings` became `I/O Tensors`, and `Format/Datatype` two keys. A plan says them only when it was
built with detailed verbosity.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from engines.census import INT8, RuntimeLayer
from pipeline.errors import TargetError

DATATYPE = re.compile(r"\b(int8|fp32|float32|float|fp16|half|bf16|bfloat16|fp8|int4|int32|int64|bool)\b", re.IGNORECASE)
NAMES = {"int8": INT8, "float32": "FP32", "float": "FP32", "half": "FP16", "bfloat16": "BF16"}
ORIGIN = re.compile(r"\[ONNX Layer: ([^\]]+)\]")
MULTIPLYING = ("conv", "gemm", "matmul", "matrix_multiply", "fully", "mha", "attention", "myelin", "kgen", "foreignnode", "cask")
OVERHEAD = ("reformat", "quantize", "shuffle", "copy")


def layers(text: str) -> list[RuntimeLayer]:
    """The inspector's layers that may multiply, by the names of the ONNX nodes that each was made from.

    A layer is INT8 when its first input is, and its weights where it tells them; a layer that tells no type is UNKNOWN, which is not INT8.
    Raises TargetError for a text that is not the inspector's.
    """
    found = []
    for layer in _listed(text):
        kind = str(layer.get("LayerType", layer.get("ParameterType", "")))
        origins = tuple(ORIGIN.findall(str(layer.get("Metadata", "")))) or tuple(part.strip() for part in str(layer.get("Name", "")).split(" + "))
        if any(word in f"{kind} {layer.get('TacticName', '')}".lower() for word in MULTIPLYING):
            found.append(RuntimeLayer(kind, _precision(layer), origins))
    return found


def overhead(text: str) -> dict[str, int]:
    """How many layers only convert: reformats, and Q/DQ that nothing took in."""
    counts: dict[str, int] = {}
    for layer in _listed(text):
        kind = str(layer.get("LayerType", "")).lower()
        if (word := next((word for word in OVERHEAD if word in kind), None)) is not None:
            counts[word] = counts.get(word, 0) + 1
    return counts


def _listed(text: str) -> Iterator[Mapping[str, Any]]:
    try:
        listed = list(json.loads(text)["Layers"])
    except (ValueError, KeyError, TypeError) as error:
        raise TargetError("The engine inspector says no layers", where="inspector", expected='JSON with "Layers"', got=f"{text[:200]!r}") from error
    for layer in listed:
        if not isinstance(layer, Mapping):
            got = f"a layer as {type(layer).__name__}"
            raise TargetError("The engine inspector says no details", where="inspector", expected="a plan of DETAILED verbosity", got=got)
        yield layer


def _precision(layer: Mapping[str, Any]) -> str:
    inputs = layer.get("Inputs") or [{}]
    said = [inputs[0].get("Datatype") or inputs[0].get("Format/Datatype") or ""]
    weights = layer.get("Weights")
    if isinstance(weights, Mapping) and weights.get("Type"):
        said.append(weights["Type"])
    kinds = [_named(str(text)) for text in said]
    return INT8 if set(kinds) == {INT8} else next(kind for kind in kinds if kind != INT8)


def _named(text: str) -> str:
    match = DATATYPE.search(text)
    return NAMES.get(match[1].lower(), match[1].upper()) if match else "UNKNOWN"
