"""Two starters through the whole pipeline, stage by stage in this process: a tiny transformer, and arrays with a metric of their own.

Fewer rows and trials than the starters have; the limits that a small sample cannot prove are widened with them.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

import engines
import fleet
from cli.init import init
from cli.stage import stage
from pipeline.errors import DataError, InputError
from pipeline.records import (
    Choice,
    DriftReport,
    Engine,
    Evidence,
    ExportedModel,
    Interval,
    QuantizedModel,
    Training,
    Validation,
    Verdict,
    WarmupPlan,
)
from release.agreement import loss_text

TARGET = "openvino-cpu"
CHAIN = ("data", "roles", "model", "export", "ranges", "quantize tensorrt", "qat", "choose tensorrt", "cost", f"platform {TARGET}",
         f"build {TARGET}", f"warm {TARGET}", f"validate {TARGET}", f"gate {TARGET}", "report", "release", "summary")  # fmt: skip
KEY = "build/release/development.pub"
LOCK = "schema: '2.0'\nstages: {}\n"
"""Stands in for what `dvc repro` writes: here no DVC runs, and the manifest then names no upstream entries."""


def shrink(folder: Path, kind: str) -> None:
    data = folder / "data.py"
    data.write_text(
        data.read_text().replace("ROWS = 1500", "ROWS = 420").replace("ROWS, CHANNELS, LENGTH, FACTS = 1400", "ROWS, CHANNELS, LENGTH, FACTS = 420")
    )
    params: dict[str, Any] = yaml.safe_load((folder / "params.yaml").read_text())
    params["data"]["roles"] |= {"train": 200, "calibration": 48, "search": 24, "warmup": 6}
    params["warmup"] |= {"concurrency": [1], "iterations": 1}
    params["gates"] |= {"trials": 5, "max_trials": 5, "requests": 20, "max_drop": 0.2}
    if kind == "text":
        params["gates"]["min_reference"] = 0.5
    else:
        params["quantize"] |= {"qat": "always", "training": {"epochs": 2, "rows": 150}}
    (folder / "params.yaml").write_text(yaml.safe_dump(params))


@pytest.fixture(scope="module")
def released(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    kind: str = request.param
    if reason := engines.backend(TARGET).unavailable(TARGET):
        pytest.skip(f"{TARGET}: {reason}")
    folder = tmp_path_factory.mktemp("projects") / kind
    init(folder, kind)
    shrink(folder, kind)
    (folder / "dvc.lock").write_text(LOCK)
    (folder / "build" / "data").mkdir(parents=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("QWARM_CACHE", str(folder / "cache"))
        for command in CHAIN:
            stage(*command.split())
        yield folder


@pytest.mark.parametrize("released", ["text"], indirect=True)
class TestTransformer:
    def test_it_is_released_with_int8_and_a_passed_gate(self, released: Path) -> None:
        evidence = Evidence.load(released / f"evidence/{TARGET}.json")
        assert evidence.verdict is Verdict.PASS
        assert evidence.figures["int8_share"] > 0.9
        assert (released / "build/release/text-0.1.0/manifest.json").is_file()
        report = Validation.load(released / f"build/validate/{TARGET}.json").drift
        assert (report.metric, report.interval) == ("top1", None)
        assert report.lost is not None
        assert report.agreement is not None

    def test_products_are_in_int8_and_what_stays_in_float_says_why(self, released: Path) -> None:
        quantized = QuantizedModel.load(released / "build/quantized/tensorrt/quantized.json")
        layers = {f"layers.{index}.{name}.MatMul" for index in (0, 1) for name in ("query", "key", "value", "out", "up", "down")}
        assert layers | {"layers.0.MatMul", "layers.0.MatMul_2"} <= set(quantized.quantized_nodes)  # of attention: activation by activation
        kept = Counter(node.operator for node in quantized.float_nodes)
        assert kept == {"Gemm": 1, "LayerNormalization": 5, "Softmax": 2, "Gelu": 2, "Gather": 2}
        assert len(quantized.left_in_float) == 5
        report = (released / "build/report/report.md").read_text()
        assert all(f"- left in float: {line}" in report for line in quantized.left_in_float)

    def test_two_runtimes_agree_and_the_report_says_where_the_loss_arises(self, released: Path) -> None:
        measured = Validation.load(released / f"build/validate/{TARGET}.json")
        assert measured.agreement.second == "ONNX Runtime as written"  # no other runtime here runs this scheme
        assert measured.agreement.rows >= 32
        checks = {check.name: check for check in Evidence.load(released / f"evidence/{TARGET}.json").checks}
        assert checks["runtimes_agree"].verdict is Verdict.PASS
        assert [hop.hop for hop in measured.attribution.hops] == ["simplified -> qdq", f"qdq -> {TARGET}"]
        assert loss_text(measured.attribution) in (released / "build/report/report.md").read_text()

    def test_every_rung_of_both_axes_is_warmed_and_recorded(self, released: Path) -> None:
        plan = WarmupPlan.load(released / f"build/warm/{TARGET}/plan.json")
        assert plan.ladder == {"batch": (1, 8), "sequence": (16, 32, 64)}
        assert {(step.sizes["batch"], step.sizes["sequence"]) for step in plan.steps} == {(b, s) for b in (1, 8) for s in (16, 32, 64)}
        assert plan.steps[-1].sizes == {"batch": 1, "sequence": 32}  # the typical size is warmed last
        with np.load(released / f"build/warm/{TARGET}/expected.npz") as expected:
            assert set(expected.files) == {f"logits@sequence={size}" for size in (16, 32, 64)}
            assert all(expected[name].shape == (6, 4) for name in expected.files)

    def test_a_host_pads_to_a_warmed_size_and_the_answer_is_the_rows_own(
        self, released: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with fleet.open(released / "build/release/text-0.1.0", state=tmp_path, key=KEY) as served:
            assert served.labels == ("billing", "delivery", "login", "praise")
            raw = [{"text": "refund my invoice charge"}, {"text": "the parcel is late and the courier lost the tracking again " * 3}]
            alone, together = served.prepare(raw[0]), served.prepare(raw)
            assert alone["input_ids"].shape == (1, 5)
            assert together["input_ids"].shape[0] == 2
            assert together["attention_mask"][0].sum() == 5
            shapes: list[tuple[int, ...]] = []
            run = served.session.run

            def spy(inputs: Any) -> Any:
                shapes.append(inputs["input_ids"].shape)
                return run(inputs)

            monkeypatch.setattr(served.session, "run", spy)
            first, both = served.infer(alone)["logits"], served.infer(together)["logits"]
            assert shapes == [(1, 16), (8, 64)]
            assert (first.shape, both.shape) == ((1, 4), (2, 4))
            np.testing.assert_allclose(first[0], both[0], atol=0.05 * np.abs(both).max())
            np.testing.assert_allclose(run(alone)["logits"], first, atol=0.05 * np.abs(first).max())
            with pytest.raises(InputError, match="1 to 64"):
                served.infer({name: np.ones((1, 65), np.int64) for name in ("input_ids", "attention_mask")})
            with pytest.raises(InputError, match="dtype"):
                served.infer({name: array.astype(np.int32) for name, array in alone.items()})

    def test_a_row_that_is_too_long_is_named(self, released: Path) -> None:
        source = released / "preprocess.py"
        kept = source.read_text()
        source.write_text(kept.replace("MAX_TOKENS = 2048, 64", "MAX_TOKENS = 2048, 99").replace("[START, *token_ids", "[START] * 70 + [*token_ids"))
        try:
            with pytest.raises(DataError, match=r"(?s)size beyond.*row 00000.*1 to 64"):
                stage("roles")
        finally:
            source.write_text(kept)


@pytest.mark.parametrize("released", ["arrays"], indirect=True)
class TestArrays:
    def test_two_outputs_and_an_own_metric_are_released(self, released: Path) -> None:
        evidence = Evidence.load(released / f"evidence/{TARGET}.json")
        assert evidence.verdict is Verdict.PASS
        assert {"float_metric", "int8_metric"} <= set(evidence.figures)
        report: DriftReport = Validation.load(released / f"build/validate/{TARGET}.json").drift
        assert report.metric == "metric.py:score"
        assert isinstance(report.interval, Interval)
        assert (report.lost, report.agreement) == (None, None)
        assert set(report.sqnr_db_by_output) == {"amount", "embedding"}
        assert Engine.load(released / f"build/engines/{TARGET}/int8/engine.json").outputs[1].shape == ("batch", 32)
        text = (released / "build/report/report.md").read_text()
        assert "metric_drop" in text
        assert "accuracy" not in text.partition("## Data roles")[0].replace("accuracy_drop", "")

    def test_weights_were_trained_without_labels_and_competed_against_the_float_model(self, released: Path) -> None:
        training = Training.load(released / "build/qat/training.json")
        assert (training.ran, training.scheme, training.rows, len(training.epochs)) == (True, "tensorrt", 150, 2)
        assert set(training.bound_to) >= {"train_root", "calibration_root", "search_root", "model_sha256"}
        exported = [ExportedModel.load(released / f"build/{folder}/exported.json") for folder in ("export", "qat/export")]
        assert exported[1].checkpoint_sha256 == training.checkpoint_sha256 != exported[0].checkpoint_sha256
        choice = Choice.load(released / "build/chosen/tensorrt/choice.json")
        quantized = QuantizedModel.load(released / "build/chosen/tensorrt/quantized.json")
        assert set(choice.candidates) == {"ptq", "qat"}
        assert choice.candidates[choice.chosen].onnx_sha256 == quantized.onnx_sha256
        assert choice.candidates["ptq"].onnx_sha256 == QuantizedModel.load(released / "build/quantized/tensorrt/quantized.json").onnx_sha256
        assert (quantized.reference_sha256 or quantized.float_sha256) == exported[0].onnx_sha256
        assert "chosen: " in (released / "build/report/report.md").read_text()
        assert not list(released.glob("cache/qat/*"))  # nothing is left of a training that has ended

    def test_a_host_answers_with_both_outputs_and_no_labels(self, released: Path, tmp_path: Path) -> None:
        with fleet.open(released / "build/release/arrays-0.1.0", state=tmp_path, key=KEY) as served:
            assert served.labels == ()
            random = np.random.default_rng(0)
            inputs = served.prepare([{"signal": random.random((4, 64)), "facts": random.random(3)} for _ in range(3)])
            outputs = served.infer(inputs)
            assert {name: array.shape for name, array in outputs.items()} == {"amount": (3, 1), "embedding": (3, 32)}

    def test_a_metric_that_wants_an_unknown_output_stops_validation_with_its_name(self, released: Path) -> None:
        from pipeline.config import load_config
        from stages import validate

        source = released / "metric.py"
        kept = source.read_text()
        source.write_text(kept.replace('outputs["amount"]', 'outputs["price"]'))
        try:
            measured = functools.partial(validate._accuracy, load_config("params.yaml"), TARGET)
            with pytest.raises(DataError, match=r"(?s)gates.metric metric.py:score.*amount, embedding.*price"):
                measured(WarmupPlan.load(released / f"build/warm/{TARGET}/plan.json"))
        finally:
            source.write_text(kept)
