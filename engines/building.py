"""What every backend does around its own build: check what is asked for, and record what came out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from engines.contract import PRECISIONS
from engines.onnx_file import ModelFile, check_declared, read_verified
from engines.stored import RECORD, describe
from pipeline.digests import sha256_bytes, sha256_json
from pipeline.errors import ConfigError, TargetError
from pipeline.platforms import difference
from pipeline.records import AxisRange, Census, Engine, Platform, TensorSpec

THREADS = "threads"


def start(
    model: Path, *, target: str, precision: str, inputs: tuple[TensorSpec, ...], outputs: tuple[TensorSpec, ...], platform: Platform,
    key_here: Mapping[str, str],
) -> ModelFile:  # fmt: skip
    """The model, once precision, platform, and the model's inputs and outputs are what they must be.

    Raises ConfigError, TargetError naming the fields of the platform that differ, ModelError, or Refused for a side file.
    """
    if precision not in PRECISIONS:
        raise ConfigError("Unknown precision", where=f"engine of {target}", expected=" or ".join(PRECISIONS), got=precision)
    refuse_misfit(difference(platform.key_fields, key_here), target, f"run `dvc repro platform@{target}`")
    file = read_verified(model)
    check_declared(file.content, inputs, outputs, model)
    return file


def refuse_misfit(misfit: Sequence[str], target: str, next: str) -> None:
    """Raise TargetError with the lines that say how an engine's platform is not this machine's, if there are any."""
    if misfit:
        raise TargetError("This is another platform than the engine's", where=target, expected="equal keys", got="; ".join(misfit), next=next)


def refuse_other_tensors(engine: Engine, inputs: Iterable[str], outputs: Iterable[str], where: Path) -> None:
    """Raise TargetError unless what a runtime opened has the record's inputs, all of them, and its outputs, perhaps among others."""
    for kind, specs, found, all_of_them in (("inputs", engine.inputs, set(inputs), True), ("outputs", engine.outputs, set(outputs), False)):
        declared = {spec.name for spec in specs}
        if declared - found or (all_of_them and found - declared):
            what, next = f"The engine has other {kind} than its record", "build it again: the record is of another engine"
            raise TargetError(what, where=str(where), expected=", ".join(sorted(declared)), got=", ".join(sorted(found)), next=next)


def only_known(settings: Mapping[str, Any], known: tuple[str, ...], target: str) -> None:
    """Raise ConfigError for a key of `targets.<target>` in params.yaml that the backend does not know."""
    if unknown := sorted(set(settings) - set(known)):
        raise ConfigError(
            "Unknown setting of a target",
            where=f"params.yaml: targets.{target}",
            expected=f"one of {', '.join(('required', *known))}",
            got=", ".join(unknown),
            next="correct params.yaml and run `dvc repro` again",
        )


def asked_threads(settings: Mapping[str, Any], target: str) -> int | None:
    """`targets.<target>.threads` of params.yaml: how many threads one request uses; None for all cores. Raises ConfigError for less than one."""
    threads = settings.get(THREADS)
    if threads is not None and (isinstance(threads, bool) or not isinstance(threads, int) or threads < 1):
        raise ConfigError(
            "A target cannot run on so many threads", where=f"params.yaml: targets.{target}.{THREADS}", expected="1 or more", got=str(threads),
            next="correct params.yaml, or leave it out for all cores",
        )  # fmt: skip
    return threads


def record(
    work: Path, content: bytes, *, target: str, precision: str, settings: Mapping[str, Any], inputs: tuple[TensorSpec, ...],
    outputs: tuple[TensorSpec, ...], shapes: dict[str, AxisRange], platform: Platform, census: Census | None,
    fits: Mapping[str, str] | None = None,
) -> Engine:  # fmt: skip
    """Write engine.json beside the files that lie in `work`. Equal recipes may share an engine; the files' digests say which one this is.

    `fits`: key fields beside the platform's own, which tell the backend's `misfit` where else the engine runs.
    """
    recipe = {
        "model_sha256": sha256_bytes(content),
        "target": target,
        "precision": precision,
        "settings": dict(settings),
        "shapes": {name: axis.to_json() for name, axis in shapes.items()},
        "platform_key": platform.key,
    }
    engine = Engine(
        target=target,
        precision=precision,
        model_sha256=sha256_bytes(content),
        platform_key=platform.key,
        key_fields={**platform.key_fields, **(fits or {})},
        recipe=recipe,
        recipe_sha256=sha256_json(recipe),
        inputs=inputs,
        outputs=outputs,
        shapes=shapes,
        files=describe(work),
        census=census,
    )
    engine.save(work / RECORD)
    return engine
