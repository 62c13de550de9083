"""The README.md inside a bundle: for the person who runs a serving host and knows nothing of the pipeline."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from pipeline.records import Check, Evidence, ExportedModel, TensorSpec

HEAD = """# {name} {version}

An INT8 engine that answers its first request at full speed. Engine, preprocessing, warm-up plan and the proof of each claim are in this folder.

## Start it

The host needs Python 3.11 on Linux, and

    python3 -m pip install {packages}

`qwarm.pyz` and the public key come to the host by another road than this folder (an image, a secret): a bundle cannot vouch for itself.
{trust}

    python3 qwarm.pyz verify {folder} {origin}
    python3 qwarm.pyz serve {folder} {origin} --port 8000 --state /run/{name} &
    python3 qwarm.pyz ready {folder} --state /run/{name}
    python3 qwarm.pyz status --state /run/{name}
    python3 qwarm.pyz warm {folder} {origin}

- `verify` checks the signature, then every byte against manifest.json; exit code 3 names what differs. Without `--key` it says "integrity only,
  origin unknown" and refuses, unless told `--allow-unsigned`.
- `serve` verifies, loads and warms, then answers; `/v2/health/live` answers from the first moment, and `/metrics` in Prometheus' text format.
- `ready` exits 0 once that process is warm and only while it lives. It answers within 300 ms: use it as a readiness probe.
- `status` shows what is warm, since when and where. `warm` measures first request and steady state on this host, in fresh processes.

`serve` speaks the Open Inference Protocol v2 on 127.0.0.1 (`--host` changes that): `/v2/health/live`, `/v2/health/ready`, `/v2/models/{name}`,
`/v2/models/{name}/infer`. It takes the tensors below, already preprocessed. SIGTERM lets running requests finish.

## In your own Python server

Put `qwarm.pyz` on `PYTHONPATH`.

    import fleet

    served = fleet.open("{folder}", state="/run/{name}", {argument})
    inputs = served.prepare(raw)
    outputs = served.infer(inputs)

When `open` returns, the bundle is verified, loaded and warm in this process. `prepare` takes one raw row, or a list of rows, to tensors with a batch
axis (preprocess.py). `infer` pads a size that was not warmed to the next that was (the batch, and each axis whose inputs declare a pad value), and
cuts the answer back; many threads may call it.
`served.labels` names the classes. Every worker process opens the bundle for itself: warmth does not outlive a process and is not inherited by a fork.
"""


def render(
    *,
    name: str,
    version: str,
    exported: ExportedModel,
    evidences: Sequence[Evidence],
    left_out: Mapping[str, str],
    host_packages: Mapping[str, str],
    signature: str,
    labels: int,
    sizes: Mapping[str, int],
) -> str:
    """Markdown of the README; the same records give the same text."""
    packages = " ".join(f"{package}=={pinned}" for package, pinned in sorted(host_packages.items()))
    parts = [HEAD.format(name=name, version=version, folder=f"{name}-{version}", packages=packages, **trust(signature))]
    parts += ["## Tensors\n", *table(("", "name", "type", "shape"), tensor_rows(exported)), ""]
    parts += [f"{axis}: {sizes.min} to {sizes.max}, usually {sizes.opt}." for axis, sizes in sorted(exported.shapes.items())]
    parts += ["", "## What was measured\n"]
    for evidence in evidences:
        machine = ", ".join(f"{key} {value}" for key, value in sorted(evidence.machine.items()))
        parts += [
            f"**{evidence.target}**: {evidence.verdict.name}, measured {evidence.measured_at} on {machine or 'a machine that is not recorded'}.\n"
        ]
        parts += [*table(("check", "verdict", "figure", "interval", "limit"), (check_row(check) for check in evidence.checks)), ""]
    parts += ["Figures are those of the building machine; `warm` measures this one.\n"]
    if left_out:
        parts += ["## Targets left out\n", *(f"- {target}: {reason}" for target, reason in sorted(left_out.items())), ""]
    parts += ["## Size\n", *table(("part", "MB"), ((part, f"{size / 1e6:.3f}") for part, size in sorted(sizes.items()))), ""]
    signed = [("signature.sigstore.json", "who made all of this: OpenSSF model-signing over every file; `model_signing verify` reads it too")]
    parts += ["## What is inside\n", *table(("file", "what it is"), inside(labels) + signed * (signature != "none")), ""]
    return "\n".join(parts).rstrip() + "\n"


def trust(signature: str) -> dict[str, str]:
    """What the README says of the key, and how its commands name it."""
    if signature == "none":
        text = "This bundle is not signed: nothing says who made it."
        return {"trust": text, "origin": "--allow-unsigned", "argument": "allow_unsigned=True"}
    if "development" in signature:
        text = "This bundle is signed with a development key, which its own pipeline made: enough to try, no proof of who made it."
        return {"trust": text, "origin": "--key development.pub", "argument": 'key="development.pub"'}
    if "sigstore" in signature:
        text = (
            'This bundle is signed by an identity, without a key: write what its maker tells you, {"identity": ..., "issuer": ...}, to release.json.'
        )
        return {"trust": text, "origin": "--key release.json", "argument": 'key="release.json"'}
    return {"trust": "This bundle is signed; ask its maker for the public key.", "origin": "--key release.pub", "argument": 'key="release.pub"'}


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Lines of a Markdown table."""
    body = [" | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in row) for row in rows]
    return [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}", *(f"| {line} |" for line in body)]


def tensor_rows(exported: ExportedModel) -> list[tuple[str, str, str, str]]:
    """One row for each input and output."""

    def row(role: str, spec: TensorSpec) -> tuple[str, str, str, str]:
        return role, spec.name, spec.dtype, "x".join(str(axis) for axis in spec.shape)

    return [*(row("input", spec) for spec in exported.inputs), *(row("output", spec) for spec in exported.outputs)]


def check_row(check: Check) -> tuple[str, str, str, str, str]:
    """A check as text: figures with four significant digits and their unit."""
    unit = {"fraction": "", "ratio": "x"}.get(check.unit, f" {check.unit}")

    def number(value: float | None) -> str:
        return "-" if value is None else f"{value:.4g}{unit}"

    interval = "-" if check.interval is None else f"{number(check.interval.low)} to {number(check.interval.high)}"
    bound = {"max": "at most ", "min": "at least "}.get(check.limit_is, "")
    verdict = check.verdict.name + (" (excused)" if check.excused else "")
    return check.name, verdict, number(check.figure), interval, "-" if check.limit is None else bound + number(check.limit)


def inside(labels: int) -> list[tuple[str, str]]:
    """What each kind of file is for."""
    return [
        ("manifest.json", "every file's size and sha256, targets, verdicts, data-role digests, provenance"),
        ("provenance.json", "where all of this comes from: an in-toto statement with SLSA provenance"),
        ("manifest.sha256", "sha256 of manifest.json (`sha256sum -c manifest.sha256`)"),
        ("preprocess.py", "one raw row to the model's tensors; the very function that calibration and validation used"),
        ("labels.json", f"names of the {labels} classes, by index" if labels else "an empty list: the model has no classes"),
        ("warmup/rows.npz", "real rows that make an engine hot; disjoint from all other data roles"),
        ("targets/T/engine.json", "what target T's engine was built from and for, its files and its census of executed precision"),
        ("targets/T/plan.json", "the warm-up plan: ordered steps, bound to engine and rows"),
        ("targets/T/expected.npz", "the recorded output of each warm-up row; a host that disagrees does not get ready"),
        ("targets/T/evidence.json", "each gate's verdict with figure, interval and limit"),
        ("MODEL_CARD.md, LICENCES.md", "for people: what was shown and what was not; the licences of what a host installs"),
        ("triton/", "model repositories for Triton: `python` opens this bundle and warms it; the others are for Triton's own backends"),
        ("kubernetes/", "an image, a Deployment with probes, a Service"),
        ("sbom.cdx.json", "what a host installs and what that pulls in, as CycloneDX"),
    ]
