"""Where each stage leaves its record: the one list of paths that dvc.yaml and the stages share."""

from __future__ import annotations

from pathlib import Path

PARAMS = Path("params.yaml")
LOCK = Path("dvc.lock")
ROLES = Path("build/roles")
FIREWALL = Path("build/firewall")
"""What the roles share, and did not keep: findings with their rows side by side. Written also when they refuse."""
COST = Path("build/firewall-cost.json")
EXPORT = Path("build/export")
RANGES = Path("build/ranges")
QUANTIZED = Path("build/quantized")
QAT = Path("build/qat")
CHOSEN = Path("build/chosen")
"""By scheme, the Q/DQ model that goes on: that of `quantize`, or the one with trained weights."""
ENGINES = Path("build/engines")
WARM = Path("build/warm")
VALIDATE = Path("build/validate")
EVIDENCE = Path("evidence")
PLATFORMS = Path("platforms")
TOOL = Path("qwarm.json")
PLOTS = Path("build/plots")
REPORT = Path("build/report")
RELEASE = Path("build/release")
DEVELOPMENT_PUBLIC_KEY = RELEASE / "development.pub"
"""Beside the bundles, for the example only: a host gets its public key by another road."""
PACKING = Path("build/.packing")
"""Staging of a bundle: beside build/release, so that nothing half-written is ever inside it."""


def role(name: str) -> Path:
    """The manifest of one role alone: a stage depends on the roles it may see and on no other."""
    return ROLES / f"{name}.json"


def platform(target: str) -> Path:
    return PLATFORMS / f"{target}.json"


def evidence(target: str) -> Path:
    return EVIDENCE / f"{target}.json"
