"""Named arrays in an .npz: read with one refusal for everything that can be wrong with the file. Nothing is unpickled."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import numpy as np

from pipeline.errors import RecordError


def read_arrays(source: Path | bytes, *, what: str, where: str = "", next: str = "run `dvc repro`") -> dict[str, np.ndarray]:
    """`{name: array}` of a file, or of bytes that were verified before; raises RecordError when it is missing, torn or holds objects.

    `what` opens the message ("Warm-up rows"), `where` names the file (default: `source` itself), `next` the way out.
    """
    try:
        with np.load(io.BytesIO(source) if isinstance(source, bytes) else source, allow_pickle=False) as stored:
            return {name: stored[name] for name in stored.files}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise RecordError(
            f"{what} cannot be read", where=where or str(source), expected="an .npz of named arrays", got=str(error), next=next
        ) from error
