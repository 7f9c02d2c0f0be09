"""Networks of few bits as ONNX models, as tools write them: int8 with QDQ, and float16.

- `int8_qdq`: a small residual network (He et al., "Deep Residual Learning", figure 2) with a
  QuantizeLinear and a DequantizeLinear around every op: activations uint8 for the tensor, weights
  int8 for each channel, biases int32 (Jacob et al., "Quantization and Training of Neural Networks
  for Efficient Integer-Arithmetic-Only Inference", section 2)
- `mobilenet_int8`: MobileNet v1 (Howard et al., arXiv:1704.04861, table 1) in the same way
- `float16_cnn`: the network of `int8_qdq` in float16, with casts of its float32 input and output;
  `in_half` makes such a model of any network
"""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper

from zoo.models.onnx_graph import FLOAT, OnnxGraph

QDQ_STEP = 0.05
"""Of the output of `int8_qdq`: a step of its quantisation."""
_STEP = 0.04
_HALF_TYPES = (onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16)
_WEIGHT_SPREAD = 73
"""Standard deviation of whole numbers that are spread evenly over 8 bits."""
_CHANNEL_SCALES = (0.6, 1.2)
_MOBILENET_BLOCKS = (
    *((64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2)),
    *((512, 1),) * 5,
    *((1024, 2), (1024, 1)),
)
"""(channels, stride) of each pair of a depthwise and a pointwise convolution."""


def int8_qdq(seed: int = 0) -> onnx.ModelProto:
    """Return the network of two residual blocks; input `image` [1, 3, 16, 16], float32."""
    graph = _Qdq(seed)
    value = graph.rounded(graph.input("image", FLOAT, 1, 3, 16, 16), _STEP, 128)
    value = graph.quantised_conv("stem", value, (3, 16), 2)
    for block in range(2):
        inner = graph.quantised_conv(f"{block}.a", value, (16, 16))
        inner = graph.quantised_conv(f"{block}.b", inner, (16, 16), is_active=False)
        joined = graph.op("Relu", graph.op("Add", inner, value))
        value = graph.rounded(joined, _STEP, 0)
    pooled = graph.rounded(graph.op("GlobalAveragePool", value), _STEP / 4, 0)
    flat = graph.op("Flatten", pooled, axis=1)
    weight = graph.quantised_weight("head", 10, 16)
    logits = graph.op("Gemm", flat, weight, transB=1)
    return graph.model("int8_qdq", (graph.rounded(logits, QDQ_STEP, 128), (1, 10)))


def mobilenet_int8(seed: int = 0, size: int = 224) -> onnx.ModelProto:
    """Return MobileNet v1 with QDQ, 1,000 classes; input `image` [1, 3, size, size], float32."""
    graph = _Qdq(seed)
    value = graph.rounded(graph.input("image", FLOAT, 1, 3, size, size), _STEP, 128)
    channels = 32
    value = graph.quantised_conv("stem", value, (3, channels), 2)
    for block, (made, stride) in enumerate(_MOBILENET_BLOCKS):
        each = (channels, channels)
        value = graph.quantised_conv(f"{block}.each", value, each, stride, groups=channels)
        value = graph.quantised_conv(f"{block}.all", value, (channels, made), kernel=1)
        channels = made
    pooled = graph.rounded(graph.op("GlobalAveragePool", value), _STEP / 4, 0)
    flat = graph.op("Flatten", pooled, axis=1)
    logits = graph.op("Gemm", flat, graph.quantised_weight("head", 1000, channels), transB=1)
    return graph.model("mobilenet_int8", (graph.rounded(logits, QDQ_STEP, 128), (1, 1000)))


class _Qdq(OnnxGraph):
    """Adds the pairs of QuantizeLinear and DequantizeLinear."""

    def rounded(self, value: str, step: float, zero: int) -> str:
        parts = [self.constant(step, np.float32), self.constant(zero, np.uint8)]
        result: str = self.op("DequantizeLinear", self.op("QuantizeLinear", value, *parts), *parts)
        return result

    def quantised_weight(self, name: str, *shape: int) -> str:
        count = int(np.prod(shape))
        values = (np.arange(count) * 7919 % 255 - 127).astype(np.int8).reshape(shape)
        mean_step = (2 * shape[0] / count) ** 0.5 / _WEIGHT_SPREAD  # outputs spread as inputs do
        steps = np.linspace(*_CHANNEL_SCALES, shape[0], dtype=np.float32) * mean_step
        result: str = self.op(
            "DequantizeLinear",
            self.initializer(f"{name}.weight", values),
            self.initializer(f"{name}.steps", steps.astype(np.float32)),
            self.constant(np.zeros(shape[0]), np.int8),
            axis=0,
        )
        return result

    def quantised_conv(
        self,
        name: str,
        value: str,
        channels: tuple[int, int],
        stride: int = 1,
        is_active: bool = True,
        kernel: int = 3,
        groups: int = 1,
    ) -> str:
        num_in, num_out = channels
        result: str = self.op(
            "Conv",
            value,
            self.quantised_weight(name, num_out, num_in // groups, kernel, kernel),
            kernel_shape=[kernel, kernel],
            strides=[stride, stride],
            pads=[kernel // 2] * 4,
            group=groups,
        )
        if is_active:
            result = self.op("Relu", result)
        return self.rounded(result, _STEP, 0 if is_active else 128)


def float16_cnn(seed: int = 0) -> onnx.ModelProto:
    """Return the same in float16; input `image` [1, 3, 16, 16], output [1, 10], float32."""
    graph = OnnxGraph(seed)
    value = graph.input("image", FLOAT, 1, 3, 16, 16)
    value = graph.op("Relu", graph.conv_norm("stem", value, (3, 16), 3, stride=2))
    for block in range(2):
        inner = graph.op("Relu", graph.conv_norm(f"{block}.a", value, (16, 16), 3))
        inner = graph.conv_norm(f"{block}.b", inner, (16, 16), 3)
        value = graph.op("Relu", graph.op("Add", inner, value))
    logits = graph.pool_and_classify("head", value, 16, 10)
    return in_half(graph.model("float16_cnn", (logits, (1, 10))), onnx.TensorProto.FLOAT16)


def in_half(model: onnx.ModelProto, element_type: int) -> onnx.ModelProto:
    """Return a float32 model that computes in half precision, as converters write it.

    Weights and constants are rounded, to infinity where they are too large. Inputs and outputs of
    float32 keep their types: each is cast.

    Parameters
    ----------
    element_type
        `TensorProto.FLOAT16` or `TensorProto.BFLOAT16`.
    """
    half = onnx.ModelProto()
    half.CopyFrom(model)
    graph = half.graph
    for tensor in _tensors(graph):
        if tensor.data_type == FLOAT:
            array = onnx.numpy_helper.to_array(tensor)
            dtype = helper.tensor_dtype_to_np_dtype(element_type)
            with np.errstate(over="ignore"):
                rounded = array.astype(dtype).tobytes()
            tensor.CopyFrom(
                helper.make_tensor(tensor.name, element_type, array.shape, rounded, raw=True)
            )
    values = (*graph.input, *graph.output)
    floats = [each.name for each in values if each.type.tensor_type.elem_type == FLOAT]
    halves = {name: f"{name}_half" for name in floats}
    for node in graph.node:
        node.input[:] = [halves.get(name, name) for name in node.input]
        node.output[:] = [halves.get(name, name) for name in node.output]
        for attribute in node.attribute:
            if node.op_type == "Cast" and attribute.i == FLOAT:
                attribute.i = element_type
    nodes = list(graph.node)
    inputs = {value.name for value in graph.input}
    before = [_cast(name, halves[name], element_type) for name in floats if name in inputs]
    after = [_cast(halves[name], name, FLOAT) for name in floats if name not in inputs]
    copies = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del graph.node[:], graph.value_info[:]
    graph.node.extend([*before, *copies, *after])
    return half


def widened(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a model of `in_half` in float32: with the same weights, and without its casts."""
    wide = onnx.ModelProto()
    wide.CopyFrom(model)
    for tensor in _tensors(wide.graph):
        if tensor.data_type in _HALF_TYPES:
            array = onnx.numpy_helper.to_array(tensor).astype(np.float32)
            tensor.CopyFrom(onnx.numpy_helper.from_array(array, tensor.name))
    for node in wide.graph.node:
        for attribute in node.attribute:
            if node.op_type == "Cast" and attribute.i in _HALF_TYPES:
                attribute.i = FLOAT
    return wide


def _tensors(graph: onnx.GraphProto) -> list[onnx.TensorProto]:
    """The weights and constants of a graph."""
    attributes = (attribute for node in graph.node for attribute in node.attribute)
    constants = [attribute.t for attribute in attributes if attribute.HasField("t")]
    return [*graph.initializer, *constants]


def _cast(source: str, target: str, element_type: int) -> onnx.NodeProto:
    return helper.make_node("Cast", [source], [target], name=f"{target}_cast", to=element_type)
