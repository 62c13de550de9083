"""Rows to roles, proven apart: read every source once, draw by content, look for overlaps, act by policy, write the manifest."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from calibration.assign import DRAW_ORDER, Drawn, Size, assign
from calibration.firewall.catalogue import Catalogue, Cataloguer
from calibration.firewall.overlaps import EXACT, GROUP, NEAR, Overlap, find
from calibration.health import BadRow, Health, RowError
from calibration.prepared import Prepare, prepare_row
from calibration.shifts import Figures, figures, shifts
from calibration.sources import Source
from pipeline.digests import labels_sha256, merkle_root, sha256_bytes
from pipeline.errors import DataError, Refused
from pipeline.records import Anomaly, Finding, Role, Roles, RowSource
from pipeline.tensors import AxisRange, TensorSpec

ALL = ("all rows",)
"""The one stratum, in place of class names, of a source without classes."""
MAIN = "main"
"""The name of the source that roles are drawn from; a role that has a source of its own gives that source its name."""
REFUSE, MOVE, ALLOW = "refuse", "move", "allow"
SHOWN = 10
"""Findings that a message names; all are in the findings page."""


@dataclasses.dataclass(frozen=True)
class Policy:
    """What is done about near rows of two roles: `pairs` by (role, role) in `DRAW_ORDER`, else `near`. Equal rows and shared groups are refused.

    `tolerance` and `columns`: what counts as near for numbers, and which columns are compared (all that can be, when empty).
    """

    near: str = REFUSE
    pairs: Mapping[tuple[str, str], str] = dataclasses.field(default_factory=dict)
    tolerance: float = 1e-3
    columns: tuple[str, ...] = ()

    def action(self, kind: str, roles: tuple[str, str]) -> str:
        return self.pairs.get(roles, self.near) if kind == NEAR else REFUSE


@dataclasses.dataclass(frozen=True)
class ReadSource:
    """One source, read once: `rows` are distinct, `repeated` lists what equals one of them, `figures` are by row id."""

    name: str
    source: Source
    rows: tuple[Drawn, ...]
    repeated: tuple[Finding, ...]
    catalogue: Catalogue
    figures: Mapping[str, Figures]
    health: Mapping[str, Anomaly]
    warnings: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Drawing:
    """The manifest, and every overlap as a finding in the order it was met. `refused` are those that the policy does not let pass."""

    roles: Roles
    refused: tuple[Finding, ...]
    catalogues: Mapping[str, Catalogue]
    """By role, before anything was moved."""


def read(
    name: str,
    source: Source,
    prepare: Prepare,
    specs: tuple[TensorSpec, ...],
    *,
    policy: Policy,
    health: Health,
    shapes: Mapping[str, AxisRange] | None = None,
    values: Mapping[str, tuple[int, int]] | None = None,
    store: Path | None = None,
    progress: Callable[[int, int, str], None] = lambda *_: None,
) -> ReadSource:
    """Read, check and sign every row of `source` once; a repeated content is kept once (lowest id), the others are listed.

    Raises DataError for a row that cannot be read or prepared, and for equal content with two classes or in two groups, unless `health` leaves
    it out.
    """
    strata = source.class_names or ALL
    cataloguer = Cataloguer(name, source.rows, tolerance=policy.tolerance, columns=policy.columns, store=store)
    kept: dict[str, Drawn] = {}
    repeated: list[Finding] = []
    described: dict[str, Figures] = {}
    for done, row in enumerate(health.rows(source), start=1):
        progress(done, source.count, "")
        try:
            prepared = prepare_row(row.id, row.raw, prepare, specs, shapes, values)
        except RowError as error:
            health.bad(BadRow.of(row.id, error))
            continue
        drawn = Drawn(row.id, row.digest, int(row.label) if source.class_names and row.label is not None else 0, row.group, row.label)
        first = kept.setdefault(row.digest, drawn)
        if first is not drawn:
            if first.label != drawn.label:
                health.bad(BadRow.of(row.id, _two_labels(first, drawn, strata)))
            elif first.group != drawn.group:
                health.bad(BadRow.of(row.id, _two_groups(first, drawn)))
            else:
                repeated.append(Finding(left=first.id, right=drawn.id, kind=EXACT, distance=0.0, roles=("", ""), action="moved"))
            continue
        described[row.id] = figures(prepared)
        cataloguer.add(row)
    found = health.finish()
    if not kept:
        raise DataError("No row is left", where=f"{name}: {source.name}", expected="a healthy row", got=f"{source.count} rows, all in quarantine")
    return ReadSource(name, source, tuple(kept.values()), tuple(repeated), cataloguer.finish(), described, found, tuple(cataloguer.warnings))


def _two_labels(kept: Drawn, other: Drawn, class_names: Sequence[str]) -> RowError:
    return RowError(
        "conflicting_label",
        "Equal content has two labels",
        where=f"rows {kept.id} and {other.id}",
        expected=f"one label ({class_names[kept.label]} in row {kept.id})",
        got=f"{class_names[other.label]} in row {other.id}",
        next="correct one of the two rows in the source, or set data.health.conflicting_label: quarantine to leave the later one out",
    )


def _two_groups(kept: Drawn, other: Drawn) -> RowError:
    """Kept once, such a row would play its role for one group, and the other group's rows might play another."""
    return RowError(
        "conflicting_group",
        "Equal content is in two groups",
        where=f"rows {kept.id} and {other.id}",
        expected=f"one group ({kept.group} in row {kept.id})",
        got=f"{other.group} in row {other.id}",
        next="correct one of the two rows in the source, or set data.health.conflicting_group: quarantine to leave the later one out",
    )


def draw(
    sources: Sequence[ReadSource],
    *,
    sizes: Mapping[str, Size],
    seed: int,
    policy: Policy,
    preprocess_sha256: str,
    class_names: tuple[str, ...],
    store: Path | None = None,
    progress: Callable[[int, int, str], None] = lambda *_: None,
) -> Drawing:
    """Give each distinct row at most one role, find what the roles still share, and act on it.

    `sources` holds `MAIN`, whose rows are drawn by `sizes` (see `assign`), and one source for each role that is given. A row that is moved
    out leaves the later role of the two in `DRAW_ORDER`. Raises DataError where a role cannot be filled, or is emptied by what was moved.
    """
    by_name = {source.name: source for source in sources}
    members: dict[str, tuple[ReadSource, list[Drawn]]] = {}
    if MAIN in by_name:
        members |= {role: (by_name[MAIN], rows) for role, rows in assign(by_name[MAIN].rows, sizes, seed).items()}
    members |= {name: (source, list(source.rows)) for name, source in by_name.items() if name != MAIN}
    order = [role for role in DRAW_ORDER if role in members]
    catalogues = {role: members[role][0].catalogue.subset(role, [row.id for row in members[role][1]]) for role in order}
    overlaps = find([catalogues[role] for role in order], tolerance=policy.tolerance, store=store, progress=progress)
    kept, refused, moved = list[Finding](), list[Finding](), dict[str, set[str]]()
    for overlap in overlaps:
        finding, action = _finding(overlap, order, policy)
        (refused if action == REFUSE else kept).append(finding)
        if action == MOVE:
            moved.setdefault(finding.roles[1], set()).add(finding.right)
    roles = {role: _role(role, *members[role], moved.get(role, set()), class_names or ALL) for role in order}
    calibration, validation = (_figures(members[role][0], roles[role]) for role in ("calibration", "validation"))
    manifest = Roles(
        sources={source.name: RowSource(source.source.name, source.source.sha256, source.source.count) for source in sources},
        preprocess_sha256=preprocess_sha256,
        seed=seed,
        class_names=class_names,
        findings=(*(finding for source in sources for finding in source.repeated), *kept),
        health={source.name: dict(source.health) for source in sources if source.health},
        shifts=shifts(roles["calibration"], roles["validation"], calibration, validation),
        roles=roles,
    )
    return Drawing(manifest, tuple(refused), catalogues)


def _finding(overlap: Overlap, order: Sequence[str], policy: Policy) -> tuple[Finding, str]:
    roles = (order[overlap.left], order[overlap.right])
    action = policy.action(overlap.kind, roles)
    said = {REFUSE: "refused", MOVE: "moved", ALLOW: "allowed"}[action]
    return Finding(overlap.left_row, overlap.right_row, overlap.kind, overlap.distance, roles, said), action


def _role(name: str, source: ReadSource, rows: Iterable[Drawn], moved: set[str], class_names: Sequence[str]) -> Role:
    wanted = {row.id for row in rows} - moved
    ordered = [row for row in source.rows if row.id in wanted]
    if not ordered:
        raise DataError(
            "A role is empty after near rows were moved out of it",
            where=f"role {name}",
            expected="at least one row",
            got=f"{len(moved)} rows moved out",
            next="look at what is near (`qwarm firewall`), and give the role rows of its own",
        )
    digests = tuple(row.digest for row in ordered)
    return Role(
        source=source.name,
        rows=tuple(row.id for row in ordered),
        digests=digests,
        merkle_root=merkle_root(digests),
        labels=dict(sorted(Counter(class_names[row.label] for row in ordered).items())),
        labels_sha256=labels_sha256([row.answer for row in ordered]),
        groups=tuple(sorted({sha256_bytes(row.group.encode()) for row in ordered if row.group is not None})),
    )


def _figures(source: ReadSource, role: Role) -> list[Figures]:
    return [source.figures[row_id] for row_id in role.rows]


def refuse_overlaps(drawing: Drawing, page: str) -> None:
    """Raise Refused naming the rows of the first findings that the policy does not let pass; `page` shows them all."""
    if not drawing.refused:
        return
    shown = [describe(finding) for finding in drawing.refused[:SHOWN]]
    more = [f"and {len(drawing.refused) - SHOWN} more"] if len(drawing.refused) > SHOWN else []
    by_kind = Counter(finding.kind for finding in drawing.refused)
    raise Refused(
        "Rows of one role are also in another: " + ", ".join(f"{count} {kind}" for kind, count in by_kind.items()),
        where="; ".join([*shown, *more]),
        expected="roles that share no row, no near copy and no group",
        got=f"{len(drawing.refused)} in all; {page} shows them side by side",
        next="remove these rows from one of the two sources; near rows may also be moved or allowed: data.firewall.near or .pairs",
    )


def describe(finding: Finding) -> str:
    """One finding in words: `validation row 0000007 near calibration row 0000003 (distance 0.02)`."""
    distance = f" (distance {finding.distance:.3g})" if finding.kind == NEAR else ""
    word = {EXACT: "equals", NEAR: "is near", GROUP: "is of the group of"}[finding.kind]
    return f"{finding.roles[1]} row {finding.right} {word} {finding.roles[0]} row {finding.left}{distance}"
