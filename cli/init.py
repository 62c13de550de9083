"""`qwarm init DIR --kind KIND`: a git and DVC repository for a model of one's own, ready for `dvc repro`."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pipeline.errors import ConfigError, disk_error
from pipeline.platforms import package_version

STARTERS = Path(__file__).resolve().parent / "starters"
COMMON = "common"
DOT = "dot."
"""A name beginning so stands for one beginning with a dot: packaging leaves real ones out."""
METRICS = {"arrays": {"METRIC": "metric.py, ", "METRIC_README": "; `metric.py` says what is good"}}
"""What the shared files say about a metric of one's own, for kinds that have one."""


def kinds() -> list[str]:
    """The starters there are."""
    return sorted(entry.name for entry in STARTERS.iterdir() if entry.is_dir() and entry.name != COMMON)


def init(folder: str | Path, kind: str) -> dict[str, Any]:
    """Write the starter `kind` to `folder`, which must be new or empty: whole, or nothing. Returns folder, kind, files and next commands.

    Raises ConfigError for an unknown kind, a folder that holds anything, and a machine without git.
    """
    final = Path(folder).absolute()
    if kind not in kinds():
        raise ConfigError("There is no such starter", where="--kind", expected=" or ".join(kinds()), got=repr(kind), next="correct --kind")
    refuse_used(final)
    if shutil.which("git") is None:
        raise ConfigError("git is missing, and DVC needs it", where="qwarm init", expected="git on PATH", got="nothing", next="install git")
    contents = render(kind, release_name(final.name))
    try:
        final.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{final.name}.", suffix=".tmp", dir=final.parent) as scratch:
            work = Path(scratch) / "starter"
            for path, content in contents.items():
                (work / path).parent.mkdir(parents=True, exist_ok=True)
                (work / path).write_bytes(content)
            make_repository(work)
            move_into(work, final)
    except OSError as error:
        raise disk_error(error, final) from error
    there = os.path.relpath(final)
    following = [*([] if there == "." else [f"cd {there}"]), "dvc repro", "qwarm stage summary", "git commit -m 'Start'"]
    return {"folder": str(final), "kind": kind, "files": sorted(contents), "next": following}


def refuse_used(folder: Path) -> None:
    """Raise ConfigError unless `folder` is absent or an empty folder."""
    if not folder.exists() and not folder.is_symlink():
        return
    if not folder.is_dir():
        raise ConfigError(
            "The starter needs a folder", where=str(folder), expected="a new or an empty folder", got="a file", next="name another folder"
        )
    found = sorted(entry.name for entry in folder.iterdir())
    if found:
        raise ConfigError(
            "The folder is not empty, and init overwrites nothing",
            where=str(folder),
            expected="a new or an empty folder",
            got=", ".join(found[:5]) + (f" and {len(found) - 5} more" if len(found) > 5 else ""),
            next="name another folder, and copy what you want from there",
        )


def release_name(name: str) -> str:
    """A folder's name as a release name: lower-case letters, digits, - and _."""
    return re.sub(r"[^a-z0-9_-]+", "-", name.lower()).strip("-_")[:64] or "model"


def render(kind: str, name: str) -> dict[str, bytes]:
    """Every file of a starter by its path, `@WORD@` filled in."""
    words = {"NAME": name, "KIND": kind, "VERSION": package_version("qwarm"), "METRIC": "", "METRIC_README": "", **METRICS.get(kind, {})}
    return {path: fill(source.read_text(encoding="utf-8"), words).encode() for part in (COMMON, kind) for path, source in templates(part)}


def templates(part: str) -> Iterator[tuple[str, Path]]:
    """Path in the project and source of each file of one folder of `starters/`."""
    base = STARTERS / part
    for source in sorted(base.rglob("*")):
        if source.is_file() and "__pycache__" not in source.parts:
            names = source.relative_to(base).parts
            yield "/".join("." + name.removeprefix(DOT) if name.startswith(DOT) else name for name in names), source


def fill(text: str, words: Mapping[str, str]) -> str:
    """Replace `@WORD@` by its value; another word between two @ stays."""
    return re.sub(r"@([A-Z_]+)@", lambda match: words.get(match.group(1), match.group()), text)


def make_repository(folder: Path) -> None:
    """`git init` and stage everything; the files under .dvc/ are all that `dvc init` would write."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    for command in (["init", "--quiet", "--initial-branch=main"], ["add", "--all"]):
        done = subprocess.run(["git", *command], cwd=folder, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            got, after = done.stderr.strip()[:300], "mend what git says, then run the same command again"
            raise ConfigError("git refuses", where=f"git {command[0]}", expected="a new repository", got=got, next=after)


def move_into(work: Path, final: Path) -> None:
    """`work` becomes `final`; an empty folder that is there already is filled, and emptied again when that fails."""
    if not final.exists():
        work.rename(final)
        return
    moved: list[Path] = []
    try:
        for entry in sorted(work.iterdir()):
            entry.rename(final / entry.name)
            moved.append(entry)
    except OSError:
        for entry in moved:
            (final / entry.name).rename(entry)
        raise


def describe(made: Mapping[str, Any]) -> str:
    """What was made, and what to type next."""
    return "\n".join([f"{made['folder']}: {len(made['files'])} files, the {made['kind']} starter", "next:", *(f"  {line}" for line in made["next"])])
