"""OpenVINO blobs for lesser CPUs than the one that builds: one child process a level, because oneDNN reads its limit once a process.

A blob's header holds the instruction set it was exported under, and the importer takes no other, neither a higher nor a lower (seen with 2026.4.1).
So a host imports the highest blob that its CPU can run, with `ONEDNN_MAX_CPU_ISA` at that very level. A child can lower the limit, not raise it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from engines.onnx_file import ModelFile, probe, read_verified
from pipeline.errors import ConfigError, ModelError
from pipeline.files import canonical_json
from pipeline.platforms import cpu_facts
from pipeline.records import AxisRange, TensorSpec

SETTING, LIMIT, UNLIMITED = "isa_levels", "ONEDNN_MAX_CPU_ISA", frozenset({"", "ALL", "DEFAULT"})
AVX512 = ("avx512f", "avx512bw", "avx512vl", "avx512dq")
LEVELS: Mapping[str, tuple[str, ...]] = {
    "AVX2": ("avx2", "fma"),
    "AVX2_VNNI": ("avx2", "fma", "avx_vnni"),
    "AVX512_CORE": AVX512,
    "AVX512_CORE_VNNI": (*AVX512, "avx512_vnni"),
    "AVX512_CORE_BF16": (*AVX512, "avx512_vnni", "avx512_bf16"),
}
"""oneDNN's names, the lowest first, and the kernel's flags that each needs."""
SEEN = "levels.json"


def blob_name(level: str) -> str:
    return f"model.{level}.blob"


def flags_here() -> set[str]:
    """The CPU's flags, as the kernel names them."""
    return set(cpu_facts().get("flags", "").split())


def best_level(levels: Collection[str], flags: Collection[str], limit: str) -> str | None:
    """The highest of `levels` that a CPU with `flags` can run; where the process has a `limit` of its own, only that one."""
    able = [name for name, needed in LEVELS.items() if name in levels and set(needed) <= set(flags)]
    return next((name for name in reversed(able) if limit in UNLIMITED or limit == name), None)


def asked_levels(settings: Mapping[str, Any], target: str) -> tuple[str, ...]:
    """`targets.<target>.isa_levels` of params.yaml, the lowest first. Raises ConfigError for one that is none, or that this CPU cannot export."""
    asked = settings.get(SETTING) or ()
    able = [name for name in LEVELS if best_level((name,), flags_here(), os.environ.get(LIMIT, ""))]
    if not isinstance(asked, (list, tuple)) or any(name not in able for name in asked):
        raise ConfigError(
            "Blobs cannot be exported for these instruction sets", where=f"params.yaml: targets.{target}.{SETTING}",
            expected=f"a list of {', '.join(able) or 'none on this CPU'}; this CPU can be limited to no other", got=str(asked),
            next="correct params.yaml, or build on a CPU that has them",
        )  # fmt: skip
    return tuple(name for name in LEVELS if name in asked)


def export_levels(
    file: ModelFile, work: Path, levels: Sequence[str], inputs: tuple[TensorSpec, ...], outputs: tuple[TensorSpec, ...],
    shapes: Mapping[str, AxisRange], native: Mapping[str, np.ndarray],
) -> None:  # fmt: skip
    """Write a blob a level to `work`, and `levels.json`: what share each runs in INT8 and how far its outputs are from the `native` blob's.

    A blob for a lesser CPU is run here under its limit. On a real CPU of that level the outputs are held to the recorded ones when a host warms up.
    Raises ModelError with the child's message.
    """
    seen: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="qwarm-levels-") as scratch:
        folder = Path(scratch)
        model = file.path.absolute()
        if not file.side:
            model = folder / "model.onnx"
            model.write_bytes(file.content)
        declared = {"inputs": inputs, "outputs": outputs}
        plain: dict[str, Any] = {name: [spec.to_json() for spec in specs] for name, specs in declared.items()}
        plain["model"] = str(model)
        plain["shapes"] = {name: axis.to_json() for name, axis in shapes.items()}
        (folder / "declared.json").write_text(json.dumps(plain), encoding="utf-8")
        for level in levels:
            environment = {**os.environ, LIMIT: level, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
            ran = subprocess.run([sys.executable, "-m", "engines.ov_levels", scratch], env=environment, capture_output=True, text=True, check=False)
            if ran.returncode:
                raise ModelError("A blob for a lesser CPU cannot be exported", where=level, expected="a blob", got=ran.stderr.strip()[-1500:])
            (work / blob_name(level)).write_bytes((folder / "model.blob").read_bytes())
            with np.load(folder / "outputs.npz") as arrays:
                far = max(float(np.abs(arrays[name].astype(np.float64) - array).max(initial=0)) for name, array in native.items())
            seen[level] = json.loads(ran.stdout) | {"largest_difference": far, "largest_value": max(float(np.abs(a).max()) for a in native.values())}
    (work / SEEN).write_text(canonical_json(seen), encoding="utf-8")


def main() -> None:
    """The child: compile, export, import back, run, take the census; all under the limit that the environment sets."""
    from engines import ov
    from engines.census import row_sizes

    folder = Path(sys.argv[1])
    declared = json.loads((folder / "declared.json").read_text(encoding="utf-8"))
    inputs, outputs = (tuple(TensorSpec.from_json(spec) for spec in declared[name]) for name in ("inputs", "outputs"))
    shapes = {name: AxisRange.from_json(axis) for name, axis in declared["shapes"].items()}
    file = read_verified(Path(declared["model"]))
    blob, _, got, imported = ov.exported(file, probe(inputs, shapes), outputs, file.path)
    (folder / "model.blob").write_bytes(blob)
    np.savez(folder / "outputs.npz", allow_pickle=False, **got)
    print(json.dumps({"int8_share": ov.census(imported, file.content, row_sizes(inputs, shapes)).int8_share}))


if __name__ == "__main__":
    main()
