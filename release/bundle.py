"""Pack what may ship into one folder that a serving host can check and load. Every check comes before the first byte."""

from __future__ import annotations

import itertools
import re
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pipeline.arrays import read_arrays
from pipeline.digests import sha256_arrays, sha256_bytes
from pipeline.errors import ConfigError, Refused
from pipeline.files import canonical_json, replacing_folder
from pipeline.records import Engine, Evidence, ExportedModel, File, ReleasedTarget, ReleaseManifest, Roles, WarmupPlan
from release import signing, slsa
from release.contents import AGAIN, Content, as_file, belongs
from release.host_preprocess import host_preprocess
from release.host_readme import render
from release.keyless import Keyless
from release.private_paths import refuse_private_paths
from warmup.plan import batch_axis, expected_name

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,127}")
MADE_HERE = ("README.md", "provenance.json", "manifest.json", "manifest.sha256", signing.SIGNATURE)


def pack(
    releases: str | Path,
    *,
    name: str,
    version: str,
    evidences: Sequence[Evidence],
    engines: Mapping[str, Path],
    warm: Mapping[str, Path],
    exported: ExportedModel,
    roles: Roles,
    preprocess: tuple[Path, str],
    host_packages: Mapping[str, str],
    provenance: Mapping[str, Any],
    additions: Mapping[str, Content] | None = None,
    staging: str | Path | None = None,
    private: Iterable[str | Path] = (),
    key: signing.SigningKey | Keyless | None = None,
) -> Path:
    """Write `releases`/<name>-<version>/ whole, or raise and leave the previous one byte for byte as it was.

    `evidences`: one a target; those whose `ships` is true go in, the others are left out with their reason.
    `engines` and `warm`: folder of each shipping target (engine.json and its files; plan.json, rows.npz,
    expected.npz). `preprocess`: the file and the name of the function in it. `host_packages`: pinned versions that a host
    installs. `additions`: more files by their path, for people and other servers; no host of ours reads them. `staging`:
    where it is assembled (same file system; default `.packing` beside `releases`). `private`: folders of this machine whose path
    may be in no file, besides the current and the home folder. `key`: signs the whole folder.

    Equal arguments give equal bytes, the signature's own file apart. Raises Refused (exit code 3) when nothing ships, a verdict
    refuses the release, or the parts do not belong together; ConfigError for a name, version or preprocessing that no host can take.
    """
    for label, value in (("name", name), ("version", version)):
        if not NAME.fullmatch(value) or ".." in value:
            raise ConfigError(f"A bundle cannot have this {label}", where=f"release.{label}", expected=NAME.pattern, got=repr(value))
    shipping = decide(evidences)
    absent = {evidence.target: evidence.reason for evidence in evidences if not evidence.ships}
    contents: dict[str, Content] = {
        "labels.json": canonical_json(list(roles.class_names)).encode(),
        "preprocess.py": host_preprocess(*preprocess, roles),
        "warmup/rows.npz": Path(warm[shipping[0].target]) / "rows.npz",
    }
    targets = []
    for evidence in shipping:
        released, files = target_files(evidence, Path(engines[evidence.target]), Path(warm[evidence.target]), exported, roles)
        targets.append(released)
        contents.update({f"{released.folder}/{path}": content for path, content in files.items()})
    contents.update(added(additions or {}, contents))
    listed = {path: as_file(content) for path, content in sorted(contents.items())}
    contents["README.md"] = render(
        name=name,
        version=version,
        exported=exported,
        evidences=shipping,
        left_out=absent,
        host_packages=host_packages,
        signature=key.kind if key else signing.UNSIGNED,
        labels=len(roles.class_names),
        sizes=sizes(listed),
    ).encode()
    listed["README.md"] = as_file(contents["README.md"])
    roots = {role: entry.merkle_root for role, entry in sorted(roles.roles.items())}
    model = {"float model (ONNX)": exported.onnx_sha256, "checkpoint": exported.checkpoint_sha256}
    contents["provenance.json"] = canonical_json(slsa.statement(listed, provenance, roots, model)).encode()
    listed["provenance.json"] = as_file(contents["provenance.json"])
    machines = {evidence.target: evidence.bound_to["machine_id"] for evidence in shipping if "machine_id" in evidence.bound_to}
    manifest = ReleaseManifest(
        name=name,
        version=version,
        signature=key.kind if key else signing.UNSIGNED,
        files=listed,
        inputs=exported.inputs,
        outputs=exported.outputs,
        shapes=exported.shapes,
        preprocess=f"preprocess.py:{preprocess[1]}",
        targets=tuple(targets),
        left_out=absent,
        roles=roots,
        provenance={**provenance, "host_packages": dict(host_packages), "machines": machines},
    ).to_text()
    contents["manifest.json"] = manifest.encode()
    contents["manifest.sha256"] = f"{sha256_bytes(manifest.encode())}  manifest.json\n".encode()
    refuse_private_paths(contents, [Path.cwd(), Path.home(), *private])
    final = Path(releases) / f"{name}-{version}"
    with replacing_folder(final, staging or Path(releases).parent / ".packing") as folder:
        write_contents(folder, contents, listed)
        if key is not None:
            signing.sign(folder, key, final.name)
    return final


def sizes(listed: Mapping[str, File]) -> dict[str, int]:
    """Bytes by part: each target, each other folder, and the files beside them."""
    found: dict[str, int] = {}
    for path, file in listed.items():
        part = "/".join(path.split("/")[: 2 if path.startswith("targets/") else 1]) if "/" in path else "beside them"
        found[part] = found.get(part, 0) + file.bytes
    return found


def added(additions: Mapping[str, Content], contents: Mapping[str, Content]) -> dict[str, Content]:
    """The additions, once none takes another file's place or leaves the bundle; raises Refused."""
    for path in additions:
        if path in contents or path in MADE_HERE or ".." in Path(path).parts or Path(path).is_absolute():
            raise Refused("A file cannot be added to the bundle", where=path, expected="a path of its own, inside the bundle", got=path)
    return dict(additions)


def decide(evidences: Sequence[Evidence]) -> list[Evidence]:
    """The evidence of the targets that ship, in the given order; Refused when there is none or one refuses the release."""
    refused = [evidence for evidence in evidences if evidence.refuses]
    shipping = [evidence for evidence in evidences if evidence.ships]
    if refused or not shipping:
        reasons = refused or evidences
        raise Refused(
            "The verdict of a target refuses the release" if refused else "No target may ship",
            where=", ".join(f"evidence/{evidence.target}.json" for evidence in reasons) or "evidence",
            expected="every required target ships, no UNDECIDED where release.undecided is refuse, and one target at least",
            got="; ".join(f"{evidence.target}: {evidence.verdict.name}, {evidence.reason}" for evidence in reasons) or "no evidence",
            next="run `dvc repro report` and read build/report/report.html; the previous bundle is untouched",
        )
    return shipping


def target_files(
    evidence: Evidence, engine_folder: Path, warm_folder: Path, exported: ExportedModel, roles: Roles
) -> tuple[ReleasedTarget, dict[str, Content]]:
    """One target's entry in the manifest and its files by their path in `targets/<target>/`, all bound to each other."""
    target = evidence.target
    engine, plan = Engine.load(engine_folder / "engine.json"), WarmupPlan.load(warm_folder / "plan.json")
    belongs("The engine", f"{engine_folder}: target", target, engine.target)
    belongs("The engine's precision", f"{engine_folder}: precision", "int8", engine.precision)
    declared = [str((record.inputs, record.outputs, sorted(record.shapes.items()))) for record in (exported, engine)]
    belongs("The engine", f"{engine_folder}: inputs, outputs, shapes", *declared)
    belongs("The warm-up plan", f"{warm_folder}/plan.json: engine_sha256", engine.digest(), plan.engine_sha256)
    rows, expected = (read_arrays(warm_folder / name, what="Warm-up arrays", next=AGAIN) for name in ("rows.npz", "expected.npz"))
    belongs("The warm-up plan", f"{warm_folder}/plan.json: rows_sha256", sha256_arrays(rows), plan.rows_sha256)
    belongs("The warm-up plan", f"{warm_folder}/plan.json: preprocess_sha256", roles.preprocess_sha256, plan.preprocess_sha256)
    names = recorded_names(plan, exported)
    belongs("The recorded output", f"{warm_folder}/expected.npz: names", str(names), str(sorted(expected)))
    count = len(next(iter(rows.values())))
    belongs("The recorded output", f"{warm_folder}/expected.npz: rows", str([count] * len(names)), str([len(array) for array in expected.values()]))
    for key, digest in (("engine_sha256", engine.digest()), ("plan_sha256", plan.digest())):
        belongs("The evidence", f"evidence/{target}.json: bound_to.{key}", digest, evidence.bound_to.get(key, "nothing"))
    files: dict[str, Content] = {
        "engine.json": engine.to_text().encode(),
        "plan.json": plan.to_text().encode(),
        "expected.npz": warm_folder / "expected.npz",
        "evidence.json": evidence.to_text().encode(),
    }
    for path, file in engine.files.items():
        if path in files or ".." in Path(path).parts or Path(path).is_absolute():
            raise Refused("An engine file cannot have this name", where=f"{engine_folder}: files", expected="a name of its own", got=path)
        belongs("An engine file", str(engine_folder / path), str(file), str(as_file(engine_folder / path)))
        files[path] = engine_folder / path
    released = ReleasedTarget(
        target=target,
        folder=f"targets/{target}",
        verdict=evidence.verdict,
        platform_key=engine.platform_key,
        key_fields=engine.key_fields,
        engine_sha256=engine.digest(),
        plan_sha256=plan.digest(),
        evidence_sha256=evidence.digest(),
        checks=evidence.checks,
        figures=evidence.figures,
    )
    return released, files


def recorded_names(plan: WarmupPlan, exported: ExportedModel) -> list[str]:
    """Names in expected.npz: each output, at each combination of sizes that the plan warms beside the batch."""
    axis = batch_axis(exported.inputs)
    others = {name: sizes for name, sizes in plan.ladder.items() if name != axis}
    combinations = [dict(zip(others, sizes, strict=True)) for sizes in itertools.product(*others.values())]
    return sorted({expected_name(spec.name, sizes) for spec in exported.outputs for sizes in combinations})


def write_contents(folder: Path, contents: Mapping[str, Content], listed: Mapping[str, File]) -> None:
    """Fill `folder`; raises Refused when a source changed while it was copied."""
    for path, content in contents.items():
        place = folder / path
        place.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, bytes):
            place.write_bytes(content)
        else:
            shutil.copyfile(content, place)
        place.chmod(0o644)
        if path in listed:
            belongs(
                "A file changed while it was packed and", str(content) if isinstance(content, Path) else path, str(listed[path]), str(as_file(place))
            )
