"""The packages that a host of a bundle installs, with what they pull in: a CycloneDX 1.6 list, and their licences as Markdown.

https://cyclonedx.org/docs/1.6/json/. Without a serial number and a time, so that equal packages give equal bytes.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from importlib import metadata
from typing import Any

UNKNOWN = "not stated by the package"


@dataclasses.dataclass(frozen=True)
class Package:
    """`needs` are names; `licence` is what the distribution says, as an SPDX expression where it has one."""

    name: str
    version: str
    licence: str
    needs: tuple[str, ...]

    @property
    def purl(self) -> str:
        """Package URL (https://github.com/package-url/purl-spec)."""
        return f"pkg:pypi/{self.name}@{self.version}"


def closure(direct: Mapping[str, str]) -> list[Package]:
    """The packages of `direct` (name to version) and what they need on this Python, by name.

    A package that is not installed here in that version (a target built elsewhere) is listed without its needs.
    """
    found: dict[str, Package] = {}
    waiting = {normal(name): version for name, version in direct.items()}
    while waiting:
        name, version = waiting.popitem()
        if name in found:
            continue
        try:
            distribution = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            distribution = None
        if distribution is None or distribution.version != version:
            found[name] = Package(name, version, UNKNOWN, ())
            continue
        needs = _needs(distribution)
        found[name] = Package(name, version, licence(distribution), tuple(sorted(needs)))
        waiting.update({need: pinned for need, pinned in needs.items() if need not in found})
    return [found[name] for name in sorted(found)]


def _needs(distribution: metadata.Distribution) -> dict[str, str]:
    from packaging.requirements import Requirement

    needs = {}
    for text in distribution.requires or ():
        requirement = Requirement(text)
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            try:
                needs[normal(requirement.name)] = metadata.version(requirement.name)
            except metadata.PackageNotFoundError:
                continue
    return needs


def licence(distribution: metadata.Distribution) -> str:
    """The licence expression, else the short licence field, else the trove classifiers."""
    said = distribution.metadata
    for field in ("License-Expression", "License"):
        if field in said and len(said[field]) < 80 and "\n" not in said[field]:
            return said[field]
    classes = [text.rpartition(" :: ")[2] for text in said.get_all("Classifier") or [] if text.startswith("License ::")]
    return ", ".join(classes) or UNKNOWN


def normal(name: str) -> str:
    """The normalized name of a distribution (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def cyclonedx(name: str, version: str, packages: list[Package]) -> dict[str, Any]:
    """The document: the model as the subject, one component a package, and what depends on what."""
    root = f"{name}@{version}"
    components = [
        {
            "type": "library", "bom-ref": package.purl, "name": package.name, "version": package.version, "purl": package.purl,
            **({} if package.licence == UNKNOWN else {"licenses": [{"license": {"name": package.licence}}]}),
        }
        for package in packages
    ]  # fmt: skip
    refs = {package.name: package.purl for package in packages}
    needed = {need for package in packages for need in package.needs}
    direct = [package.purl for package in packages if package.name not in needed]
    dependencies = [{"ref": root, "dependsOn": direct}]
    dependencies += [{"ref": package.purl, "dependsOn": [refs[need] for need in package.needs]} for package in packages]
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": {"type": "machine-learning-model", "bom-ref": root, "name": name, "version": version}},
        "components": components,
        "dependencies": dependencies,
    }


def licences(packages: list[Package]) -> str:
    """Markdown: what each package says of its licence."""
    lines = [f"| {package.name} | {package.version} | {package.licence.replace('|', '/')} |" for package in packages]
    return "\n".join([
        "# Licences", "",
        "What a host installs, and the licence that each distribution states in its own metadata. The model's own licence is its owner's to state:",
        "see MODEL_CARD.md. `preprocess.py` is the owner's code; `qwarm.pyz` comes with its own terms.", "",
        "| package | version | licence |", "|---|---|---|", *lines, "",
    ])  # fmt: skip
