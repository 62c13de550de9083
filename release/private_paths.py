"""Nothing in a bundle may carry a path of the machine that built it: no host has it, and none need know it."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from pipeline.errors import Refused

COMPONENT = rb"[^\s\"'<>:;,\\)\]}|\x00-\x1f\x7f-\xff/]+"
ABSOLUTE = re.compile(rb"(?<![\w./:~-])(?:/" + COMPONENT + rb"){2,}")
EVERYWHERE = ("/usr/", "/bin/", "/sbin/", "/lib/", "/lib64/", "/etc/", "/proc/", "/sys/", "/dev/", "/run/")
"""Folders that every Linux has: a `#!/usr/bin/env` tells nothing of this machine."""


def find_private_path(data: bytes, roots: Iterable[str]) -> str | None:
    """The first path of this machine in `data`, or None: one at or below one of `roots`, and in text any that exists here.

    ONNX calls nodes /root/Conv. So below a root of one component, such as /root or /app, only what exists here counts.
    """
    for root in roots:
        for match in re.finditer(re.escape(os.fsencode(root)) + rb"(?![\w.-])(?:/" + COMPONENT + rb")?", data):
            path = os.fsdecode(match[0])
            if root.count("/") > 1 or (path != root and os.path.lexists(path)):
                return path
    try:
        data.decode("utf-8")
    except UnicodeDecodeError:
        return None
    found = {os.fsdecode(match[0]) for match in ABSOLUTE.finditer(data)}
    return next((path for path in sorted(found) if not path.startswith(EVERYWHERE) and os.path.lexists(path)), None)


def refuse_private_paths(contents: Mapping[str, bytes | Path], folders: Iterable[str | Path]) -> None:
    """Raise Refused naming the first file with a path at or below one of `folders`, or, in text, with any path that exists here."""
    roots = sorted({str(Path(folder).resolve()) for folder in folders} - {"/"}, key=len, reverse=True)
    for name, content in contents.items():
        path = find_private_path(content if isinstance(content, bytes) else content.read_bytes(), roots)
        if path is not None:
            raise Refused(
                "A file would carry a path of the building machine",
                where=name,
                expected="no absolute path of this machine",
                got=path,
                next="use paths relative to the repository where it comes from; the previous bundle is untouched",
            )
