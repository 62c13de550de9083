"""`qwarm publish BUNDLE LAYOUT`: a bundle as an OCI artifact on disk, for any OCI tool to copy to a registry."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer


def publish(
    bundle: Annotated[Path, typer.Argument(metavar="BUNDLE", help="the bundle's folder; with --fetch the folder to unpack into")],
    layout: Annotated[Path, typer.Argument(metavar="LAYOUT", help="folder of an OCI image layout; made when missing")],
    fetch: Annotated[str | None, typer.Option(metavar="VERSION", help="the other way round: unpack this version")] = None,
    json_output: Annotated[bool, typer.Option("--json", help="one JSON object on standard output")] = False,
) -> None:
    """Publish a bundle under its version; a version that is there with another content is refused (exit 3)."""
    from release import oci

    if fetch is not None:
        folder = oci.fetch(layout, fetch, bundle)
        typer.echo(json.dumps({"folder": str(folder)}) if json_output else f"{folder}; verify it before use")
        return
    digest = oci.publish(bundle, layout)
    typer.echo(json.dumps({"digest": digest, "layout": str(layout)}) if json_output else f"{digest} in {layout}")
