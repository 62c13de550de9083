"""Stage `roles`: read every source, draw the roles, prove them apart, and write one manifest a role beside the whole one."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from calibration.firewall import page
from calibration.health import Health
from calibration.prepared import load_prepare
from calibration.prove import prove_disjoint
from calibration.roles import MAIN, Drawing, Policy, draw, read, refuse_overlaps
from calibration.sources import load_class_names, open_source
from pipeline.caches import cache_folder
from pipeline.config import Config, SourceConfig, load_config
from pipeline.files import replacing_folder, write_json
from pipeline.progress import bar
from pipeline.records import Finding, Roles
from stages import paths


def run() -> str:
    config = load_config(paths.PARAMS)
    drawing = drawn(config)
    write_findings(drawing)
    refuse_overlaps(drawing, str(paths.FIREWALL / "findings.html"))
    roles = drawing.roles
    prove_disjoint(roles)
    with replacing_folder(paths.ROLES) as folder:
        roles.save(folder / "roles.json")
        for name, role in roles.roles.items():
            dataclasses.replace(roles, roles={name: role}, sources={role.source: roles.sources[role.source]}, findings=(), health={}, shifts=()).save(
                folder / f"{name}.json"
            )
    return summary(roles)


def drawn(config: Config) -> Drawing:
    """Read the source of every role once and draw; see `calibration.roles`."""
    data, root, store = config.data, Path(), cache_folder("signatures")
    prepare, preprocess_sha256 = load_prepare(data.preprocess, root)
    given = {str(role): size for role, size in data.roles.items() if isinstance(size, SourceConfig)}
    sizes = {str(role): size for role, size in data.roles.items() if not isinstance(size, SourceConfig)}
    wanted = {**({MAIN: data.source} if data.source is not None else {}), **given}
    firewall = data.firewall
    policy = Policy(firewall.near, firewall.by_roles(), firewall.tolerance, tuple(firewall.columns))
    sources = []
    for name, source in wanted.items():
        with bar(f"roles: read, check and sign {name} rows") as report:
            sources.append(
                read(
                    name,
                    open_source(data, source, root),
                    prepare,
                    config.model.input_specs(),
                    policy=policy,
                    health=Health(data.health),
                    shapes=config.model.axis_ranges(),
                    values=config.model.value_ranges(),
                    store=store,
                    progress=report,
                )
            )
    for warning in sorted({warning for source in sources for warning in source.warnings}):
        print(f"warning: {warning}")
    with bar("roles: look for overlaps") as report:
        return draw(
            sources, sizes=sizes, seed=data.seed, policy=policy, preprocess_sha256=preprocess_sha256,
            class_names=load_class_names(data.labels, root) if data.labels else (), store=store, progress=report,
        )  # fmt: skip


def write_findings(drawing: Drawing) -> None:
    """findings.json and findings.html, also where they refuse: a stage that fails leaves no record otherwise."""
    between = [finding for finding in (*drawing.refused, *drawing.roles.findings) if finding.roles != ("", "")]
    with replacing_folder(paths.FIREWALL) as folder:
        write_json(folder / "findings.json", [finding.to_json() for finding in between])
        page.write(folder / "findings.html", "What the data roles share", summary(drawing.roles, drawing.refused), between, drawing.catalogues)


def summary(roles: Roles, refused: Sequence[Finding] = ()) -> str:
    """Sizes, what was refused, moved or allowed, and what was unhealthy, in one line."""
    sizes = ", ".join(f"{name} {len(role.rows)}" for name, role in roles.roles.items())
    kinds = Counter(
        f"{finding.kind} {'repeats' if finding.roles == ('', '') else 'overlaps'} {finding.action}" for finding in (*refused, *roles.findings)
    )
    found = ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items())) or "no overlap and no repeated row"
    health = ", ".join(f"{anomaly.count} {kind} ({anomaly.action})" for found in roles.health.values() for kind, anomaly in sorted(found.items()))
    return f"{sizes}; {found}" + (f"; {health}" if health else "")
