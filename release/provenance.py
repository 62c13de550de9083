"""What a release was made from: digests of the code tree and of upstream lock entries, tool versions, parameters."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml

from pipeline.digests import sha256_code, sha256_json
from pipeline.errors import RecordError
from pipeline.platforms import package_version

PACKAGES = ("pipeline", "calibration", "engines", "warmup", "release", "stages", "fleet", "cli")
TOOLS = ("torch", "onnx", "onnxscript", "onnxruntime-gpu", "nvidia-modelopt", "openvino", "tensorrt-rtx", "datasets", "dvc", "numpy")


def code_sha256() -> str:
    """Digest of qwarm's own code: what measured, judged and packed."""
    return sha256_code(Path(__file__).resolve().parents[1], PACKAGES)


def lock_entries(lock: str | Path, leave_out: Iterable[str] = ("release", "report")) -> dict[str, str]:
    """sha256 of every upstream stage's entry in dvc.lock: its command, dependencies, parameters and outputs.

    Raises RecordError when the lock is missing or is not DVC's.
    """
    try:
        stages = yaml.safe_load(Path(lock).read_text(encoding="utf-8"))["stages"]
    except (OSError, yaml.YAMLError, TypeError, KeyError) as error:
        raise RecordError(
            "dvc.lock cannot be read", where=str(lock), expected="the lock that `dvc repro` writes", got=repr(error), next="run `dvc repro`"
        ) from error
    return {name: sha256_json(entry) for name, entry in stages.items() if name not in set(leave_out)}


def provenance(lock: str | Path, parameters: dict[str, Any]) -> dict[str, Any]:
    """The manifest's `provenance`: equal inputs give equal data, no clock and no path of this machine."""
    return {
        "code_sha256": code_sha256(),
        "lock_entries_sha256": lock_entries(lock),
        "versions": {tool: package_version(tool) for tool in TOOLS},
        "parameters": parameters,
    }
