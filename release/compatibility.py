"""What was measured where: one row a target, by device, driver and library, from the evidence and the platform it is bound to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pipeline.records import Evidence, Platform
from release.tables import table

HEADER = ("target", "device", "driver", "libraries", "verdict", "first request", "steady p50", "measured")
NO_LIBRARIES = {"architecture", "isa", "isa_flags", "max_cpu_isa", "os", "gpu", "compute_capability", "cuda_major"}


def rows(evidences: Sequence[Evidence], platforms: Mapping[str, Platform]) -> list[tuple[str, ...]]:
    """Cells under `HEADER`; "-" for what was not measured. `platforms`: by target, where its record is here."""
    found = []
    for evidence in evidences:
        keys = platforms[evidence.target].key_fields if evidence.target in platforms else {}
        machine = evidence.machine
        gpu = next((fields["gpu"] for fields in (machine, keys) if fields.get("gpu", "none") != "none"), "")
        processor = ", ".join(filter(None, (machine.get("cpu_model"), f"{machine.get('cores', '?')} cores", machine.get("isa"))))
        driver = f"CUDA {keys['cuda_major']}" if gpu and "cuda_major" in keys else "-"
        libraries = ", ".join(f"{name} {value}" for name, value in sorted(keys.items()) if name not in NO_LIBRARIES) or "-"
        times = [f"{evidence.figures[name]:.3g} ms" if name in evidence.figures else "-" for name in ("warm_first_request_ms", "steady_p50_ms")]
        found.append((evidence.target, gpu or processor, driver, libraries, evidence.verdict.name, *times, evidence.measured_at[:10]))
    return found


def section(evidences: Sequence[Evidence], platforms: Mapping[str, Platform]) -> list[str]:
    """The same as Markdown lines."""
    return ["## Compatibility", "", "What is not in this table was not tried.", "", *table(HEADER, rows(evidences, platforms)), ""]
