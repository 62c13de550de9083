"""Stage `choose@SCHEME`: the Q/DQ model that goes on: of the trained weights, or of the weights as they were. A process of its own, as `quantize`."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from pipeline.config import load_config
from pipeline.decibels import drift
from pipeline.digests import sha256_file
from pipeline.errors import ModelError
from pipeline.files import replacing_folder
from pipeline.records import Candidate, Choice, QuantizedModel, Training
from stages import paths

PTQ, QAT = "ptq", "qat"


def run(scheme: str) -> str:
    config = load_config(paths.PARAMS)
    training = Training.load(paths.QAT / "training.json", next="run `dvc repro qat`")
    folders = {PTQ: paths.QUANTIZED / scheme}
    with tempfile.TemporaryDirectory(prefix="qwarm-choose-") as scratch:
        if training.ran:
            from stages.quantize import quantized

            folders[QAT] = Path(scratch) / QAT
            quantized(
                config, scheme, paths.QAT / "export", paths.QAT / "ranges", folders[QAT], f"choose@{scheme}: quantize",
                reference=paths.EXPORT / "model.onnx",
            )  # fmt: skip
        candidates = {name: candidate(folder, scheme) for name, folder in folders.items()}
        chosen, why = choose(candidates, config.quantize.max_drift) if training.ran else (PTQ, f"not trained: {training.why}")
        with replacing_folder(paths.CHOSEN / scheme) as folder:
            shutil.copytree(folders[chosen], folder, dirs_exist_ok=True)
            Choice(scheme, chosen, why, candidates, config.quantize.max_drift).save(folder / "choice.json")
    return f"{scheme}: {chosen}; {why}"


def candidate(folder: Path, scheme: str) -> Candidate:
    """The figures of a quantized model's folder; raises ModelError when its model is not that of its record."""
    record = QuantizedModel.load(folder / "quantized.json", next=f"run `dvc repro quantize@{scheme}`")
    if (found := sha256_file(folder / "model.onnx")) != record.onnx_sha256:
        again = f"run `dvc repro quantize@{scheme}`"
        where = str(folder / "model.onnx")
        raise ModelError("A model is not the one its record names", where=where, expected=record.onnx_sha256, got=found, next=again)
    return Candidate(record.onnx_sha256, record.search_sqnr_db, len(record.float_nodes))


def choose(candidates: dict[str, Candidate], max_drift: float | None) -> tuple[str, str]:
    """The name of the better one, and why: where both keep `max_drift`, fewer layers in float, which are slower; else the smaller drift."""
    drifts = {name: drift(entry.search_sqnr_db) for name, entry in candidates.items()}
    figures = ", ".join(f"{name} {share:.3g}" for name, share in drifts.items())
    floats = {name: entry.float_nodes for name, entry in candidates.items()}
    if max_drift is not None and all(share <= max_drift for share in drifts.values()) and len(set(floats.values())) > 1:
        return min(floats, key=lambda name: floats[name]), f"fewer layers in float, both keep max_drift {max_drift:g} (drift {figures})"
    return min(drifts, key=lambda name: drifts[name]), f"the smaller drift on the search rows ({figures})"
