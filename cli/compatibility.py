"""`qwarm compatibility`: what was tried where, from the evidence of this project and of bundles, as a Markdown table."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from pipeline.errors import ConfigError
from release import compatibility as tried
from release.tables import table


def rows_of(sources: list[Path]) -> list[tuple[str, ...]]:
    """Rows of each bundle or project folder, without repeats, by target. Raises ConfigError for a folder that is neither."""
    found: set[tuple[str, ...]] = set()
    for source in sources:
        if (source / "manifest.json").is_file():
            found.update(tried.of_bundle(source))
        elif (source / "evidence").is_dir():
            found.update(tried.of_project(source))
        else:
            expected = "a bundle's folder, or a project's with evidence/"
            got, after = "neither manifest.json nor evidence/", "correct the path; in a project, run `dvc repro`"
            raise ConfigError("There is no evidence", where=str(source), expected=expected, got=got, next=after)
    return sorted(found)


def compatibility(
    sources: Annotated[list[Path] | None, typer.Argument(metavar="[BUNDLE|PROJECT ...]", help="folders; this project without any")] = None,
    json_output: Annotated[bool, typer.Option("--json", help="one JSON object on standard output")] = False,
) -> None:
    """Devices, drivers and library versions that evidence is of, with the verdict there; what is not in the table was not tried."""
    rows = rows_of(sources or [Path()])
    if json_output:
        typer.echo(json.dumps({"rows": [dict(zip(tried.HEADER, row, strict=True)) for row in rows]}))
        return
    typer.echo("\n".join([*table(tried.HEADER, rows), "", tried.NOT_TRIED]))
