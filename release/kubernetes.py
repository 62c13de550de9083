"""Kubernetes manifests for the reference server around one bundle, with budgets from what was measured. Plain data, written as YAML.

The image holds qwarm.pyz, the host's packages and the bundle at /bundle (Dockerfile); the public key comes from a Secret, by another road. Caches on
disk are seeded by an init container; the warm-up proper runs in the process that answers, and only then is the pod ready.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from pipeline.records import Evidence

SLOWER = 10
"""How much longer than measured a start may take before it counts as failed: another machine, a cold disk, a busy node."""
LEAST_SECONDS = 30
PORT = 8000
BUNDLE, STATE, CACHE, KEY = "/bundle", "/state", "/cache", "/keys/release.pub"


def manifests(name: str, version: str, evidences: Sequence[Evidence], host_packages: Mapping[str, str], python: str = "3.11") -> dict[str, bytes]:
    """Dockerfile, deployment.yaml, service.yaml and kustomization.yaml by name. `evidences`: the targets that ship."""
    label = name.replace("_", "-").strip("-")
    labels = {"app.kubernetes.io/name": label, "app.kubernetes.io/version": version.replace("+", "_")}
    documents = {
        "deployment.yaml": deployment(label, labels, version, evidences),
        "service.yaml": {
            "apiVersion": "v1", "kind": "Service", "metadata": {"name": label, "labels": labels},
            "spec": {"selector": {"app.kubernetes.io/name": label}, "ports": [{"name": "http", "port": PORT, "targetPort": "http"}]},
        },
        "kustomization.yaml": {
            "apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization", "resources": ["deployment.yaml", "service.yaml"],
            "images": [{"name": label, "newName": label, "newTag": version.replace("+", "-")}],
        },
    }  # fmt: skip
    files = {path: yaml.safe_dump(document, sort_keys=False, width=140).encode() for path, document in documents.items()}
    return {"Dockerfile": dockerfile(name, version, host_packages, python).encode(), **files}


def deployment(label: str, labels: Mapping[str, str], version: str, evidences: Sequence[Evidence]) -> dict[str, Any]:
    """The Deployment; raises KeyError where a shipping target has no measured start."""
    ready_seconds = max(evidence.figures["ready_ms"] for evidence in evidences) / 1000
    budget = max(LEAST_SECONDS, math.ceil(SLOWER * ready_seconds))
    memory = math.ceil(max(evidence.figures["peak_rss_mb"] for evidence in evidences) * 1.5 / 64) * 64
    command = ["python", "/opt/qwarm.pyz"]
    shared: dict[str, Any] = {
        "image": f"{label}:{version.replace('+', '-')}",
        "env": [{"name": "QWARM_CACHE", "value": CACHE}, {"name": "HOME", "value": CACHE}, {"name": "PYTHONDONTWRITEBYTECODE", "value": "1"}],
        "securityContext": {"readOnlyRootFilesystem": True, "allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
        "volumeMounts": [
            {"name": "state", "mountPath": STATE}, {"name": "cache", "mountPath": CACHE}, {"name": "tmp", "mountPath": "/tmp"},
            {"name": "keys", "mountPath": "/keys", "readOnly": True},
        ],
    }  # fmt: skip
    probe: dict[str, Any] = {"exec": {"command": [*command, "ready", BUNDLE, "--state", STATE]}, "timeoutSeconds": 2}
    server: dict[str, Any] = {
        "name": "server",
        **shared,
        "command": [*command, "serve", BUNDLE, "--key", KEY, "--host", "0.0.0.0", "--port", str(PORT), "--state", STATE],
        "ports": [{"name": "http", "containerPort": PORT}],
        "startupProbe": {**probe, "periodSeconds": 1, "failureThreshold": budget},
        "readinessProbe": {**probe, "periodSeconds": 5, "failureThreshold": 2},
        "livenessProbe": {"httpGet": {"path": "/v2/health/live", "port": "http"}, "periodSeconds": 10, "timeoutSeconds": 2, "failureThreshold": 3},
        "resources": {"requests": {"cpu": "1", "memory": f"{memory}Mi"}, "limits": {"memory": f"{2 * memory}Mi"}},
    }
    verify = {"name": "verify", **shared, "command": [*command, "verify", BUNDLE, "--key", KEY]}
    seed = {"name": "seed-caches", **shared, "command": [*command, "warm", BUNDLE, "--key", KEY, "--runs", "1", "--requests", "5"]}
    pod = {
        "securityContext": {
            "runAsNonRoot": True, "runAsUser": 10001, "runAsGroup": 10001, "fsGroup": 10001, "seccompProfile": {"type": "RuntimeDefault"},
        },
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": 40,
        "initContainers": [verify, seed],
        "containers": [server],
        "volumes": [
            {"name": "state", "emptyDir": {"medium": "Memory", "sizeLimit": "16Mi"}},
            {"name": "cache", "emptyDir": {}}, {"name": "tmp", "emptyDir": {}},
            {"name": "keys", "secret": {"secretName": f"{label}-key"}},
        ],
    }  # fmt: skip
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": label, "labels": dict(labels), "annotations": {"qwarm/ready-seconds-measured": f"{ready_seconds:.3f}"}},
        "spec": {
            "replicas": 2,
            "selector": {"matchLabels": {"app.kubernetes.io/name": label}},
            "strategy": {"rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}},
            "template": {"metadata": {"labels": dict(labels)}, "spec": pod},
        },
    }


def dockerfile(name: str, version: str, host_packages: Mapping[str, str], python: str) -> str:
    """Builds the image that the Deployment names, from the folder that holds the bundle and qwarm.pyz."""
    packages = " ".join(f"{package}=={pinned}" for package, pinned in sorted(host_packages.items()))
    bundle, image = f"{name}-{version}", f"{name.replace('_', '-')}:{version.replace('+', '-')}"
    return (
        f"# docker build -t {image} -f {bundle}/kubernetes/Dockerfile .    (where {bundle}/ and qwarm.pyz are)\n"
        f"# kubectl create secret generic {name.replace('_', '-')}-key --from-file=release.pub=YOUR.pub; kubectl apply -k {bundle}/kubernetes\n"
        f"FROM python:{python}-slim\n"
        f"RUN pip install --no-cache-dir {packages}\n"
        f"COPY qwarm.pyz /opt/qwarm.pyz\n"
        f"COPY {bundle} {BUNDLE}\n"
        f"USER 10001:10001\n"
        f'ENTRYPOINT ["python", "/opt/qwarm.pyz"]\n'
    )
