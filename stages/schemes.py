"""The schemes by name, and what params.yaml says of how a model is quantized: for every stage that quantizes."""

from __future__ import annotations

from pathlib import Path

import onnx

from calibration import cpu_scheme, tensorrt_scheme
from calibration.float_layers import resolve
from calibration.rounding.methods import Methods
from calibration.safe_names import name_nodes
from pipeline.config import Config
from pipeline.search_records import SearchResult
from stages import paths

QUANTIZERS = {tensorrt_scheme.SCHEME: tensorrt_scheme.quantize, cpu_scheme.SCHEME: cpu_scheme.quantize}
RULES = {rules.scheme: rules for rules in (tensorrt_scheme.RULES, cpu_scheme.RULES)}


def methods(config: Config) -> Methods:
    """The switches of params.yaml that say how weights are fitted."""
    asked = config.quantize
    return Methods(asked.splitting, asked.equalization, asked.adaptation, asked.rounding, asked.bias_correction)


def range_method(scheme: str) -> str:
    """The range method that `quantize@SCHEME` took."""
    return SearchResult.load(paths.QUANTIZED / scheme / "search.json", next=f"run `dvc repro quantize@{scheme}`").method


def float_layers(config: Config, source: Path) -> dict[str, str]:
    """`{node: reason}` of the layers of the export in `source` that params.yaml leaves in float; raises QuantizeError for one that there is not."""
    if not config.quantize.float_layers:
        return {}
    model = onnx.load(source / "model.onnx", load_external_data=False)
    name_nodes(model)
    return resolve(model, config.quantize.float_layers)
