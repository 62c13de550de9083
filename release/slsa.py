"""Where a bundle comes from, as an in-toto statement with SLSA provenance (https://slsa.dev/spec/v1.0/provenance).

It makes no claim to a SLSA level: it is written by the build itself, and signed with the bundle. No time and no machine is in it, so that equal
inputs give equal bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pipeline.records import File

BUILD_TYPE = "urn:qwarm:release:1"


def statement(files: Mapping[str, File], provenance: Mapping[str, Any], roles: Mapping[str, str], model: Mapping[str, str]) -> dict[str, Any]:
    """`files`: what the statement is about; `roles`: Merkle root of each; `model`: name to sha256 of the float model and its checkpoint."""
    sources = {"qwarm code": str(provenance.get("code_sha256", "")), **model}
    sources |= {f"dvc.lock: {stage}" if stage != "" else "dvc.lock": digest for stage, digest in provenance.get("lock_entries_sha256", {}).items()}
    dependencies = [{"name": name, "digest": {"sha256": digest}} for name, digest in sorted(sources.items()) if digest]
    dependencies += [{"name": f"data role {role}", "digest": {"merkleRoot": root}} for role, root in sorted(roles.items())]
    return {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [{"name": path, "digest": {"sha256": file.sha256}} for path, file in sorted(files.items())],
        "predicateType": "https://slsa.dev/provenance/v1",
        "predicate": {
            "buildDefinition": {
                "buildType": BUILD_TYPE,
                "externalParameters": provenance.get("parameters", {}),
                "resolvedDependencies": dependencies,
            },
            "runDetails": {"builder": {"id": "urn:qwarm", "version": provenance.get("versions", {})}},
        },
    }
