"""Write qwarm.pyz: what a serving host runs, as one zipapp of `pipeline`, `engines`, `warmup` and `fleet`.

Every source has its compiled `.pyc` beside it (the legacy location, the only one that zipimport looks at), of the
unchecked-hash kind (PEP 552), so that nothing is compiled at start-up. Equal sources give equal bytes: fixed order,
dates and modes, no compression, and marshal version 2, which has no reference flags that depend on the running process.
"""

from __future__ import annotations

import importlib.util
import marshal
import zipfile
from pathlib import Path

from pipeline.errors import QwarmError
from pipeline.files import replacing

PACKAGES = ("pipeline", "engines", "warmup", "fleet")
LEFT_OUT = frozenset(f"pipeline/{name}.py" for name in (
    "config", "config_errors", "data_config", "firewall_config", "model_config", "progress", "release_config", "search_records", "section",
))  # fmt: skip
"""Only the building side imports these: pydantic and rich are not on a host."""
SHEBANG = b"#!/usr/bin/env python3\n"
MAIN = "from fleet.main import main\n\nraise SystemExit(main())\n"
EPOCH = (1980, 1, 1, 0, 0, 0)


def sources(root: Path) -> dict[str, bytes]:
    """Source of every module that goes in, by its path relative to `root`; raises QwarmError for a package that is missing."""
    found = {"__main__.py": MAIN.encode()}
    for package in PACKAGES:
        folder = root / package
        if not (folder / "__init__.py").is_file():
            raise QwarmError("A package of the host is missing", where=str(folder), expected=f"{package}/__init__.py", got="no file")
        for path in folder.rglob("*.py"):
            relative = path.relative_to(root).as_posix()
            if relative not in LEFT_OUT:
                found[relative] = path.read_bytes()
    return found


def compiled(path: str, source: bytes) -> bytes:
    """The unchecked hash-based .pyc of `source`; `path` is what tracebacks show. No path of this machine is in it."""
    code = compile(source, f"qwarm.pyz/{path}", "exec", dont_inherit=True, optimize=0)
    flags = (0b01).to_bytes(4, "little")  # hash-based, source not checked
    return importlib.util.MAGIC_NUMBER + flags + importlib.util.source_hash(source) + marshal.dumps(code, 2)


def write(path: str | Path, root: str | Path) -> Path:
    """Write the zipapp to `path` atomically, from the packages below `root`. Returns `path`; raises QwarmError."""
    files: dict[str, bytes] = {}
    for name, source in sources(Path(root)).items():
        files[name] = source
        files[f"{name}c"] = compiled(name, source)
    final = Path(path)
    with replacing(final) as temporary, open(temporary, "wb") as stream:
        stream.write(SHEBANG)
        with zipfile.ZipFile(stream, "w", zipfile.ZIP_STORED) as archive:
            for name in sorted(files):
                entry = zipfile.ZipInfo(name, EPOCH)
                entry.create_system = 3
                entry.external_attr = 0o100644 << 16
                archive.writestr(entry, files[name])
    final.chmod(0o755)
    return final
