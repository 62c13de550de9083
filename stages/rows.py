"""What several stages need to read rows of the one role they may see."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from calibration.prepared import load_prepare
from calibration.rows import arrays, batches, rows_of
from calibration.sources import Source, open_source
from pipeline.config import Config, SourceConfig
from pipeline.errors import ConfigError, DataError
from pipeline.padding import grow, named_sizes, paddable_axes
from pipeline.records import Roles
from pipeline.tensors import Batch
from stages import paths


def role_manifest(config: Config, role: str) -> Roles:
    """The manifest of one role alone; raises DataError when it was drawn with another preprocessing than the one there is now."""
    roles = Roles.load(paths.role(role), next="run `dvc repro roles`")
    _, sha256 = load_prepare(config.data.preprocess, Path())
    if sha256 != roles.preprocess_sha256:
        raise DataError(
            "The preprocessing has changed since roles were drawn",
            where=config.data.preprocess,
            expected=f"sha256 {roles.preprocess_sha256}",
            got=f"sha256 {sha256}",
            next="run `dvc repro roles`",
        )
    return roles


def role_source(config: Config, role: str) -> Source:
    """The source of a role: its own where params.yaml gives one, else the one that roles are drawn from."""
    given = {str(name): size for name, size in config.data.roles.items()}.get(role)
    source = given if isinstance(given, SourceConfig) else config.data.source
    if source is None:
        raise ConfigError("A role has no source", where="data.roles in params.yaml", expected=", ".join(config.data.roles), got=role)
    return open_source(config.data, source, Path())


def role_batches(config: Config, role: str, batch_rows: int) -> Iterator[tuple[Batch, np.ndarray | None]]:
    """Preprocessed batches `{input: (N, ...)}` and labels `(N,)`, None without a label column, of one role; each row is held to the manifest."""
    prepare, _ = load_prepare(config.data.preprocess, Path())
    source, model = role_source(config, role), config.model
    return batches(source, role_manifest(config, role), role, prepare, model.input_specs(), batch_rows, model.axis_ranges(), model.value_ranges())


def role_arrays(config: Config, role: str) -> tuple[Batch, np.ndarray | None]:
    """All rows of a small role at once."""
    prepare, _ = load_prepare(config.data.preprocess, Path())
    source, model = role_source(config, role), config.model
    return arrays(source, role_manifest(config, role), role, prepare, model.input_specs(), model.axis_ranges(), model.value_ranges())


def role_columns(config: Config, role: str, names: Sequence[str]) -> dict[str, list[str]]:
    """The values of some of data.columns as text, row by row; "class" stands for the labels and is left empty.

    Raises DataError for a column that holds more than one value a row.
    """
    found: dict[str, list[str]] = {name: [] for name in names}
    wanted = [name for name in names if name != "class"]
    for row in rows_of(role_source(config, role), role_manifest(config, role), role) if wanted else ():
        for name in wanted:
            if row.raw[name].size != 1:
                got = f"shape {row.raw[name].shape} in row {row.id}"
                raise DataError("A slice needs one value a row", where=f"gates.slices: {name}", expected="a text or a number", got=got)
            found[name].append(str(row.raw[name].reshape(-1)[0]))
    return found


def role_sample(config: Config, role: str, most: int) -> Batch:
    """At most `most` rows of a role, drawn by content: those of the smallest digests, in source order. Memory holds them and one batch."""
    manifest = role_manifest(config, role).roles[role]
    if len(manifest.rows) <= most:
        return role_arrays(config, role)[0]
    kept = np.isin(manifest.digests, sorted(manifest.digests)[:most])
    specs, done = config.model.input_specs(), 0
    parts: list[Batch] = []
    for batch, _ in role_batches(config, role, config.quantize.batch_rows):
        size = len(next(iter(batch.values())))
        if (here := kept[done : done + size]).any():
            parts.append({name: array[here] for name, array in batch.items()})
        done += size
    longest = {axis: max(named_sizes(part, specs)[axis] for part in parts) for axis in paddable_axes(specs)}
    grown = [grow(part, specs, longest) for part in parts]
    return {name: np.concatenate([part[name] for part in grown]) for name in grown[0]}


def joined(batches: list[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """Batches of outputs to `{name: (N, ...)}`; along an axis whose size differs from batch to batch, the end is filled with zeros."""
    joined = {}
    for name in batches[0]:
        parts = [batch[name] for batch in batches]
        longest = np.max([part.shape[1:] for part in parts], axis=0) if parts[0].ndim > 1 else ()
        joined[name] = np.concatenate(
            [np.pad(part, [(0, 0), *((0, int(size) - have) for size, have in zip(longest, part.shape[1:], strict=True))]) for part in parts]
        )
    return joined
