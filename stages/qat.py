"""Stage `qat`: train float weights under fake quantization where `quantize.qat` asks for it, and export what came out."""

from __future__ import annotations

import time
from pathlib import Path

from pipeline.caches import cache_folder
from pipeline.config import Config, load_config
from pipeline.decibels import drift
from pipeline.digests import sha256_bytes, sha256_code, sha256_file, sha256_json
from pipeline.errors import DataError
from pipeline.files import replacing_folder
from pipeline.platforms import package_version
from pipeline.progress import bar
from pipeline.records import ExportedModel, QuantizedModel, Training
from stages import paths
from stages.ranges import calibrate, save
from stages.rows import role_arrays, role_batches, role_manifest, role_sample
from stages.schemes import range_method

AFFINE = frozenset({"cpu"})
"""Schemes whose activations have a zero point."""
TOOLS = ("torch", "nvidia-modelopt")
ROOT = Path(__file__).resolve().parents[1]


def run() -> str:
    config = load_config(paths.PARAMS)
    scheme, why = wanted(config)
    if scheme is None:
        with replacing_folder(paths.QAT) as folder:
            Training(ran=False, why=why).save(folder / "training.json")
        return f"not trained: {why}"
    return trained(config, scheme, why)


def wanted(config: Config) -> tuple[str | None, str]:
    """The scheme whose grid to train under, None where there is nothing to train for, and why: the one that is farthest from the float model."""
    settings = config.quantize
    if settings.qat == "never":
        return None, "quantize.qat is never"
    found = {
        scheme: QuantizedModel.load(paths.QUANTIZED / scheme / "quantized.json", next=f"run `dvc repro quantize@{scheme}`").search_sqnr_db
        for scheme in settings.schemes
    }
    drifts = {scheme: drift(db) for scheme, db in found.items()}
    worst = max(drifts, key=lambda scheme: drifts[scheme])
    figures = ", ".join(f"{scheme} {share:.3g}" for scheme, share in drifts.items())
    if settings.qat == "always":
        return worst, f"quantize.qat is always; drift without it: {figures}"
    if drifts[worst] <= (settings.max_drift or 0):
        return None, f"every scheme keeps quantize.max_drift {settings.max_drift:g}: {figures}"
    return worst, f"a scheme does not keep quantize.max_drift {settings.max_drift:g}: {figures}"


def trained(config: Config, scheme: str, why: str) -> str:
    """Train, export and calibrate; `build/qat` is then whole."""
    import safetensors.torch  # heavy, like all below: a stage that does not train takes a second

    from calibration.export import export
    from calibration.qat.machines import machine
    from calibration.qat.saved import Saved
    from calibration.qat.train import Data, train

    started, here = time.monotonic(), machine()
    exported = ExportedModel.load(paths.EXPORT / "exported.json", next="run `dvc repro export`")
    bound = bindings(config, exported, scheme)
    rows = role_sample(config, "train", config.quantize.training.rows)
    search, _ = role_arrays(config, "search")
    data = Data(rows, search, lambda: (batch for batch, _ in role_batches(config, "calibration", config.quantize.batch_rows)))
    saved = Saved(cache_folder("qat"), sha256_json(bound))
    with bar(f"qat: train under {scheme}'s grid on {here.device}") as report:
        result = train(
            config.model, Path(), data, config.quantize.training, saved,
            affine=scheme in AFFINE, method=range_method(scheme), machine=here, progress=report,
        )  # fmt: skip
    if not here.main:
        return f"process of {here.parts}: the first one writes"
    if result.resumed_after is not None:
        print(f"went on after epoch {result.resumed_after} of a run that had been stopped")
    with replacing_folder(paths.QAT) as folder:
        content = safetensors.torch.save(result.state)
        (folder / "model.safetensors").write_bytes(content)
        with bar("qat: torch to ONNX") as report:
            model = config.model.model_copy(update={"checkpoint": str(folder / "model.safetensors")})
            export(model, Path(), folder / "export", search, progress=report)
        (folder / "ranges").mkdir()
        save(calibrate(config, folder / "export", "qat: calibrate"), folder / "ranges")
        Training(
            ran=True,
            why=why,
            scheme=scheme,
            rows=len(next(iter(rows.values()))),
            settings={name: float(value) for name, value in config.quantize.training.model_dump().items()},
            bound_to=bound,
            start_sqnr_db=result.start_db,
            corrected_sqnr_db=result.corrected_db,
            epochs=result.epochs,
            best_epoch=result.best_epoch,
            layers=result.quantized,
            float_layers=result.in_float,
            checkpoint_sha256=sha256_bytes(content),
            resumed_after=result.resumed_after,
            device=here.device,
            seconds=round(time.monotonic() - started, 1),
        ).save(folder / "training.json")
    saved.clear()
    reached = result.epochs[result.best_epoch - 1].search_sqnr_db if result.best_epoch else result.corrected_db
    start, best = ("without limit" if db is None else f"{db:.1f} dB" for db in (result.start_db, reached))
    left = "".join(f"; {name} stays in float: {reason}" for name, reason in result.in_float.items())
    return f"{why}: {len(result.epochs)} epochs, SQNR under fake quantization {start} to {best} (epoch {result.best_epoch}){left}"


def bindings(config: Config, exported: ExportedModel, scheme: str) -> dict[str, str]:
    """Digests of everything that training follows from: a saved state of anything else is not its own."""
    if "train" not in config.data.roles:
        raise DataError(
            "There are no rows to train on",
            where=f"{paths.PARAMS}: data.roles",
            expected="a role `train`",
            got=", ".join(config.data.roles),
            next="add data.roles.train, or set quantize.qat: never",
        )
    settings = [config.quantize.training.model_dump(mode="json"), range_method(scheme), config.quantize.batch_rows, scheme]
    roots = {role: role_manifest(config, role).roles[role].merkle_root for role in ("train", "calibration", "search")}
    return {
        "model_sha256": exported.onnx_sha256,
        "checkpoint_sha256": sha256_file(config.model.checkpoint),
        "preprocess_sha256": role_manifest(config, "train").preprocess_sha256,
        **{f"{role}_root": root for role, root in roots.items()},
        "parameters_sha256": sha256_json(settings),
        "code_sha256": sha256_code(ROOT, ("calibration",)),
        **{name: package_version(name) for name in TOOLS},
    }
