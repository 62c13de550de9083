"""Edits of an exported ONNX graph: readable names, no BatchNormalization, no trace of the machine that exported it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from calibration.tied import tie
from pipeline.errors import ModelError
from pipeline.macs import node_key
from pipeline.side_files import light

if TYPE_CHECKING:
    import onnx

SCOPES = "pkg.torch.onnx.name_scopes"
"""Where torch's exporter writes the module path of a node: `['', 'stem', 'stem.norm', 'batch_norm']`."""
PASSES_ON = frozenset(
    {
        "Add",
        "Sub",
        "Mul",
        "Div",
        "Min",
        "Max",
        "Where",
        "Cast",
        "Identity",
        "Reshape",
        "Expand",
        "Unsqueeze",
        "Squeeze",
        "Transpose",
        "Slice",
        "Concat",
    }
)
"""Operators between an attention mask and the Softmax that turns its minus infinity (or -3.4e38) into zero."""


RANDOM = frozenset({"Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"})


def tidy(model: onnx.ModelProto) -> None:
    """Fold what is left of BatchNormalization, store equal weights once, name nodes and tensors after torch modules, drop metadata with local paths.

    Raises ModelError for an operator that trains or draws random numbers, by name.
    """
    replace_batch_norms(model)
    tie(model)
    rename(model)
    refuse_training(model)
    strip(model)


def refuse_training(model: onnx.ModelProto) -> None:
    """Raise ModelError naming the nodes that drop values, update statistics or draw random numbers: their output is another one each time."""
    import onnx

    constants = {tensor.name: tensor for tensor in model.graph.initializer}
    found = []
    for index, node in enumerate(model.graph.node):
        dropping = node.op_type == "Dropout" and len(node.input) > 2 and node.input[2] != ""
        if dropping and node.input[2] in constants:
            dropping = bool(onnx.numpy_helper.to_array(constants[node.input[2]]))
        training = any(attribute.name == "training_mode" and attribute.i for attribute in node.attribute)
        if dropping or training or node.op_type in RANDOM:
            found.append(f"{node_key(node, index)} ({node.op_type})")
    if found:
        raise ModelError(
            "The model holds operators in training mode",
            where=f"node {', '.join(found[:5])}" + (f" and {len(found) - 5} more" if len(found) > 5 else ""),
            expected="operators that give one answer to one input",
            got=f"{len(found)} that drop values or draw random numbers",
            next="use nn.Dropout, which eval() switches off, instead of a function with training=True; take random numbers out of forward",
        )


def replace_batch_norms(model: onnx.ModelProto) -> None:
    """Turn each BatchNormalization that the exporter could not fold into a weight (no weight right before it) into Mul and Add.

    Raises ModelError for one in training mode or with statistics that are not constants.
    """
    import onnx

    constants = {tensor.name: tensor for tensor in model.graph.initializer}
    ranks = {name: len(shape) for name, shape in tensor_shapes(model).items()}
    position = 0
    while position < len(model.graph.node):
        node = model.graph.node[position]
        if node.op_type != "BatchNormalization":
            position += 1
            continue
        attributes = {attribute.name: onnx.helper.get_attribute_value(attribute) for attribute in node.attribute}
        if attributes.get("training_mode") or any(name not in constants for name in node.input[1:5]) or node.input[0] not in ranks:
            raise ModelError(
                "A BatchNormalization cannot be folded",
                where=f"node {node.name}",
                expected="evaluation mode, constant statistics and a known rank",
                got=f"training_mode {attributes.get('training_mode', 0)}, inputs {', '.join(node.input[1:5])}",
                next="freeze the layer's statistics in model.factory",
            )
        scale, bias, mean, variance = (onnx.numpy_helper.to_array(constants[name]).astype(np.float64) for name in node.input[1:5])
        factor = scale / np.sqrt(variance + attributes.get("epsilon", 1e-5))
        shape = (-1, *[1] * (ranks[node.input[0]] - 2))
        names = [f"{node.output[0]}.factor", f"{node.output[0]}.offset"]
        for name, value in zip(names, (factor, bias - mean * factor), strict=True):
            model.graph.initializer.append(onnx.numpy_helper.from_array(value.reshape(shape).astype(np.float32), name))
        product = f"{node.output[0]}.product"
        mul = onnx.helper.make_node("Mul", [node.input[0], names[0]], [product], name=f"{node.name}.mul")
        add = onnx.helper.make_node("Add", [product, names[1]], [node.output[0]], name=f"{node.name}.add")
        for new in (mul, add):
            new.metadata_props.extend(node.metadata_props)
        del model.graph.node[position]
        model.graph.node.insert(position, mul)
        model.graph.node.insert(position + 1, add)
    used = {name for node in model.graph.node for name in node.input} | {value.name for value in model.graph.output}
    kept = [tensor for tensor in model.graph.initializer if tensor.name in used]
    del model.graph.initializer[:]
    model.graph.initializer.extend(kept)


def rename(model: onnx.ModelProto) -> None:
    """Name each node after its torch module (`stage1.conv`, `stage1.Add`), and its output after the node.

    Graph inputs, outputs and weights keep their names. `_scale` never occurs in a new name: quantizers append it to find their scales.
    """
    graph = model.graph
    weights = {tensor.name for tensor in graph.initializer}
    fixed = weights | {value.name for value in (*graph.input, *graph.output)}
    taken = set(fixed)
    renamed: dict[str, str] = {}
    for node in graph.node:
        scope = module_scope(node)
        module = next((name.removesuffix(".weight") for name in node.input if name in weights and name.endswith(".weight")), "")
        base = (module or f"{scope}.{node.op_type}").strip(".").replace("_scale", ".scale")
        node.name = next(name for name in _numbered(base) if name not in taken)
        taken.add(node.name)
        for index, output in enumerate(node.output):
            if output and output not in fixed:
                renamed[output] = node.name if index == 0 else f"{node.name}.output{index}"
    for node in graph.node:
        node.input[:] = [renamed.get(name, name) for name in node.input]
        node.output[:] = [renamed.get(name, name) for name in node.output]
    del graph.value_info[:]


def module_scope(node: onnx.NodeProto) -> str:
    """The path of the torch module that a node comes from: from metadata (torch.export), or from its name, `/block/block.0/Add` (TorchScript)."""
    scopes = next((ast.literal_eval(entry.value) for entry in node.metadata_props if entry.key == SCOPES), None)
    if scopes is not None:
        return str(scopes[-2]) if len(scopes) > 1 else ""
    parts = node.name.split("/")[1:-1] if node.name.startswith("/") else []
    return ".".join(part for place, part in enumerate(parts) if not "".join(parts[place + 1 : place + 2]).startswith(f"{part}."))


def _numbered(base: str) -> Iterator[str]:
    yield base
    number = 2
    while True:
        yield f"{base}_{number}"
        number += 1


def strip(model: onnx.ModelProto) -> None:
    """Drop doc strings and metadata: stack traces in them hold file paths and change with every edit of a comment."""
    for holder in (model, model.graph, *model.graph.node, *model.graph.initializer, *model.graph.input, *model.graph.output):
        holder.ClearField("doc_string")
        holder.ClearField("metadata_props")


def tensor_shapes(model: onnx.ModelProto) -> dict[str, tuple[int | str, ...]]:
    """Inferred shape of each tensor whose rank is known: sizes, axis names, or "?" for an unnamed one."""
    import onnx

    graph = onnx.shape_inference.infer_shapes(light(model), data_prop=True).graph
    shapes: dict[str, tuple[int | str, ...]] = {tensor.name: tuple(tensor.dims) for tensor in graph.initializer}
    for value in (*graph.input, *graph.value_info, *graph.output):
        if value.type.tensor_type.HasField("shape"):
            axes = value.type.tensor_type.shape.dim
            shapes[value.name] = tuple(axis.dim_value if axis.HasField("dim_value") else axis.dim_param or "?" for axis in axes)
    return shapes


def tensor_types(model: onnx.ModelProto) -> dict[str, int]:
    """Inferred element type (`onnx.TensorProto.DataType`) of inputs, outputs and what nodes give."""
    import onnx

    graph = onnx.shape_inference.infer_shapes(light(model)).graph
    return {value.name: value.type.tensor_type.elem_type for value in (*graph.input, *graph.value_info, *graph.output)}


def nodes_that_fix(model: onnx.ModelProto, axis: str) -> list[str]:
    """Nodes that take a tensor whose first axis is the named `axis` and give one whose first axis is a number: suspects."""
    shapes = tensor_shapes(model)
    weights = {tensor.name for tensor in model.graph.initializer}
    suspects = []
    for index, node in enumerate(model.graph.node):
        takes = any(shapes.get(name, ("?",))[:1] == (axis,) for name in node.input if name not in weights)
        gives = any(isinstance(shapes.get(name, ("?",))[0], int) for name in node.output if shapes.get(name))
        if takes and gives and node.op_type not in {"Shape", "Size"}:
            suspects.append(f"{node_key(node, index)} ({node.op_type})")
    return suspects


def before_softmax(model: onnx.ModelProto) -> frozenset[str]:
    """Tensors that reach nothing but a Softmax, through operators that only add, scale, select or reshape."""
    readers: dict[str, list[onnx.NodeProto]] = {}
    for node in model.graph.node:
        for name in node.input:
            readers.setdefault(name, []).append(node)
    found: set[str] = set()
    ends = {value.name for value in model.graph.output}
    for node in reversed(model.graph.node):
        for name in node.output:
            behind = readers.get(name, [])
            if behind and name not in ends and all(
                reader.op_type == "Softmax" or (reader.op_type in PASSES_ON and found.issuperset(reader.output)) for reader in behind
            ):  # fmt: skip
                found.add(name)
    return frozenset(found)


def mask_nodes(model: onnx.ModelProto) -> list[str]:
    """Nodes that apply an attention mask or a temperature in front of a Softmax: 8 bits for minus infinity leave none for the scores."""
    masked = before_softmax(model)
    return [node.name for node in model.graph.node if node.op_type in PASSES_ON and masked.intersection(node.output)]
