"""What a bundle holds beside what its host reads: for people, auditors and other servers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.errors import ConfigError
from pipeline.files import canonical_json
from pipeline.records import Evidence, ExportedModel, Roles
from release import sbom
from release.card import card

if TYPE_CHECKING:
    from pipeline.config import Config


def additions(
    config: Config, exported: ExportedModel, roles: Roles, evidences: Sequence[Evidence], packages: Mapping[str, str]
) -> dict[str, bytes | Path]:
    """Files by their path in the bundle. Raises ConfigError for a card that cannot be read."""
    name, version = config.release.name, config.release.version
    shipping = [evidence for evidence in evidences if evidence.ships]
    left_out = {evidence.target: evidence.reason for evidence in evidences if not evidence.ships}
    needed = sbom.closure(packages)
    text = card(name, version, owner=_owner(config.release.card), exported=exported, roles=roles, evidences=shipping, left_out=left_out)
    return {
        "MODEL_CARD.md": text.encode(),
        "LICENCES.md": sbom.licences(needed).encode(),
        "sbom.cdx.json": canonical_json(sbom.cyclonedx(name, version, needed)).encode(),
    }


def _owner(path: str | None) -> str | None:
    try:
        return Path(path).read_text(encoding="utf-8") if path else None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            "The model card of yours cannot be read", where=f"release.card: {path}", expected="a Markdown file", got=str(error)
        ) from error
