"""The search for layers that stay in float, on a tiny network, in real runtimes."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import onnx
import pytest
from tiny_quantize import Prepared, calibration_of, model_of, prepared

from calibration import cpu_scheme, tensorrt_scheme
from calibration.exposing import Opener, Run, as_written
from calibration.ranges import collect_each
from calibration.search.budget import Budget
from calibration.search.frontier import ALL_FLOAT, MET, NO_GAIN, PLAIN_MET, TIME, choice
from calibration.search.run import Deployment, quantize
from calibration.variants import Job
from engines.once import deployed
from pipeline.errors import ModelError
from pipeline.records import QuantizedModel, Ranges
from pipeline.search_records import DeployedPoint, SearchJournal, SearchPoint, SearchResult

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


def test_a_killed_search_continues_and_measures_nothing_twice(search: Searching, cache: Path) -> None:
    whole = search(1e-12, name="whole")
    next(cache.iterdir()).unlink()
    built: list[int] = []

    def opener(most: int) -> Opener:
        @contextmanager
        def opened(model: onnx.ModelProto) -> Iterator[Run]:
            if len(built) == most:
                raise KeyboardInterrupt
            built.append(1)
            with as_written(model) as run:
                yield run

        return opened

    with pytest.raises(KeyboardInterrupt):
        search(1e-12, openers={"here": opener(3)})  # plain INT8, and beside it once more the first choice
    journal = SearchJournal.load(next(cache.iterdir()))
    assert len(journal.points) == 2
    assert len(journal.drifts) >= len(LAYERS) + 3
    resumed = search(1e-12, openers={"here": opener(-1)})
    assert [point.float_layers for point in resumed.points] == [point.float_layers for point in whole.points]
    again = SearchJournal.load(next(cache.iterdir()))
    assert {key: again.drifts[key] for key in journal.drifts} == journal.drifts
    assert {key: again.points[key] for key in journal.points} == journal.points
    assert again.seconds > journal.seconds
    built.clear()
    assert search(1e-12, openers={"here": opener(0)}).points == resumed.points  # nothing is built any more
    next(cache.iterdir()).write_text("torn", encoding="utf-8")
    assert [point.drift for point in search(1e-12, openers={"here": opener(-1)}).points] == [point.drift for point in resumed.points]


def first_in_float(model: onnx.ModelProto) -> bool:
    return "image_QuantizeLinear" not in {node.name for node in model.graph.node}


def test_a_layer_that_brings_less_than_a_step_is_not_left_in_float() -> None:
    drifts = {"": (4.0, 1.0), "a b": (2.0, 1.01), "a b c": (1.99, 1.02), "a b d": (1.0, 1.2)}
    points = [
        SearchPoint("", tuple(layers.split()), drift, {"here": DeployedPoint(drift, ratio, (1.0,), (ratio,))})
        for layers, (drift, ratio) in drifts.items()
    ]
    assert points[choice(points, Budget(1e-12, 1.05))].float_layers == ("a", "b")


def test_what_is_too_slow_is_passed_over(search: Searching) -> None:
    @contextmanager
    def opened(model: onnx.ModelProto) -> Iterator[Run]:
        with as_written(model) as run:
            yield (lambda batch: [run(batch) for _ in range(20)][-1]) if first_in_float(model) else run

    assert "block.stem" in search(1e-12, openers={"here": as_written}, name="free").written.float_layers
    held = search(1e-12, openers={"slow": opened}, max_slowdown=5.0)
    assert "block.stem" not in held.written.float_layers
    assert any(not point.whole and "block.stem" in point.float_layers for point in held.points)
    assert all((held.points[place].latency_ratio or 0) <= 5.0 for place in held.frontier)
    freed = search(1e-12, openers={"slow": opened}, max_slowdown=1e6)
    assert "block.stem" in freed.written.float_layers
    assert freed.written.whole


def test_a_mixture_that_a_runtime_refuses_is_passed_over_and_a_target_without_int8_left_out(search: Searching) -> None:
    @contextmanager
    def fussy(model: onnx.ModelProto) -> Iterator[Run]:
        if first_in_float(model):
            raise ModelError("No such mixture")
        with as_written(model) as run:
            yield run

    @contextmanager
    def broken(_: onnx.ModelProto) -> Iterator[Run]:
        raise ModelError("No such kernel")
        yield dict

    result = search(1e-12, openers={"fussy": fussy, "broken": broken})
    assert result.written.float_layers
    assert "block.stem" not in result.written.float_layers
    assert list(result.unmeasured) == ["broken"]
    assert "No such kernel" in result.unmeasured["broken"]
    assert all(set(point.deployed) == {"fussy"} for point in result.points)


@pytest.mark.parametrize("scheme", RULES)
def test_auto_takes_the_ranges_whose_activations_are_nearest(search: Searching, net: Prepared, scheme: str) -> None:
    rows = {"image": net.rows["image"].copy()}
    rows["image"][0, 0, 0, 0] = 40.0
    by_method = collect_each(
        net.path, net.exported, [rows], [str(row) for row in range(64)],
        calibration_root="r", preprocess_sha256="p", min_rows=1, batch_rows=64, methods=("max", "mse"),
    )  # fmt: skip
    result = search(None, scheme, by_method=by_method)
    assert result.method == "mse"
    assert set(result.methods) == {"max", "mse"}
    assert (result.methods["mse"] or 0) > (result.methods["max"] or 0) + 3
    assert QuantizedModel.load(search.folder / "out/quantized.json").ranges_sha256 == by_method["mse"].digest()
