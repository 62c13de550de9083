"""`qwarm firewall A B [C ...]`: what data sources share, exactly, nearly or through a group; with `--cost`, what a leak would have cost."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.options import existing
from pipeline.errors import REFUSED, ConfigError, DataError

if TYPE_CHECKING:
    from calibration.firewall.catalogue import Catalogue
    from calibration.firewall.overlaps import Overlap
    from calibration.health import Health, RowError
    from calibration.sources import Row, Source
    from pipeline.data_config import SourceConfig
    from pipeline.records import Anomaly

NOT_CONTENT = frozenset({"label", "labels", "target", "targets", "class", "y", "id", "ids", "index", "split", "group"})
"""Columns that are not compared unless they are named."""
SHOWN = 50
TOLERANCE = 1e-3


def compare_sources(
    paths: Sequence[str],
    *,
    columns: Sequence[str] = (),
    group: str | None = None,
    tolerance: float = TOLERANCE,
    quarantine: bool = False,
    page: str | None = None,
) -> dict[str, Any]:
    """Read each source once and look for overlaps between any two of them; the object that `--json` prints.

    `columns`: what is compared (default: the pictures, else the texts, else all numbers). Raises DataError for a source or row that cannot be
    read; with `quarantine` such a row is left out and listed. `page`: an HTML file that shows the findings side by side.
    """
    from calibration.firewall.overlaps import find
    from calibration.sources import describe, guess
    from pipeline.caches import cache_folder
    from pipeline.progress import bar

    if len({Path(path).resolve() for path in paths}) < len(paths):
        raise ConfigError("One source is given twice", where="qwarm firewall", expected="others", got=", ".join(paths), next="name each once")
    if page is not None and not os.access(Path(page).resolve().parent, os.W_OK):
        raise ConfigError("The page cannot be written", where=page, expected="a folder that exists and is writable", next="correct --report")
    sources = [guess(Path(path)) for path in paths]
    chosen = [list(columns)] * len(paths)
    warnings: list[str] = []
    if not columns:
        chosen, warnings = agree([choose(describe(source), group, path) for source, path in zip(sources, paths, strict=True)], paths)
    store = cache_folder("signatures")
    catalogues: list[Catalogue] = []
    health: list[dict[str, Anomaly]] = []
    for path, source, names in zip(paths, sources, chosen, strict=True):
        with bar(f"firewall: read and sign {path}") as report:
            catalogue, found, noticed = _catalogue(path, source, names, group, tolerance, quarantine, store, report)
        catalogues.append(catalogue)
        health.append(found)
        warnings += noticed
    with bar("firewall: look for overlaps") as report:
        overlaps = find(catalogues, tolerance=tolerance, store=store, progress=report)
    if page is not None:
        _write_page(page, paths, catalogues, overlaps)
    return {
        "findings": [
            {"left": {"source": o.left, "row": o.left_row}, "right": {"source": o.right, "row": o.right_row}, "kind": o.kind, "distance": o.distance}
            for o in overlaps
        ],
        "rows": [len(catalogue.ids) for catalogue in catalogues],
        "sources": list(paths),
        "compared": list(catalogues[0].kind_of_field),
        "repeated": [len(catalogue.digests) - len(set(catalogue.digests)) for catalogue in catalogues],
        "warnings": sorted(set(warnings)),
        "health": [{kind: anomaly.to_json() for kind, anomaly in found.items()} for found in health],
    }


def _catalogue(
    path: str, source: SourceConfig, chosen: Sequence[str], group: str | None, tolerance: float, quarantine: bool, store: Path, report: Any
) -> tuple[Catalogue, dict[str, Anomaly], list[str]]:
    import numpy as np

    from calibration.firewall.catalogue import Cataloguer
    from calibration.health import BadRow, Health
    from calibration.sources import open_rows
    from pipeline.data_config import HealthConfig

    # One compared column gets one name, so that `picture` here and `image` there are compared all the same.
    columns = {"content": chosen[0]} if len(chosen) == 1 else {name: name for name in chosen}
    with _by_hand("correct --column or --group"):
        opened = open_rows(source, columns, group=group)
    severe = {kind: "quarantine" for kind, field in HealthConfig.model_fields.items() if field.default == "refuse"}
    health = Health(HealthConfig.model_validate(severe) if quarantine else None)
    cataloguer = Cataloguer(path, opened.rows, tolerance=tolerance, store=store)
    for done, row in enumerate(_readable(health, opened), start=1):
        report(done, opened.count, "")
        if broken := [name for name, array in row.raw.items() if array.dtype.kind == "f" and not np.isfinite(array).all()]:
            health.bad(BadRow.of(row.id, _not_finite(path, row.id, opened.columns[broken[0]])))
            continue
        cataloguer.add(row)
    return cataloguer.finish(), health.finish(), cataloguer.warnings


def _readable(health: Health, opened: Source) -> Iterator[Row]:
    """`health.rows`, where a refusal says what to do without a params.yaml."""
    with _by_hand("repair or remove the row, or leave such rows out with --quarantine"):
        yield from health.rows(opened)


@contextlib.contextmanager
def _by_hand(next: str) -> Iterator[None]:
    """A refusal whose way out would be an edit of params.yaml says `next` instead: there is none here."""
    from calibration.health import RowError

    try:
        yield
    except DataError as error:
        if isinstance(error, RowError) or "data." in error.next:
            error.next = next
        raise


def _not_finite(path: str, row_id: str, column: str) -> RowError:
    from calibration.health import RowError

    return RowError(
        "non_finite",
        "A row is not finite",
        where=f"row {row_id}, column {column}, {path}",
        expected="finite numbers",
        got="NaN or infinity",
        next="repair or remove the row, or leave such rows out with --quarantine",
    )


def choose(kinds: dict[str, str], group: str | None, path: str) -> list[str]:
    """The columns that are compared where none is named: pictures before texts before numbers; never a label, an id or the group."""
    content = {name: kind for name, kind in kinds.items() if name.lower() not in NOT_CONTENT and name != group}
    for kind in ("picture", "text", "numbers"):
        if chosen := sorted(name for name, found in content.items() if found == kind):
            return chosen
    raise ConfigError(
        "There is no column to compare",
        where=path,
        expected="pictures, text or numbers",
        got=", ".join(f"{name} ({kind})" for name, kind in kinds.items()) or "no column",
        next="name the columns with --column",
    )


def agree(chosen: Sequence[list[str]], paths: Sequence[str]) -> tuple[list[list[str]], list[str]]:
    """What is compared of each source, and a warning for each that holds more: one column each, whatever its name, else the columns that all have.

    Rows of other columns are never equal, and numbers of other columns never near: sources without a common column would seem free of overlaps.
    """
    if all(len(names) == 1 for names in chosen):
        return list(chosen), []
    common = sorted(set(chosen[0]).intersection(*chosen[1:]))
    if not common:
        raise ConfigError(
            "The sources have no column in common",
            where=" and ".join(paths),
            expected="one column each, or columns of the same names",
            got="; ".join(f"{path}: {', '.join(names)}" for path, names in zip(paths, chosen, strict=True)),
            next="name the columns alike",
        )
    more = [(path, sorted(set(names) - set(common))) for path, names in zip(paths, chosen, strict=True)]
    warnings = [f"{path}: {', '.join(names)} not compared, because not every source has that column; compared: {', '.join(common)}"
                for path, names in more if names]  # fmt: skip
    return [common] * len(chosen), warnings


def _write_page(page: str, paths: Sequence[str], catalogues: Sequence[Catalogue], overlaps: Sequence[Overlap]) -> None:
    from calibration.firewall.page import write
    from pipeline.records import Finding

    names = [f"{index}: {path}" for index, path in enumerate(paths)]
    findings = [Finding(o.left_row, o.right_row, o.kind, o.distance, (names[o.left], names[o.right]), "found") for o in overlaps]
    rows = ", ".join(f"{path}: {len(catalogue.ids)} rows" for path, catalogue in zip(paths, catalogues, strict=True))
    write(Path(page), "What the sources share", f"{rows}. {len(findings)} findings.", findings, dict(zip(names, catalogues, strict=True)))


def show(result: dict[str, Any]) -> None:
    """The result as a table for people, on standard output."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    console = Console(soft_wrap=True)
    for index, path in enumerate(result["sources"]):
        unwell = ", ".join(f"{anomaly['count']} {kind} ({anomaly['action']})" for kind, anomaly in result["health"][index].items())
        repeated = f", {result['repeated'][index]} repeated" if result["repeated"][index] else ""
        console.print(f"{index}: {escape(path)}: {result['rows'][index]} rows{repeated}{'; ' + unwell if unwell else ''}", highlight=False)
    for warning in result["warnings"]:
        console.print(f"warning: {escape(warning)}", highlight=False)
    findings = result["findings"]
    if not findings:
        console.print(f"No row of one source is in another ({', '.join(result['compared'])} compared).", highlight=False)
        return
    table = Table("kind", "distance", "row", "is in", "as row", box=None, pad_edge=False)
    for finding in findings[:SHOWN]:
        left, right = finding["left"], finding["right"]
        distance = f"{finding['distance']:.3g}" if finding["kind"] == "near" else ""
        table.add_row(finding["kind"], distance, f"{right['source']}: {escape(right['row'])}", str(left["source"]), escape(left["row"]))
    console.print(table)
    if len(findings) > SHOWN:
        console.print(f"and {len(findings) - SHOWN} more: --json lists all", highlight=False)


def show_cost(json_output: bool) -> None:
    """Measure what a leak would have cost in the pipeline of this folder, and print it."""
    from pipeline.config import load_config
    from release.data_report import cost_lines
    from stages import cost, paths

    measured = cost.measure(load_config(paths.PARAMS))
    typer.echo(json.dumps(measured.to_json()) if json_output else "\n".join(cost_lines(measured)))


def firewall(
    sources: Annotated[
        list[str] | None, typer.Argument(metavar="A B [C ...]", help="folders of pictures, or parquet, csv, json, npz files", callback=existing)
    ] = None,
    column: Annotated[list[str] | None, typer.Option(help="a column to compare, repeatable (default: pictures, else texts, else numbers)")] = None,
    group: Annotated[str | None, typer.Option(help="a column whose rows belong together: a patient, a video, a user")] = None,
    tolerance: Annotated[float, typer.Option(min=0, max=0.2, help="for numbers: relative difference that still counts as near")] = TOLERANCE,
    quarantine: Annotated[bool, typer.Option("--quarantine", help="leave out rows that cannot be read, and list them, instead of refusing")] = False,
    report: Annotated[str | None, typer.Option(metavar="FILE.html", help="write a page with the two rows of each finding side by side")] = None,
    cost: Annotated[bool, typer.Option("--cost", help="in a pipeline's folder, after `dvc repro`: what a leak would have cost")] = False,
    json_output: Annotated[bool, typer.Option("--json", help="one JSON object on standard output")] = False,
) -> None:
    """Say which rows of one data source are also in another: exactly, nearly, or through their group. Exit 3 when there is one."""
    if cost:
        if sources:
            expected, after = "a pipeline's folder", "leave out the sources, or --cost"
            raise ConfigError("--cost takes no source", where="qwarm firewall --cost", expected=expected, got=" ".join(sources), next=after)
        show_cost(json_output)
        return
    if not sources:
        expected, after = "two or more sources (one is only checked)", "name files or folders"
        raise ConfigError("There is nothing to compare", where="qwarm firewall", expected=expected, got="none", next=after)
    result = compare_sources(sources, columns=column or (), group=group, tolerance=tolerance, quarantine=quarantine, page=report)
    if json_output:
        typer.echo(json.dumps(result))
    else:
        show(result)
    raise typer.Exit(REFUSED if result["findings"] else 0)
