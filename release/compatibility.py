"""What was measured where: one row a target, by device, driver and library, from the evidence and the platform it is bound to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from pipeline.records import Evidence, Platform, ReleaseManifest
from release.tables import table

HEADER = ("target", "device", "driver", "libraries", "verdict", "first request", "steady p50", "measured")
NOT_TRIED = "What is not in this table was not tried."
NO_LIBRARIES = {"architecture", "isa", "isa_flags", "max_cpu_isa", "os", "gpu", "compute_capability", "cuda_major"}


def rows(evidences: Sequence[Evidence], key_fields: Mapping[str, Mapping[str, str]]) -> list[tuple[str, ...]]:
    """Cells under `HEADER`; "-" for what was not measured. `key_fields`: of each target's platform, where it is known here."""
    found = []
    for evidence in evidences:
        keys = key_fields.get(evidence.target, {})
        machine = evidence.machine
        gpu = next((fields["gpu"] for fields in (machine, keys) if fields.get("gpu", "none") != "none"), "")
        processor = ", ".join(filter(None, (machine.get("cpu_model"), f"{machine.get('cores', '?')} cores", machine.get("isa"))))
        driver = f"CUDA {keys['cuda_major']}" if gpu and "cuda_major" in keys else "-"
        libraries = ", ".join(f"{name} {value}" for name, value in sorted(keys.items()) if name not in NO_LIBRARIES) or "-"
        times = [f"{evidence.figures[name]:.3g} ms" if name in evidence.figures else "-" for name in ("warm_first_request_ms", "steady_p50_ms")]
        found.append((evidence.target, gpu or processor, driver, libraries, evidence.verdict.name, *times, evidence.measured_at[:10]))
    return found


def section(evidences: Sequence[Evidence], key_fields: Mapping[str, Mapping[str, str]]) -> list[str]:
    """The same as Markdown lines."""
    return ["## Compatibility", "", NOT_TRIED, "", *table(HEADER, rows(evidences, key_fields)), ""]


def of_bundle(folder: Path) -> list[tuple[str, ...]]:
    """Rows of a packed bundle's targets. Raises RecordError for one that this qwarm does not read."""
    manifest = ReleaseManifest.load(folder / "manifest.json", next="take a bundle of this qwarm's schema")
    evidences = [Evidence.load(folder / target.folder / "evidence.json", next="verify the bundle") for target in manifest.targets]
    return rows(evidences, {target.target: target.key_fields for target in manifest.targets})


def of_project(folder: Path) -> list[tuple[str, ...]]:
    """Rows of the evidence that lies in a project, with the platforms beside it."""
    evidences = [Evidence.load(path, next="run `dvc repro`") for path in sorted((folder / "evidence").glob("*.json"))]
    places = {evidence.target: folder / "platforms" / f"{evidence.target}.json" for evidence in evidences}
    return rows(evidences, {target: Platform.load(path).key_fields for target, path in places.items() if path.is_file()})
