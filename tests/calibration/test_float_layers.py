"""Layers that are named to stay in float: by node, by torch module, in both schemes, with fitted weights around them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from tiny_quantize import Prepared, calibration_of, model_of, prepared, run

from calibration import cpu_scheme, tensorrt_scheme
from calibration.cpu_placement import place
from calibration.export import export
from calibration.float_layers import activations_only, modules_of, resolve
from calibration.variants import FITTED, NEAREST, Job, Rules, Variant, nearest, variants
from pipeline.config import ModelConfig
from pipeline.errors import ConfigError
from pipeline.loading import load_object
from pipeline.tensors import Batch

TEXT = """net (float[n, 3, 10, 10] image) => (float[n, 8, 20] scores) {
    a = Conv <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (image, stem_w, stem_b)
    zero = Constant <value_float = 0.0> ()
    six = Constant <value_float = 6.0> ()
    b = Clip (a, zero, six)
    c = Conv <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (b, middle_w, middle_b)
    d = Clip (c, zero, six)
    e = Conv <kernel_shape = [1, 1]> (d, last_w, last_b)
    shape = Constant <value_ints = [0, 8, 200]> ()
    f = Reshape (e, shape)
    g = MatMul (f, head_w)
    scores = Add (g, head_b)
}"""
WEIGHTS = {"stem_w": (16, 3, 3, 3), "middle_w": (32, 16, 3, 3), "last_w": (16, 32, 1, 1), "head_w": (200, 20)}
NAMES = {"a": "block.stem", "c": "block.middle", "e": "last", "g": "head.MatMul_2"}
BY_SCHEME = {"cpu": cpu_scheme.RULES, "tensorrt": tensorrt_scheme.RULES}


@pytest.fixture(scope="module")
def net(tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    model = model_of(TEXT, WEIGHTS)
    bias = next(tensor for tensor in model.graph.initializer if tensor.name == "head_b")
    bias.CopyFrom(onnx.numpy_helper.from_array(np.linspace(-1, 1, 20, dtype=np.float32), "head_b"))
    for node in model.graph.node:
        node.name = NAMES.get(node.output[0], node.output[0])
    rows = {"image": np.random.default_rng(1).standard_normal((48, 3, 10, 10)).astype(np.float32)}
    return prepared(tmp_path_factory.mktemp("net"), model, rows)


@pytest.fixture(scope="module", params=BY_SCHEME)
def rules(request: pytest.FixtureRequest) -> Rules:
    return BY_SCHEME[request.param]


@pytest.fixture(scope="module")
def made(net: Prepared, rules: Rules) -> dict[str, Variant]:
    """Nothing is named: all that the scheme quantizes is in INT8."""
    return variants(rules, job_of(net))


def job_of(net: Prepared) -> Job:
    return Job(net.path, net.exported, net.ranges, {"image": net.rows["image"][:8]}, calibration_of(net.rows))


def test_a_name_means_a_node_a_module_or_all_that_a_module_holds(net: Prepared) -> None:
    model = onnx.load(net.path)
    assert modules_of(model) == {"block.stem": "block.stem", "block.middle": "block.middle", "last": "last", "head.MatMul_2": "head"}
    reason = "named in quantize.float_layers"
    assert resolve(model, ["block", "head"]) == dict.fromkeys(["block.stem", "block.middle", "head.MatMul_2"], reason)
    assert resolve(model, ["head.MatMul_2"]) == {"head.MatMul_2": reason}
    assert resolve(model, []) == {}


@pytest.mark.parametrize(("name", "expected"), [("block.stm", "block.stem"), ("lst", "last"), ("zzz", "one of block.stem"), ("b", "a Clip")])
def test_a_name_that_there_is_not_is_refused_with_the_nearest(net: Prepared, name: str, expected: str) -> None:
    with pytest.raises(ConfigError, match="There is no such layer") as caught:
        resolve(onnx.load(net.path), ["last", name])
    assert expected in str(caught.value)
    assert "quantize.float_layers" in str(caught.value)


def test_modules_come_from_the_exporters_metadata_or_torchscripts_names() -> None:
    model = model_of(TEXT, WEIGHTS)
    for node, name in zip([node for node in model.graph.node if node.output[0] in NAMES], ["", "/body/body.0/Conv", "conv_3", "n"], strict=True):
        node.name = name or "node_conv"
    entry = model.graph.node[0].metadata_props.add()
    entry.key, entry.value = "pkg.torch.onnx.name_scopes", "['', 'stem', 'stem.conv', 'conv2d']"
    assert modules_of(model) == {"node_conv": "stem.conv", "/body/body.0/Conv": "body.0", "conv_3": "conv_3", "n": "n"}


def test_named_layers_multiply_in_float_with_the_weights_of_the_graph_around_them(net: Prepared, rules: Rules) -> None:
    job, named = job_of(net), {"block.middle": "named", "head.MatMul_2": "named"}
    made = variants(rules, job, named)
    assert set(made) == {NEAREST, FITTED}
    for variant in made.values():
        reasons = {node.node: node.reason for node in variant.placement.float_nodes}
        assert {name: reasons[name] for name in named} == named
        constants = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in variant.model.graph.initializer}
        floats = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in variant.source.graph.initializer}
        nodes = {node.name: node for node in variant.model.graph.node}
        for name, weight in (("block.middle", "middle_w"), ("head.MatMul_2", "head_w")):
            assert np.array_equal(constants[nodes[name].input[1]], floats[weight])
    assert "last" in made[FITTED].rounded
    assert not made[FITTED].rounded.keys() & named.keys()


def test_a_sketch_is_what_a_placement_anew_with_the_same_weights_computes(net: Prepared, rules: Rules, made: dict[str, Variant]) -> None:
    job, variant = job_of(net), made[NEAREST]
    assert {"block.stem", "block.middle"} <= set(variant.placement.quantized_nodes)
    named = {name: "search" for name in ("block.stem", "head.MatMul_2") if name in variant.placement.quantized_nodes}
    sketch, anew = rules.sketched(variant, job, named), nearest(rules, job, variant.source, variant.ranges, named).model
    assert np.allclose(run(sketch, job.rows, "scores")[0], run(anew, job.rows, "scores")[0], atol=1e-5)
    whole = rules.sketched(variant, job, dict.fromkeys(variant.placement.quantized_nodes, "search")) if rules.scheme == "tensorrt" else variant.source
    assert np.allclose(run(whole, job.rows, "scores")[0], run(variant.source, job.rows, "scores")[0], atol=1e-5)


def test_a_float_layer_has_its_own_bias_again_behind_a_matmul(net: Prepared, rules: Rules, made: dict[str, Variant]) -> None:
    variant = made[FITTED]
    if "head.MatMul_2" not in variant.placement.quantized_nodes:
        pytest.skip(f"{rules.scheme} leaves this product in float")
    sketch = rules.sketched(variant, job_of(net), {"head.MatMul_2": "search"})
    biases = [
        {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in model.graph.initializer}["head_b"]
        for model in (variant.source, variant.model, sketch)
    ]
    assert np.array_equal(biases[0], biases[2])
    assert not np.array_equal(biases[0], biases[1])


def test_activations_alone_are_nearer_to_float_than_all_of_it(net: Prepared, made: dict[str, Variant]) -> None:
    job, variant = job_of(net), made[NEAREST]
    wanted = run(variant.source, job.rows, "scores")[0]
    models = (variant.model, activations_only(variant.model, variant.source))
    whole, part = (np.square(run(model, job.rows, "scores")[0] - wanted).sum() for model in models)
    assert 0 < part < whole


def test_an_activation_is_still_quantized_behind_its_clip(net: Prepared) -> None:
    """Left out with its convolution it would be quantized over the range of values that the Clip cuts off."""
    plan = place(onnx.load(net.path), {"block.middle": "named"})
    assert "d" not in plan.nodes
    model = nearest(BY_SCHEME["cpu"], job_of(net), onnx.load(net.path), net.ranges, {"block.middle": "named"}).model
    clip = next(node for node in model.graph.node if node.op_type == "Clip")
    readers = [node.op_type for node in model.graph.node if clip.output[0] in node.input]
    assert readers == ["QuantizeLinear"]
    assert next(node for node in model.graph.node if node.name == "block.middle").output[0] == clip.input[0]


def test_an_exported_models_layers_have_the_names_of_torch(
    tiny_root: Path, tiny_model: Callable[..., ModelConfig], batch: Batch, tmp_path: Path
) -> None:
    export(tiny_model("build"), tiny_root, tmp_path / "model", batch)
    model = onnx.load(tmp_path / "model" / "model.onnx")
    modules = dict(load_object("model.py:build", tiny_root)().named_modules())
    found = modules_of(model)
    assert found
    assert {module.replace(".scale", "_scale") for module in found.values()} <= set(modules)
    assert list(resolve(model, ["layer_scale"])) == ["layer.scale.0"]
