"""Node after node -> an ONNX graph as exporters write it, with seeded random weights.

The batch norms have the statistics of data that is spread like a normal distribution, so that the
numbers of a deep network stay near 1.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

FLOAT, INT64 = onnx.TensorProto.FLOAT, onnx.TensorProto.INT64
_STD = 0.02
"""Standard deviation of the weights of transformers at the start of training, in their code."""


class OnnxGraph:
    """Collects the nodes of an ONNX graph; each method returns the name of a value.

    `seed` None: the weights are inputs.
    """

    def __init__(self, seed: int | None = None) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.inputs: list[onnx.ValueInfoProto] = []
        self.weights: list[onnx.TensorProto] = []
        self._random = None if seed is None else np.random.default_rng(seed)

    def op(self, op_type: str, *args: str, outputs: int = 1, **attributes: Any) -> Any:
        """Add a node; the name of its output, or a list of names."""
        name = f"{op_type}_{len(self.nodes)}"
        results = [f"{name}_out{i}" if outputs > 1 else f"{name}_out" for i in range(outputs)]
        self.nodes.append(helper.make_node(op_type, args, results, name=name, **attributes))
        return results if outputs > 1 else results[0]

    def constant(self, value: Any, dtype: Any) -> str:
        """Add a node that holds an array."""
        tensor = numpy_helper.from_array(np.asarray(value, dtype=dtype))
        result: str = self.op("Constant", value=tensor)
        return result

    def input(self, name: str, element_type: int, *shape: int | str) -> str:
        """Add an input of the model; a size that is free has a name."""
        self.inputs.append(helper.make_tensor_value_info(name, element_type, shape))
        return name

    def weight(self, name: str, *shape: int, mean: float = 0.0, std: float = _STD) -> str:
        """Add numbers near `mean`."""
        if self._random is None:
            return self.input(name, FLOAT, *shape)
        values = self._random.standard_normal(shape, dtype=np.float32)
        values *= np.float32(std)
        values += np.float32(mean)
        self.weights.append(numpy_helper.from_array(values, name))
        return name

    def initializer(self, name: str, array: np.ndarray) -> str:
        """Add an array that is no random number."""
        self.weights.append(numpy_helper.from_array(array, name))
        return name

    def conv(
        self, name: str, value: str, channels: tuple[int, int], kernel: int, **options: Any
    ) -> str:
        """Add a convolution that keeps the size of the map, or divides it by `stride`.

        Parameters
        ----------
        channels
            In, out.
        options
            `stride` (1), `group` (1), `bias` (False).
        """
        num_in, num_out = channels
        stride, group = options.get("stride", 1), options.get("group", 1)
        fan_in = num_in // group * kernel**2
        weight = self.weight(
            f"{name}.weight", num_out, num_in // group, kernel, kernel, std=(2 / fan_in) ** 0.5
        )
        bias = [self.weight(f"{name}.bias", num_out)] if options.get("bias", False) else []
        low, high = (kernel - 1) // 2, kernel // 2
        if kernel == stride:
            low = high = 0  # patches
        result: str = self.op(
            "Conv",
            value,
            weight,
            *bias,
            kernel_shape=[kernel, kernel],
            strides=[stride, stride],
            pads=[low, low, high, high],
            group=group,
        )
        return result

    def batch_norm(self, name: str, value: str, channels: int) -> str:
        """Add a batch norm in its form for inference."""
        parts = {"weight": 1.0, "bias": 0.0, "mean": 0.0, "var": 1.0}
        names = [
            self.weight(f"{name}.{part}", channels, mean=mean, std=0.1 if mean else _STD)
            for part, mean in parts.items()
        ]
        result: str = self.op("BatchNormalization", value, *names, epsilon=1e-5)
        return result

    def conv_norm(
        self, name: str, value: str, channels: tuple[int, int], kernel: int, **options: Any
    ) -> str:
        """Add a convolution with a batch norm; parameters as of `conv`."""
        result = self.conv(f"{name}.conv", value, channels, kernel, **options)
        return self.batch_norm(f"{name}.norm", result, channels[1])

    def pool_and_classify(self, name: str, value: str, channels: int, classes: int) -> str:
        """Add the usual end of a classifier: the mean over the map, and a linear layer."""
        pooled = self.op("Flatten", self.op("GlobalAveragePool", value), axis=1)
        weight = self.weight(f"{name}.weight", classes, channels, std=channels**-0.5)
        bias = self.weight(f"{name}.bias", classes)
        result: str = self.op("Gemm", pooled, weight, bias, transB=1)
        return result

    def gelu(self, value: str) -> str:
        """Add x (1 + erf(x / sqrt(2))) / 2, op by op."""
        error = self.op("Erf", self.op("Div", value, self.constant(math.sqrt(2), np.float32)))
        gate = self.op("Add", error, self.constant(1.0, np.float32))
        product = self.op("Mul", value, gate)
        result: str = self.op("Mul", product, self.constant(0.5, np.float32))
        return result

    def linear(self, name: str, value: str, num_in: int, num_out: int) -> str:
        """Add a product with a matrix, and a bias."""
        product = self.op("MatMul", value, self.weight(f"{name}.weight", num_in, num_out))
        result: str = self.op("Add", self.weight(f"{name}.bias", num_out), product)
        return result

    def layer_norm(self, name: str, value: str, hidden: int) -> str:
        """Add a norm of the last axis as one op."""
        gamma, beta = self._norm_weights(name, hidden)
        result: str = self.op("LayerNormalization", value, gamma, beta, axis=-1, epsilon=1e-5)
        return result

    def single_ops_layer_norm(self, name: str, value: str, hidden: int) -> str:
        """Add the same in nine ops, as before opset 17; epsilon as in BERT."""
        gamma, beta = self._norm_weights(name, hidden)
        centred = self.op("Sub", value, self.op("ReduceMean", value, axes=[-1]))
        squares = self.op("Pow", centred, self.constant(2.0, np.float32))
        variance = self.op("ReduceMean", squares, axes=[-1])
        deviation = self.op("Sqrt", self.op("Add", variance, self.constant(1e-12, np.float32)))
        scaled = self.op("Mul", self.op("Div", centred, deviation), gamma)
        result: str = self.op("Add", scaled, beta)
        return result

    def size(self, value: str, axis: int) -> str:
        """Add the size of one axis as a tensor of one element, as exporters write it."""
        shape = self.op("Shape", value)
        size = self.op("Gather", shape, self.constant(axis, np.int64), axis=0)
        result: str = self.op("Unsqueeze", size, self.constant([0], np.int64))
        return result

    def model(self, name: str, *outputs: tuple[str, tuple[int, ...]]) -> onnx.ModelProto:
        """Return the model of opset 17 with these outputs, all float: (value, shape)."""
        results = [helper.make_tensor_value_info(value, FLOAT, shape) for value, shape in outputs]
        return helper.make_model(
            helper.make_graph(self.nodes, name, self.inputs, results, self.weights),
            opset_imports=[helper.make_opsetid("", 17)],
            ir_version=8,
        )

    def _norm_weights(self, name: str, hidden: int) -> tuple[str, str]:
        return self.weight(f"{name}.weight", hidden, mean=1.0), self.weight(f"{name}.bias", hidden)
