"""Networks for the comparison: the structures of the `onnx` package's light models, and an encoder of BERT's size, all
with random weights."""

import pathlib

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

LIGHT = pathlib.Path(onnx.__file__).parent / "backend/test/data/light"


def light(name):
    """A light model computes its weights, all of one value; here each is random, of a size that keeps numbers small."""
    model = onnx.load(LIGHT / f"light_{name}.onnx")
    graph, chance = model.graph, np.random.default_rng(7)
    known = {one.name: numpy_helper.to_array(one) for one in graph.initializer}
    kept = []
    for node in graph.node:
        if node.op_type != "ConstantOfShape":
            kept.append(node)
            continue
        shape = [int(axis) for axis in known[node.input[0]]]
        fan_in = max(1, int(np.prod(shape[1:])))
        weight = chance.standard_normal(shape, np.float32) / np.sqrt(fan_in)
        # Variances and scales of a normalisation have one axis and are positive.
        weight = np.abs(weight) + 0.5 if len(shape) == 1 else weight
        graph.initializer.append(numpy_helper.from_array(weight.astype(np.float32), node.output[0]))
    del graph.node[:]
    graph.node.extend(kept)
    return model


def encoder(layers=12, width=768, heads=12, words=1000, masked=False):
    """Token ids `[batch, sequence]` to vectors: attention and two dense layers, each with a normalisation. With
    `attention_mask`, 1 for a token and 0 for padding, if it is `masked`."""
    chance, nodes, weights = np.random.default_rng(7), [], []

    def weight(*shape):
        name = f"w{len(weights)}"
        values = chance.standard_normal(shape, np.float32) * 0.02 if len(shape) > 1 else np.ones(shape, np.float32)
        weights.append(numpy_helper.from_array(values, name))
        return name

    def constant(values, dtype):
        name = f"w{len(weights)}"
        weights.append(numpy_helper.from_array(np.array(values, dtype), name))
        return name

    def node(kind, *inputs, **attributes):
        name = f"n{len(nodes)}"
        nodes.append(helper.make_node(kind, list(inputs), [name], **attributes))
        return name

    def dense(x, size, out):
        return node("Add", node("MatMul", x, weight(size, out)), weight(out))

    def split(x, order):
        parts = node("Reshape", x, constant([0, 0, heads, width // heads], np.int64))
        return node("Transpose", parts, perm=order)

    x = node("Gather", weight(words, width), "ids")
    if masked:
        padding = node("Sub", constant(1, np.float32), node("Cast", "attention_mask", to=TensorProto.FLOAT))
        bias = node("Mul", node("Unsqueeze", padding, constant([1, 2], np.int64)), constant(-1e9, np.float32))
    for _ in range(layers):
        query, key, value = (split(dense(x, width, width), order) for order in ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3]))
        scores = node("Div", node("MatMul", query, key), constant((width / heads) ** 0.5, np.float32))
        scores = node("Add", scores, bias) if masked else scores
        mixed = node("Transpose", node("MatMul", node("Softmax", scores, axis=-1), value), perm=[0, 2, 1, 3])
        mixed = node("Reshape", mixed, constant([0, 0, width], np.int64))
        x = node("LayerNormalization", node("Add", x, dense(mixed, width, width)), weight(width), weight(width))
        wide = dense(x, width, 4 * width)
        gelu = node("Erf", node("Div", wide, constant(2**0.5, np.float32)))
        gelu = node("Mul", node("Mul", wide, node("Add", gelu, constant(1, np.float32))), constant(0.5, np.float32))
        x = node("LayerNormalization", node("Add", x, dense(gelu, 4 * width, width)), weight(width), weight(width))
    nodes[-1].output[0] = "vectors"
    names = ["ids", "attention_mask"] if masked else ["ids"]
    inputs = [helper.make_tensor_value_info(name, TensorProto.INT64, ["batch", "sequence"]) for name in names]
    vectors = helper.make_tensor_value_info("vectors", TensorProto.FLOAT, ["batch", "sequence", width])
    graph = helper.make_graph(nodes, "encoder", inputs, [vectors], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


NETWORKS = {
    "resnet50": lambda: light("resnet50"),
    "densenet121": lambda: light("densenet121"),
    "inception_v2": lambda: light("inception_v2"),
    "shufflenet": lambda: light("shufflenet"),
    "bert_base": encoder,
    # For many callers: small enough that a batch gains something.
    "bert_tiny": lambda: encoder(layers=2, width=128, heads=2),
}
