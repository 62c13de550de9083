"""What a bundle holds beside what its host reads: for people, auditors and other servers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.arrays import read_arrays
from pipeline.digests import sha256_file
from pipeline.errors import ConfigError
from pipeline.files import canonical_json
from pipeline.records import Engine, Evidence, ExportedModel, Roles, WarmupPlan
from pipeline.tensors import Batch
from release import kubernetes, sbom, triton
from release.card import card

if TYPE_CHECKING:
    from pipeline.config import Config


def additions(
    config: Config,
    exported: ExportedModel,
    roles: Roles,
    evidences: Sequence[Evidence],
    packages: Mapping[str, str],
    *,
    engines: Mapping[str, Path],
    warm: Mapping[str, Path],
    quantized: Path,
) -> dict[str, bytes | Path]:
    """Files by their path in the bundle. `engines` and `warm`: folders of each shipping target; `quantized`: the folder of the schemes.

    Raises ConfigError for a card that cannot be read, and for a name that Triton cannot take.
    """
    name, version = config.release.name, config.release.version
    shipping = [evidence for evidence in evidences if evidence.ships]
    left_out = {evidence.target: evidence.reason for evidence in evidences if not evidence.ships}
    needed = sbom.closure(packages)
    text = card(name, version, owner=_owner(config.release.card), exported=exported, roles=roles, evidences=shipping, left_out=left_out)
    files: dict[str, bytes | Path] = {f"kubernetes/{path}": text for path, text in kubernetes.manifests(name, version, shipping, packages).items()}
    repositories = {"python": triton.python_repository(name, exported, *_plan(warm[shipping[0].target]))}
    for target in [evidence.target for evidence in shipping if evidence.target in triton.BACKENDS and config.release.native_triton]:
        engine = Engine.load(engines[target] / "engine.json")
        if content := _content(target, engine, engines[target], quantized):
            repositories[triton.BACKENDS[target][0]] = triton.native_repository(name, target, exported, *_plan(warm[target]), content)
    files |= {f"triton/{repository}/{path}": content for repository, made in repositories.items() for path, content in made.items()}
    return files | {
        "MODEL_CARD.md": text.encode(),
        "LICENCES.md": sbom.licences(needed).encode(),
        "sbom.cdx.json": canonical_json(sbom.cyclonedx(name, version, needed)).encode(),
    }


def _plan(folder: Path) -> tuple[WarmupPlan, Batch]:
    return WarmupPlan.load(folder / "plan.json"), read_arrays(folder / "rows.npz", what="Warm-up rows", next="run `dvc repro`")


def _content(target: str, engine: Engine, folder: Path, quantized: Path) -> dict[str, Path]:
    """What Triton's own backend of `target` reads, the model itself first: the engine's files; for OpenVINO, which reads no blob, the Q/DQ model.

    Empty where that model is not here.
    """
    if target != "openvino-cpu":
        return {name: folder / name for name in sorted(engine.files, key=lambda name: (not name.startswith("model."), name))}
    for path in sorted(quantized.glob("*/model.onnx")):
        if sha256_file(path) == engine.model_sha256:
            return {each.name: each for each in [path, *sorted(path.parent.iterdir())] if each.suffix not in (".json", ".html", ".svg")}
    return {}


def _owner(path: str | None) -> str | None:
    try:
        return Path(path).read_text(encoding="utf-8") if path else None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            "The model card of yours cannot be read", where=f"release.card: {path}", expected="a Markdown file", got=str(error)
        ) from error
