"""Nothing in a bundle may carry a path of the machine that built it: no host has it, and none need know it."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from pipeline.errors import Refused

COMPONENT = rb"[^\s\"'<>:;,\\)\]}|\x00-\x1f\x7f-\xff/]+"


def find_private_path(data: bytes, roots: Iterable[str]) -> str | None:
    """The first path of this machine in `data` (text or binary) at or below one of `roots`, or None.

    Below a root of one component, such as /root or /app, only a name that exists here counts: ONNX calls nodes /root/Conv.
    """
    for root in roots:
        for match in re.finditer(re.escape(os.fsencode(root)) + rb"(?![\w.-])(?:/" + COMPONENT + rb")?", data):
            path = os.fsdecode(match[0])
            if root.count("/") > 1 or (path != root and os.path.lexists(path)):
                return path
    return None


def refuse_private_paths(contents: Mapping[str, bytes | Path], folders: Iterable[str | Path]) -> None:
    """Raise Refused naming the first file with a path at or below one of `folders`."""
    roots = sorted({str(Path(folder).resolve()) for folder in folders} - {"/"}, key=len, reverse=True)
    for name, content in contents.items():
        path = find_private_path(content if isinstance(content, bytes) else content.read_bytes(), roots)
        if path is not None:
            raise Refused(
                "A file would carry a path of the building machine",
                where=name,
                expected=f"no path at or below {', '.join(roots)}",
                got=path,
                next="use relative paths where it was made; the previous bundle is untouched",
            )
