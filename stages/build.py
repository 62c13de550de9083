"""Stage `build@TARGET`: the INT8 engine that may ship and the FP32 engine it is judged against."""

from __future__ import annotations

import engines
from engines.caches import Store
from engines.kept import build
from pipeline.config import load_config
from pipeline.digests import sha256_file
from pipeline.errors import ModelError, TargetError
from pipeline.files import replacing_folder
from pipeline.progress import bar
from pipeline.records import ExportedModel, Platform, QuantizedModel
from stages import paths


def run(target: str) -> str:
    config = load_config(paths.PARAMS)
    backend = engines.backend(target)
    platform = Platform.load(paths.platform(target), next=f"run `dvc repro platform@{target}`")
    if platform.unavailable:
        raise TargetError(
            f"The target {target} cannot be built on this machine",
            where=f"{paths.PARAMS}: targets.{target}",
            expected="its runtime installed and its hardware present",
            got=platform.unavailable,
            next="install what is named, or run this stage where the hardware is; `qwarm doctor` lists what works here",
        )
    exported = ExportedModel.load(paths.EXPORT / "exported.json", next="run `dvc repro export`")
    scheme = next((scheme for scheme in backend.SCHEMES[target] if scheme in config.quantize.schemes), None)
    if scheme is None:
        raise TargetError(
            f"No scheme for the target {target}",
            where=f"{paths.PARAMS}: quantize.schemes",
            expected=f"one of {', '.join(backend.SCHEMES[target])}",
            got=", ".join(config.quantize.schemes),
        )
    again = f"run `dvc repro choose@{scheme}`"
    quantized = QuantizedModel.load(paths.CHOSEN / scheme / "quantized.json", next=again)
    models = {"int8": paths.CHOSEN / scheme / "model.onnx", "float32": paths.EXPORT / "model.onnx"}
    for path, wanted, found in (
        (models["int8"], quantized.onnx_sha256, sha256_file(models["int8"])),
        (models["float32"], exported.onnx_sha256, sha256_file(models["float32"])),
        (paths.CHOSEN / scheme / "quantized.json: the float model", exported.onnx_sha256, quantized.reference_sha256 or quantized.float_sha256),
    ):
        if wanted != found:
            raise ModelError("A model is not the one its record names", where=str(path), expected=wanted, got=found, next=again)
    built, store, said = {}, Store(), {}
    with replacing_folder(paths.ENGINES / target) as folder:
        for precision, model in models.items():
            with bar(f"build@{target}: {precision}") as report:
                built[precision], said[precision] = build(
                    model, folder / precision, target=target, precision=precision, inputs=exported.inputs, outputs=exported.outputs,
                    shapes=exported.shapes, platform=platform, settings=config.targets[target].settings(), progress=report, store=store,
                )  # fmt: skip
    megabytes = sum(file.bytes for file in built["int8"].files.values()) / 1e6
    census = built["int8"].census
    share = f"{census.int8_share:.1%} of multiply-accumulates in INT8" if census else "what it executes in is unknown until it runs"
    cached = "; ".join(f"{precision} {found}" for precision, found in said.items())
    return f"{target}: {megabytes:.2f} MB from {scheme} ({quantized.quantize_linear} Q), {share}; cache: {cached}"
