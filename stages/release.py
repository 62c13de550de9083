"""Stage `release`: check every verdict, then pack and sign. Refuses with exit 3 before it writes one byte."""

from __future__ import annotations

from pathlib import Path

from calibration.prove import prove_disjoint
from engines import backend
from pipeline.config import load_config
from pipeline.platforms import package_version
from pipeline.records import ExportedModel, Platform, Roles
from pipeline.release_config import SignConfig
from release import additions, bundle, pyz, signing, waivers
from release.bindings import belong, bindings, judging
from release.keyless import Keyless, identity_text, open_keyless
from release.previous import refuse_worse, since
from release.provenance import provenance
from release.published import refuse_published
from release.rejudge import refuse_other_verdicts
from release.runners import refuse_unsigned
from stages import paths
from stages.evidence import evidences

HOST_PACKAGES = ("numpy",)
"""What every host needs; a signature adds what checks it, each shipping target the runtime that its backend names."""


def run() -> str:
    config = load_config(paths.PARAMS)
    refuse_published(config.release.name, config.release.version)
    waivers.refuse_forged(config.release)
    found = evidences()
    refuse_other_verdicts(found, config)
    shipping = [evidence.target for evidence in bundle.decide(found)]
    exported = ExportedModel.load(paths.EXPORT / "exported.json", next="run `dvc repro export`")
    roles = Roles.load(paths.ROLES / "roles.json", next="run `dvc repro roles`")
    prove_disjoint(roles)
    platforms = {target: Platform.load(paths.platform(target), next=f"run `dvc repro platform@{target}`") for target in shipping}
    belong(found, {target: {**bindings(config, exported, roles, platform), **judging()} for target, platform in platforms.items()})
    refuse_unsigned(found, config.release.runners)
    waivers.refuse_outdated(found, config.release, waivers.today())
    if config.release.no_worse:
        refuse_worse(since(paths.RELEASE, config, found, roles, {}))
    key = _signer(config.release.sign)
    packages = {package: package_version(package) for package in (*HOST_PACKAGES, *((key.host_package,) if key else ()))}
    for platform in platforms.values():
        packages |= runtime_versions(platform)
    engines = {target: paths.ENGINES / target / "int8" for target in shipping}
    warm = {target: paths.WARM / target for target in shipping}
    source, _, function = config.data.preprocess.partition(":")
    folder = bundle.pack(
        paths.RELEASE,
        name=config.release.name,
        version=config.release.version,
        evidences=found,
        engines=engines,
        warm=warm,
        exported=exported,
        roles=roles,
        preprocess=(Path(source), function),
        host_packages=packages,
        additions=additions.additions(config, exported, roles, found, packages, engines=engines, warm=warm, quantized=paths.CHOSEN),
        provenance=provenance(paths.LOCK, config.model_dump(mode="json")),
        staging=paths.PACKING,
        key=key,
    )
    host = pyz.write(paths.RELEASE / "qwarm.pyz", Path(__file__).resolve().parents[1])
    if key is None:
        return f"{folder} (not signed) and {host}"
    if isinstance(key, Keyless):
        return f"{folder}, signed by way of Sigstore (hosts verify it with --key FILE of {identity_text(folder / signing.SIGNATURE)}), and {host}"
    if not key.development:
        return f"{folder}, signed, and {host}"
    return f"{folder}, signed by a development key ({key.write_public(paths.DEVELOPMENT_PUBLIC_KEY)}), and {host}"


def _signer(sign: SignConfig | None) -> signing.SigningKey | Keyless | None:
    if sign is None:
        return None
    return open_keyless(sign.trust_config) if sign.key is None else signing.open_key(sign.key, development=sign.development)


def runtime_versions(platform: Platform) -> dict[str, str]:
    """A target's runtime packages in the versions that its engine was built and measured with, which this machine may not have."""
    fields = platform.key_fields
    return {
        package: fields.get(package.replace("-", "_")) or fields.get(package.removesuffix("-gpu")) or package_version(package)
        for package in backend(platform.target).HOST_PACKAGES[platform.target]
    }
