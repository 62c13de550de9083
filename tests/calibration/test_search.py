"""The search for layers that stay in float, on a tiny network, in real runtimes."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from tiny_quantize import Prepared, calibration_of, model_of, prepared

from calibration import cpu_scheme, tensorrt_scheme
from calibration.exposing import Opener
from calibration.search.frontier import ALL_FLOAT, MET, NO_GAIN, PLAIN_MET, TIME, Budget
from calibration.search.run import Deployment, quantize
from calibration.variants import Job
from engines.once import deployed
from pipeline.records import QuantizedModel, Ranges
from pipeline.search_records import SearchResult

TEXT = """net (float[n, 3, 12, 12] image) => (float[n, 6] logits) {
    a = Conv <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (image, stem_w, stem_b)
    b = Relu (a)
    c = Conv <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (b, middle_w, middle_b)
    d = Relu (c)
    e = Conv <kernel_shape = [1, 1]> (d, last_w, last_b)
    f = Relu (e)
    g = GlobalAveragePool (f)
    h = Flatten (g)
    logits = Gemm <transB = 1> (h, head_w, head_b)
}"""
NAMES = {0: "block.stem", 2: "block.middle", 4: "last", 8: "head"}
LAYERS = set(NAMES.values())
RULES = {"cpu": cpu_scheme.RULES, "tensorrt": tensorrt_scheme.RULES}
BOTH = ("openvino-cpu", "onnxruntime-cpu")


@pytest.fixture(scope="module")
def net(tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    model = model_of(TEXT, {"stem_w": (16, 3, 3, 3), "middle_w": (32, 16, 3, 3), "last_w": (32, 32, 1, 1), "head_w": (6, 32)})
    for index, node in enumerate(model.graph.node):
        node.name = NAMES.get(index, f"{node.op_type}_{index}")
    rows = {"image": np.random.default_rng(1).standard_normal((64, 3, 12, 12)).astype(np.float32)}
    return prepared(tmp_path_factory.mktemp("net"), model, rows)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("QWARM_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache/search"


@dataclasses.dataclass(frozen=True)
class Searching:
    """Searches on 40 rows that nothing was fitted on; weights are fitted on those that ranges come from."""

    net: Prepared
    folder: Path

    def __call__(
        self, max_drift: float | None, scheme: str = "cpu", openers: dict[str, Opener] | None = None, by_method: dict[str, Ranges] | None = None,
        name: str = "out", **budget: float,
    ) -> SearchResult:  # fmt: skip
        rows = {"image": np.random.default_rng(2).standard_normal((40, 3, 12, 12)).astype(np.float32)}
        job = Job(self.net.path, self.net.exported, self.net.ranges, rows, calibration_of(self.net.rows))
        asked = None if max_drift is None else Budget(max_drift, **budget)
        found = by_method or {"max": self.net.ranges}
        record, result = quantize(RULES[scheme], job, found, self.folder / name, asked, Deployment(openers or {}), classes=False)
        assert QuantizedModel.load(self.folder / name / "quantized.json") == record
        assert SearchResult.load(self.folder / name / "search.json") == result
        assert result.onnx_sha256 == record.onnx_sha256
        assert {node.node for node in record.float_nodes} >= set(result.written.float_layers)
        return result


@pytest.fixture
def search(net: Prepared, tmp_path: Path) -> Searching:
    return Searching(net, tmp_path)


def test_nothing_is_searched_where_plain_int8_is_near_enough(search: Searching) -> None:
    result = search(0.5)
    assert (result.stopped, result.met, len(result.points), result.written.float_layers, result.sensitivities) == (PLAIN_MET, True, 1, (), ())


def test_without_a_limit_the_model_is_only_judged(search: Searching) -> None:
    result = search(None)
    assert (result.met, result.max_drift, len(result.points), result.method, result.methods) == (None, None, 1, "max", {})


def test_layers_go_back_to_float_until_every_runtime_is_near_enough(search: Searching, net: Prepared, tmp_path: Path) -> None:
    limit = search(0.5).written.drift / 2
    result = search(limit, openers={target: deployed(target, net.exported.inputs, net.exported.shapes) for target in BOTH})
    assert (result.stopped, result.met, result.unmeasured) == (MET, True, {})
    assert result.written.float_layers
    assert result.written.worst_drift <= limit
    for point in result.points:
        assert set(point.deployed) == set(BOTH)
        assert all(len(run.ms) == len(run.plain_ms) >= 15 and run.latency_ratio > 0 for run in point.deployed.values())
    reasons = {node.node: node.reason for node in QuantizedModel.load(tmp_path / "out/quantized.json").float_nodes}
    assert set(reasons) == set(result.written.float_layers)
    assert all(reason.startswith("search: +") and "x latency" in reason for reason in reasons.values())
    along = [result.points[place] for place in result.frontier]
    assert [point.worst_drift for point in along] == sorted((point.worst_drift for point in along), reverse=True)
    assert [point.latency_ratio or 0 for point in along] == sorted(point.latency_ratio or 0 for point in along)
    assert (tmp_path / "out/search.svg").read_text(encoding="utf-8").startswith("<svg")
    assert set(result.modules) == LAYERS
    assert {each.name for each in result.sensitivities} == {*LAYERS, "block.stem and block.middle", "block.middle and last", "last and head"}


@pytest.mark.parametrize("scheme", RULES)
def test_what_cannot_be_met_ends_with_the_nearest_model_and_says_so(search: Searching, scheme: str) -> None:
    result = search(1e-12, scheme)
    assert result.met is False
    assert result.stopped in {ALL_FLOAT, NO_GAIN}
    assert result.written.drift == min(point.drift for point in result.points) < result.points[0].drift


def test_no_seconds_leave_plain_int8(search: Searching) -> None:
    result = search(1e-12, seconds=0)
    assert (result.stopped, result.met, result.written.float_layers) == (TIME, False, ())
