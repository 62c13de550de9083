"""Stage `roles`: draw the five roles, prove them disjoint, and write one manifest a role beside the whole one."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from calibration.prepared import load_prepare
from calibration.roles import draw, prove_disjoint
from calibration.sources import open_source
from pipeline.config import load_config
from pipeline.files import replacing_folder
from pipeline.progress import bar
from stages import paths


def run() -> str:
    config = load_config(paths.PARAMS)
    with bar("roles: read and hash rows") as report:
        prepare, preprocess_sha256 = load_prepare(config.data.preprocess, Path())
        roles = draw(
            open_source(config.data, Path()),
            prepare,
            config.model.input_specs(),
            sizes={str(role): size for role, size in config.data.roles.items()},
            seed=config.data.seed,
            preprocess_sha256=preprocess_sha256,
            shapes=config.model.axis_ranges(),
            progress=report,
        )
    prove_disjoint(roles)
    with replacing_folder(paths.ROLES) as folder:
        roles.save(folder / "roles.json")
        for name, role in roles.roles.items():
            dataclasses.replace(roles, roles={name: role}, findings=()).save(folder / f"{name}.json")
    sizes = ", ".join(f"{name} {len(role.rows)}" for name, role in roles.roles.items())
    return f"{sizes}; disjoint by content; {len(roles.findings)} exact duplicates moved out"
