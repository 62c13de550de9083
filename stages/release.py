"""Stage `release`: check every verdict, then pack. Refuses with exit 3 before it writes one byte."""

from __future__ import annotations

from pathlib import Path

from pipeline.config import load_config
from pipeline.loading import load_object
from pipeline.records import ExportedModel, Roles
from release import bundle, provenance, pyz
from stages import paths
from stages.report import evidences


def run() -> str:
    config = load_config(paths.PARAMS)
    folder = bundle.pack(
        paths.RELEASE,
        staging=paths.PACKING,
        name=config.release.name,
        version=config.release.version,
        evidences=evidences(),
        engine_folders={target: paths.ENGINES / target / "int8" for target in config.targets},
        warm_folders={target: paths.WARM / target for target in config.targets},
        preprocess=Path(config.data.preprocess.partition(":")[0]),
        class_names=load_object(config.data.labels),
        roles=Roles.load(paths.ROLES / "roles.json", next="run `dvc repro roles`"),
        exported=ExportedModel.load(paths.EXPORT / "exported.json", next="run `dvc repro export`"),
        provenance=provenance.provenance(paths.LOCK, config.model_dump(mode="json")),
    )
    host = pyz.write(paths.RELEASE / "qwarm.pyz", Path(__file__).resolve().parent.parent)
    return f"{folder} and {host}"
