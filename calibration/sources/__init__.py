"""Where rows come from: files of any kind that the `datasets` library reads, and .npz; streamed, and decoded in one way.

`opening` chooses by kind; `tables` (with `csv_files` and `json_files`), `folders`, `npz` and `hub` open one each, with what `loading` offers;
`source` has `Row` and `Source`; `labels` binds labels to class names; `cells` says how a column's cells become arrays; `files` finds files.
"""

from __future__ import annotations

from calibration.sources.labels import LABEL, Label, load_class_names
from calibration.sources.opening import describe, guess, open_parquet, open_rows, open_source
from calibration.sources.source import OnBad, Row, Source

__all__ = ["LABEL", "Label", "OnBad", "Row", "Source", "describe", "guess", "load_class_names", "open_parquet", "open_rows", "open_source"]
