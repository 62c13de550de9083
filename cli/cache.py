"""`qwarm cache ls|verify|prune`: the store of what was built before, under $QWARM_CACHE."""

from __future__ import annotations

import datetime
import json
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from engines.caches import Kept, Store
from pipeline.errors import ConfigError, Refused

cache = typer.Typer(help="The store of engines and caches that were built before.", no_args_is_help=True)
JSON = Annotated[bool, typer.Option("--json", help="one JSON object on standard output")]


def as_json(kept: Kept) -> dict[str, Any]:
    used = datetime.datetime.fromtimestamp(kept.used_at, datetime.UTC).isoformat(timespec="seconds") if kept.entry else None
    entry = kept.entry
    return {
        "kind": kept.folder.parent.name,
        "digest": kept.folder.name,
        "subject": entry.subject if entry else "",
        "bytes": entry.bytes if entry else 0,
        "fields": dict(entry.fields) if entry else {},
        "used_at": used,
        "fault": kept.fault,
    }


def _show(store: Store, listed: Sequence[Kept], title: str, json_output: bool) -> None:
    rows = [as_json(kept) for kept in listed]
    if json_output:
        typer.echo(json.dumps({"root": str(store.root), "max_bytes": store.max_bytes, "bytes": sum(row["bytes"] for row in rows), "entries": rows}))
        return
    typer.echo(f"{store.root}: {title}, {sum(row['bytes'] for row in rows) / 1e6:.2f} MB of at most {store.max_bytes / 1e9:g} GB")
    for row in rows:
        fault = f"  FAULT {row['fault']}" if row["fault"] else ""
        typer.echo(f"{row['digest'][:12]}  {row['used_at'] or '-':<25}  {row['bytes'] / 1e6:10.2f} MB  {row['subject'] or row['kind']}{fault}")


@cache.command(name="ls", help="List entries, the one used last first.")
def ls(json_output: JSON = False) -> None:
    store = Store()
    entries = store.entries()
    _show(store, entries, f"{len(entries)} entries", json_output)


@cache.command(name="verify", help="Hash every byte; exit 3 when an entry is not what was kept.")
def verify(json_output: JSON = False) -> None:
    store = Store()
    entries = store.entries(verify=True)
    faults = [kept for kept in entries if kept.fault]
    _show(store, entries, f"{len(entries)} entries verified, {len(faults)} with a fault", json_output)
    if faults:
        if json_output:
            raise typer.Exit(Refused.exit_code)
        raise Refused(
            "The cache holds what was not kept there", where=", ".join(str(kept.folder) for kept in faults[:3]),
            expected="files as entry.json lists them",
            got=str(faults[0].fault), next="run `qwarm cache prune`: they are never used, and are built again when they are needed",
        )  # fmt: skip


@cache.command(name="prune", help="Remove faulty entries, what killed builds left, and the least recently used beyond the limit.")
def prune(
    max_gb: Annotated[float | None, typer.Option(help="gigabytes that may stay; default $QWARM_CACHE_GB, else 20; 0 empties it")] = None,
    json_output: JSON = False,
) -> None:
    if max_gb is not None and not 0 <= max_gb < 1e9:
        raise ConfigError(
            "The size limit of the cache is no size", where="--max-gb", expected="gigabytes, 0 or more", got=str(max_gb), next="correct --max-gb"
        )
    store = Store()
    gone = store.prune(None if max_gb is None else int(max_gb * 1e9))
    _show(store, gone, f"{len(gone)} entries removed", json_output)
