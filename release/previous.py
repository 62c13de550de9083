"""The release before this one: the bundle of the same name that lies beside it, and what differs."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.errors import RecordError, Refused
from pipeline.records import Evidence, ReleaseManifest, Roles
from release import changes

if TYPE_CHECKING:
    from pipeline.config import Config


def since(
    releases: Path, config: Config, evidences: Sequence[Evidence], roles: Roles, versions: Mapping[str, str]
) -> tuple[str, list[changes.Change]] | None:
    """Label of the newest earlier bundle below `releases` and what differs from it; None where there is none that this qwarm can read."""
    manifest = earlier(releases, config.release.name, config.release.version)
    if manifest is None:
        return None
    before = changes.of_manifest(manifest)
    shipping = [evidence for evidence in evidences if evidence.ships]
    data = {role: entry.merkle_root for role, entry in roles.roles.items()}
    now = changes.of_evidence("now", shipping, config.model_dump(mode="json"), data, {**before.versions, **versions})
    return before.label, changes.changes(before, now)


def refuse_worse(since_last: tuple[str, Sequence[changes.Change]] | None) -> None:
    """Raise Refused naming each verdict and figure that is shown to be worse than in the last bundle; there need not be one."""
    worse = [] if since_last is None else [change for change in since_last[1] if change.verdict == changes.WORSE]
    if worse:
        raise Refused(
            "The release is worse than the last one",
            where="release.no_worse",
            expected=f"no verdict or figure worse than in {since_last[0] if since_last else ''}",
            got="; ".join(f"{change.name}: {change.before} before, {change.after} now" for change in worse),
            next="run `dvc repro report` and read build/report/report.html, Since the last release; the previous bundle is untouched",
        )


def earlier(releases: Path, name: str, version: str) -> ReleaseManifest | None:
    """The manifest of the bundle with the largest version below `version`."""
    found: list[tuple[tuple[int, ...], ReleaseManifest]] = []
    for path in releases.glob(f"{name}-*/manifest.json"):
        try:
            manifest = ReleaseManifest.load(path)
        except RecordError:  # of another qwarm's schema
            continue
        if manifest.name == name and order(manifest.version) < order(version):
            found.append((order(manifest.version), manifest))
    return max(found, key=lambda item: item[0])[1] if found else None


def order(version: str) -> tuple[int, ...]:
    """Semantic order: numbers, a pre-release (1.0.0-rc1) before its release; pre-releases of one version in no order among themselves."""
    numbers = [int(number) for number in re.findall(r"\d+", version)[:3]]
    return (*numbers, 0 if "-" in version.partition("+")[0] else 1)
