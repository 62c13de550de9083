"""The shapes a fleet takes: Triton repositories and Kubernetes manifests, inside the bundle; checked by Triton and by Kubernetes' own schemas.

Those checks need packages that do not fit into qwarm's environment (`make serving-env`, or QWARM_SERVING=path/to/python).
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from fleet.state import readiness
from fleet.verify import verify
from pipeline.arrays import read_arrays
from pipeline.errors import ConfigError
from pipeline.loading import load_object
from pipeline.records import TensorSpec, WarmupPlan
from release import bundle, kubernetes, pyz, triton

ROOT = Path(__file__).resolve().parents[2]
make_parts: Callable[[Path], dict[str, Any]] = load_object("tests/fleet/tiny.py:make_parts", ROOT)
TARGET = "openvino-cpu"
SERVING = Path(os.environ.get("QWARM_SERVING") or ROOT / ".serving/bin/python")
needs_serving = pytest.mark.skipif(not SERVING.exists(), reason="Triton and Kubernetes' schemas are not installed: make serving-env")


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return make_parts(tmp_path_factory.mktemp("parts"))


def plan_of(parts: dict[str, Any]) -> tuple[WarmupPlan, dict[str, np.ndarray]]:
    warm = parts["warm"][TARGET]
    return WarmupPlan.load(warm / "plan.json"), read_arrays(warm / "rows.npz", what="rows")


@pytest.fixture(scope="module")
def packed(parts: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle with every repository and the manifests; its ONNX model stands for what the native backends read."""
    import dataclasses

    plan, rows = plan_of(parts)
    [evidence] = parts["evidences"]
    measured = dataclasses.replace(evidence, figures={**evidence.figures, "ready_ms": 4200.0, "peak_rss_mb": 110.0})
    model = parts["engines"][TARGET].parents[2] / "model.onnx"
    made = {"python": triton.python_repository("tiny", parts["exported"], plan, rows)}
    for target, (folder, _, _) in triton.BACKENDS.items():
        made[folder] = triton.native_repository("tiny", target, parts["exported"], plan, rows, {"model.onnx": model, "weights.bin": model})
    additions = {f"triton/{repository}/{path}": content for repository, files in made.items() for path, content in files.items()}
    additions |= {f"kubernetes/{path}": text for path, text in kubernetes.manifests("tiny", "0.0.1", [measured], parts["host_packages"]).items()}
    return bundle.pack(tmp_path_factory.mktemp("release"), **{**parts, "additions": additions})


def test_every_file_is_in_the_manifest_and_verifies(packed: Path) -> None:
    listed = set(verify(packed, allow_unsigned=True).manifest.files)
    assert {"triton/python/tiny/config.pbtxt", "triton/python/tiny/1/model.py", "triton/python/tiny/warmup/image"} <= listed
    assert {"triton/openvino/tiny/1/model.onnx", "triton/onnxruntime/tiny/1/weights.bin", "triton/tensorrt/tiny/1/model.plan"} <= listed
    assert {"kubernetes/deployment.yaml", "kubernetes/service.yaml", "kubernetes/kustomization.yaml", "kubernetes/Dockerfile"} <= listed


def test_the_warm_up_request_is_a_real_row(packed: Path, parts: dict[str, Any]) -> None:
    _, rows = plan_of(parts)
    assert (packed / "triton/python/tiny/warmup/image").read_bytes() == rows["image"][0].tobytes()
    compile((packed / "triton/python/tiny/1/model.py").read_text(), "model.py", "exec")


@pytest.mark.parametrize("name", ["a/b", "..", "a b", "", "näme", "x" * 129, "-x"])
def test_a_name_that_triton_cannot_take_is_refused(parts: dict[str, Any], name: str) -> None:
    with pytest.raises(ConfigError, match="Triton cannot have this model name"):
        triton.python_repository(name, parts["exported"], *plan_of(parts))


def test_a_row_is_fitted_to_the_usual_size_where_it_may_be_padded() -> None:
    from pipeline.records import AxisRange

    spec = TensorSpec("ids", "int64", ("batch", "sequence"), 7.0)
    shapes = {"batch": AxisRange(1, 1, 4), "sequence": AxisRange(1, 4, 8)}
    assert triton._fitted(np.array([1, 2]), spec, shapes).tolist() == [1, 2, 7, 7]
    assert triton._fitted(np.arange(6), spec, shapes).tolist() == [0, 1, 2, 3]
    assert triton._fitted(np.arange(6), TensorSpec("ids", "int64", ("batch", "sequence")), shapes).tolist() == [0, 1, 2, 3, 4, 5]


def test_probes_take_their_budgets_from_what_was_measured(packed: Path) -> None:
    pod = yaml.safe_load((packed / "kubernetes/deployment.yaml").read_text())["spec"]["template"]["spec"]
    [server] = pod["containers"]
    assert server["startupProbe"]["failureThreshold"] * server["startupProbe"]["periodSeconds"] == 42  # ten times the measured 4.2 s
    assert server["resources"]["requests"]["memory"] == "192Mi"  # half as much again as 110 MB, in steps of 64
    every = [*pod["initContainers"], server]
    assert [container["name"] for container in every] == ["verify", "seed-caches", "server"]
    for container in every:
        assert container["securityContext"]["readOnlyRootFilesystem"]
        assert "--key" in container["command"]
    writable = {mount["mountPath"] for mount in server["volumeMounts"] if not mount.get("readOnly")}
    assert writable == {"/state", "/cache", "/tmp"}
    assert {volume["name"] for volume in pod["volumes"] if "emptyDir" in volume} == {"state", "cache", "tmp"}
    assert pod["securityContext"]["runAsNonRoot"]


def test_the_commands_of_the_manifests_are_the_hosts_own(packed: Path) -> None:
    from fleet.main import build_parser

    pod = yaml.safe_load((packed / "kubernetes/deployment.yaml").read_text())["spec"]["template"]["spec"]
    commands = [container["command"] for container in [*pod["initContainers"], *pod["containers"]]]
    commands += [pod["containers"][0][probe]["exec"]["command"] for probe in ("startupProbe", "readinessProbe")]
    for command in commands:
        assert command[:2] == ["python", "/opt/qwarm.pyz"]
        assert build_parser().parse_args(command[2:]).command == command[2]


def in_serving(code: str, *arguments: str) -> dict[str, Any]:
    done = subprocess.run([str(SERVING), "-c", code, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


PARSE = """
import json, sys
from google.protobuf import json_format, text_format
from tritonclient.grpc import model_config_pb2
found = {}
for path in sys.argv[1:]:
    config = text_format.Parse(open(path).read(), model_config_pb2.ModelConfig())
    found[path] = json_format.MessageToDict(config, preserving_proto_field_name=True)
print(json.dumps(found))
"""


@needs_serving
def test_each_configuration_is_what_tritons_own_protobuf_takes(packed: Path) -> None:
    paths = sorted(str(path) for path in packed.glob("triton/*/*/config.pbtxt"))
    assert len(paths) == 4
    for path, config in in_serving(PARSE, *paths).items():
        assert (config["name"], config["max_batch_size"]) == ("tiny", 4)
        assert config["input"] == [{"name": "image", "data_type": "TYPE_FP32", "dims": ["1", "8", "8"]}]
        assert config["output"] == [{"name": "logits", "data_type": "TYPE_FP32", "dims": ["3"]}]
        assert [sample["batch_size"] for sample in config["model_warmup"]] == [1, 4]
        assert config["version_policy"] == {"specific": {"versions": ["1"]}}
        assert config["instance_group"][0]["kind"] == ("KIND_GPU" if "tensorrt" in path else "KIND_CPU")


VALIDATE = """
import json, sys, yaml, kubernetes_validate
for path in sys.argv[1:]:
    kubernetes_validate.validate(yaml.safe_load(open(path)), "1.34", strict=True)
print(json.dumps({"checked": len(sys.argv) - 1}))
"""


@needs_serving
def test_the_manifests_fit_kubernetes_schemas(packed: Path, tmp_path: Path) -> None:
    paths = [str(packed / "kubernetes" / name) for name in ("deployment.yaml", "service.yaml")]
    assert in_serving(VALIDATE, *paths) == {"checked": 2}
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text(Path(paths[0]).read_text().replace("replicas: 2", "replicas: two"))
    with pytest.raises(AssertionError, match="replicas|two"):
        in_serving(VALIDATE, str(wrong))


@pytest.fixture
def server(packed: Path, tmp_path: Path) -> Iterator[tuple[str, Path, subprocess.Popen[bytes]]]:
    """A real tritonserver on the bundle's Python repository: its address and the state folder."""
    site = Path(subprocess.check_output([str(SERVING), "-c", "import pytriton; print(pytriton.__path__[0])"], text=True).strip())
    home, backends = site / "tritonserver", tmp_path / "backends"
    shutil.copytree(home / "backends", backends)
    stub = backends / "python/triton_python_backend_stub"
    shutil.copy(home / "python_backend_stubs/3.11/triton_python_backend_stub", stub)
    stub.chmod(0o755)
    host = pyz.write(tmp_path / "qwarm.pyz", ROOT)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    libraries = [str(site.parent / "nvidia_pytriton.libs"), str(Path(sys.base_prefix) / "lib"), str(home / "external_libs")]
    packages = next(path for path in sys.path if path.endswith("site-packages"))
    environment = {
        **os.environ, "LD_LIBRARY_PATH": os.pathsep.join(libraries), "PYTHONPATH": packages,
        "QWARM_PYZ": str(host), "QWARM_ALLOW_UNSIGNED": "1", "QWARM_STATE": str(tmp_path / "state"),
    }  # fmt: skip
    command = [
        str(home / "bin/tritonserver"), f"--model-repository={packed / 'triton/python'}", f"--backend-directory={backends}",
        "--http-address=127.0.0.1", f"--http-port={port}", "--allow-grpc=false", "--allow-metrics=false", "--log-verbose=0",
    ]  # fmt: skip
    with open(tmp_path / "log", "wb") as log, subprocess.Popen(command, env=environment, stdout=log, stderr=log) as process:
        try:
            yield f"http://127.0.0.1:{port}", tmp_path / "state", process
        finally:
            process.terminate()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()


def answer(url: str, body: bytes | None = None) -> tuple[int, bytes]:
    try:
        with urllib.request.urlopen(url, data=body, timeout=30) as response:
            return response.status, response.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()
    except OSError:
        return 0, b""


@needs_serving
def test_a_real_triton_is_ready_only_after_the_warm_up_and_answers_as_recorded(
    server: tuple[str, Path, subprocess.Popen[bytes]], packed: Path, parts: dict[str, Any], tmp_path: Path
) -> None:
    url, state, process = server
    warm = False
    while answer(f"{url}/v2/health/ready")[0] != 200:
        assert process.poll() is None, (tmp_path / "log").read_text()[-3000:]
        time.sleep(0.05)
    warm = readiness(state, packed)[0] is not None  # written by fleet.open behind the last step of the plan
    assert warm, (tmp_path / "log").read_text()[-3000:]
    _, rows = plan_of(parts)
    expected = read_arrays(packed / f"targets/{TARGET}/expected.npz", what="expected")["logits"]
    for count in (1, 3):  # three rows are padded to the warmed four
        tensor = {"name": "image", "datatype": "FP32", "shape": [count, 1, 8, 8], "data": rows["image"][:count].ravel().tolist()}
        status, body = answer(f"{url}/v2/models/tiny/infer", json.dumps({"inputs": [tensor]}).encode())
        assert status == 200, body
        [output] = json.loads(body)["outputs"]
        assert output["shape"] == [count, 3]
        assert np.allclose(np.array(output["data"]).reshape(count, 3), expected[:count], rtol=1e-4, atol=1e-5)
    verify(packed, allow_unsigned=True)  # the server wrote nothing into it
