"""A bundle as an OCI artifact in an image layout on disk, which every OCI tool copies to a registry; published versions never change.

https://github.com/opencontainers/image-spec/blob/main/image-layout.md and manifest.md ("Guidelines for Artifact Usage"). The layer is an uncompressed
tar whose entries carry no owner and no time: equal bundles give equal digests, the signature's own bytes apart.
"""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pipeline.digests import sha256_file
from pipeline.errors import ConfigError, RecordError, Refused
from pipeline.files import canonical_json, replacing, write_bytes, write_text
from pipeline.records import ReleaseManifest

ARTIFACT = "application/vnd.qwarm.bundle.v1"
LAYER = "application/vnd.oci.image.layer.v1.tar"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
EMPTY = b"{}"
TAG = "org.opencontainers.image.ref.name"


def publish(bundle: str | Path, layout: str | Path) -> str:
    """Add the bundle to the layout under the tag of its version and return its digest; at once what it was when it is there already.

    Raises ConfigError for no bundle, Refused where the tag names another content, RecordError for a layout that cannot be read.
    """
    folder, place = Path(bundle), Path(layout)
    if not (folder / "manifest.json").is_file():
        raise ConfigError("There is no bundle", where=str(folder), expected="a folder with manifest.json", got="none")
    made = ReleaseManifest.load(folder / "manifest.json", next="publish a bundle of this qwarm's schema")
    tag = made.version.replace("+", "_")
    index = _index(place)
    earlier = next((entry for entry in index["manifests"] if entry.get("annotations", {}).get(TAG) == tag), None)
    layer = _layer(place, folder)
    text = canonical_json(
        {
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "artifactType": ARTIFACT,
            "config": _blob(place, EMPTY, "application/vnd.oci.empty.v1+json"),
            "layers": [{**layer, "annotations": {"org.opencontainers.image.title": f"{made.name}-{made.version}"}}],
            "annotations": {"org.opencontainers.image.title": made.name, "org.opencontainers.image.version": made.version},
        }
    ).encode()
    digest = f"sha256:{hashlib.sha256(text).hexdigest()}"
    if earlier is not None and earlier["digest"] != digest:
        raise Refused(
            "This version is already published with another content",
            where=f"{place}: {tag}",
            expected=str(earlier["digest"]),
            got=digest,
            next="raise release.version; a published name never changes its content",
        )
    if earlier is None:
        entry = {**_blob(place, text, MANIFEST), "artifactType": ARTIFACT, "annotations": {TAG: tag}}
        write_text(place / "oci-layout", canonical_json({"imageLayoutVersion": "1.0.0"}))
        write_text(place / "index.json", canonical_json({**index, "manifests": [*index["manifests"], entry]}))  # last: it makes the rest visible
    return digest


def _index(place: Path) -> dict[str, Any]:
    path = place / "index.json"
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if found["schemaVersion"] != 2 or not isinstance(found["manifests"], list):
            raise KeyError("manifests")
    except FileNotFoundError:
        return {"schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json", "manifests": []}
    except (ValueError, KeyError, TypeError) as error:
        raise RecordError("An OCI layout cannot be read", where=str(path), expected="an image index", got=repr(error)) from error
    return found


def _blob(place: Path, content: bytes, kind: str) -> dict[str, Any]:
    digest = hashlib.sha256(content).hexdigest()
    path = place / "blobs/sha256" / digest
    if not path.is_file():
        write_bytes(path, content)
    return {"mediaType": kind, "digest": f"sha256:{digest}", "size": len(content)}


def _layer(place: Path, folder: Path) -> dict[str, Any]:
    """The bundle's files below its own name, sorted, as a tar that is written once; it is renamed to its digest when whole."""
    made = place / "blobs/sha256/layer.tar"
    with replacing(made) as temporary, tarfile.open(temporary, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for path, content in _files(folder):
            entry = tarfile.TarInfo(f"{folder.name}/{path}")
            entry.size, entry.mode = content.stat().st_size, 0o644
            with open(content, "rb") as source:
                archive.addfile(entry, source)
        archive.close()
    digest = sha256_file(made)
    size = made.stat().st_size
    made.replace(made.with_name(digest))
    return {"mediaType": LAYER, "digest": f"sha256:{digest}", "size": size}


def _files(folder: Path) -> Iterator[tuple[str, Path]]:
    for path in sorted(folder.rglob("*")):
        if path.is_symlink() or not (path.is_file() or path.is_dir()):
            raise Refused("A bundle holds what cannot be published", where=str(path), expected="regular files", got="a link or a device")
        if path.is_file():
            yield path.relative_to(folder).as_posix(), path


def fetch(layout: str | Path, tag: str, into: str | Path) -> Path:
    """Unpack the bundle of a tag below `into`, every blob checked against its digest; returns its folder. `verify` is the host's own next step.

    Raises ConfigError for a tag that is not there, Refused for a blob that is not its digest's or an entry that is no plain file below the bundle.
    """
    place = Path(layout)
    entry = next((entry for entry in _index(place)["manifests"] if entry.get("annotations", {}).get(TAG) == tag), None)
    if entry is None:
        tags = [entry.get("annotations", {}).get(TAG, "?") for entry in _index(place)["manifests"]]
        raise ConfigError("There is no such version", where=str(place), expected=", ".join(tags) or "a published bundle", got=tag)
    manifest = json.loads(_checked(place, entry["digest"]))
    [layer] = manifest["layers"]
    name = str(layer["annotations"]["org.opencontainers.image.title"])
    with tarfile.open(fileobj=io.BytesIO(_checked(place, layer["digest"]))) as archive:
        members = archive.getmembers()
        bad = [
            member.name for member in members if not (member.isfile() and member.name.startswith(f"{name}/") and ".." not in member.name.split("/"))
        ]
        if bad or name in ("", ".", "..") or "/" in name:
            raise Refused(
                "A published bundle holds what it may not", where=str(place), expected="files below one folder", got=bad[0] if bad else name
            )
        for member in members:  # one by one: `extractall` before Python 3.11.4 knows no `filter`
            if (source := archive.extractfile(member)) is not None:
                write_bytes(Path(into) / member.name, source.read())
    return Path(into) / name


def _checked(place: Path, digest: str) -> bytes:
    path = place / "blobs/sha256" / digest.removeprefix("sha256:")
    try:
        content = path.read_bytes()
    except OSError as error:
        raise Refused("A published blob is missing", where=str(path), expected=digest, got=str(error)) from error
    if f"sha256:{hashlib.sha256(content).hexdigest()}" != digest:
        raise Refused("A published blob is not what its name says", where=str(path), expected=digest, got="other content")
    return content
