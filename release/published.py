"""A version that is tagged is published: what it names never changes."""

from __future__ import annotations

import subprocess
from pathlib import Path

from pipeline.errors import Refused


def refuse_published(name: str, version: str, folder: str | Path = ".") -> None:
    """Raise Refused where git has the tag NAME@vVERSION (as GTO writes it) at another commit than this one.

    At the tag itself a release may be made again: it gives the same bytes, or `release` would have changed. Without git there are no tags.
    """
    tag = f"{name}@v{version}"
    tagged, head = (_git(folder, "rev-parse", "--verify", "--quiet", f"{ref}^{{commit}}") for ref in (f"refs/tags/{tag}", "HEAD"))
    if tagged is not None and tagged != head:
        raise Refused(
            "This version is already released",
            where=f"release.version {version}",
            expected="a version without a git tag",
            got=f"the tag {tag} at {tagged[:12]}, while this is {(head or 'no commit')[:12]}",
            next="raise release.version in params.yaml; a published name never changes its content",
        )


def _git(folder: str | Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(["git", *arguments], cwd=folder, capture_output=True, text=True, check=False, timeout=30)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None if done.returncode == 0 else None
