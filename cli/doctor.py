"""`qwarm doctor`: what this machine can build, run and measure, and what is missing for the rest."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import engines
from pipeline.config import load_config
from pipeline.errors import ConfigError
from pipeline.gpus import first_gpu
from pipeline.platforms import machine_facts, package_version

TOOLS = (
    "torch", "onnx", "onnxruntime-gpu", "nvidia-modelopt", "openvino", "tensorrt-rtx", "datasets", "dvc", "model-signing", "cryptography",
)  # fmt: skip
FREE_GB_WANTED = 2


def examine(folder: Path) -> dict[str, Any]:
    """Machine facts, tool versions, every backend's target with why it is unavailable, and problems with a fix each."""
    problems: list[str] = []
    targets: dict[str, Any] = {}
    for target in engines.targets():
        backend = engines.backend(target)
        reason, unrunnable = backend.unavailable(target), backend.unrunnable(target)
        targets[target] = {
            "available": reason is None,
            "runs": unrunnable is None,
            "reason": reason or unrunnable or "",
            "key": backend.platform_key(target) if reason is None else {},
        }
    versions = {tool: package_version(tool) for tool in TOOLS}
    problems += [f"{tool} is not installed: run `make setup`" for tool, version in versions.items() if version == "absent"]
    if sys.version_info[:2] != (3, 11):
        problems.append(f"Python {sys.version_info[0]}.{sys.version_info[1]} instead of 3.11: run `make setup`")
    problems += [f"{tool} is missing: install it" for tool in ("git", "dvc") if shutil.which(tool) is None]
    free = shutil.disk_usage(folder).free / 1e9
    if free < FREE_GB_WANTED:
        problems.append(f"{free:.1f} GB of disk are free, {FREE_GB_WANTED} are wanted: free space, or `dvc gc --workspace`")
    if (folder / "params.yaml").exists():
        try:
            config = load_config(folder / "params.yaml")
            for target, settings in config.targets.items():
                if target not in targets:
                    problems.append(f"params.yaml names the target {target}, which no backend has: one of {', '.join(targets)}")
                elif not targets[target]["available"]:
                    problems.append(f"the target {target} cannot be built here: {targets[target]['reason']}")
                elif settings.required and not targets[target]["runs"]:
                    problems.append(f"the required target {target} cannot be measured here: {targets[target]['reason']}")
        except ConfigError as error:
            problems.append(str(error))
    return {"machine": machine_facts(first_gpu()), "free_disk_gb": round(free, 1), "versions": versions, "targets": targets, "problems": problems}


def doctor(json_output: bool) -> int:
    """Print the examination; 0 when nothing is missing for what params.yaml asks, else 1."""
    found = examine(Path.cwd())
    if json_output:
        print(json.dumps(found, sort_keys=True))
        return int(bool(found["problems"]))
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    console = Console()
    table = Table(box=None, show_header=False, pad_edge=False)
    for section in ("machine", "versions"):
        for name, value in found[section].items():
            table.add_row(name, escape(value))
    table.add_row("free disk", f"{found['free_disk_gb']} GB")
    console.print(table)
    for target, state in found["targets"].items():
        text = "can be built, run and measured here" if state["runs"] else f"not here: {escape(state['reason'])}"
        if state["available"] and not state["runs"]:
            text = f"can be built here and not run: {state['reason']}"
        console.print(f"[bold]{target}[/]: [{'green' if state['runs'] else 'yellow'}]{text}[/]", highlight=False)
    for problem in found["problems"]:
        console.print(f"[red]problem[/]: {escape(problem)}", highlight=False, soft_wrap=True)
    if not found["problems"]:
        console.print("[green]Nothing is missing.[/] Next: make repro", highlight=False)
    return int(bool(found["problems"]))
