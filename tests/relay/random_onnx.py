"""Random chains of ONNX nodes with random attributes: what an exporter may write, and none does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

OPSETS = (11, 12, 13, 16, 17, 18, 19, 20, 21)
_MAX_ELEMENTS = 40_000

Op = Callable[["Chain"], bool]
"""Adds nodes behind `value` and makes it what they give; False: not of this tensor."""


class Chain:
    """Nodes one behind the other, now and then with a value from further up, of one input "x"."""

    def __init__(self, random: Random, ops: Sequence[Op], length: int) -> None:
        self.random = random
        self.numbers = np.random.default_rng(random.getrandbits(32))
        self.opset = random.choice(OPSETS)
        self.nodes: list[onnx.NodeProto] = []
        self.constants: dict[str, np.ndarray] = {}
        self.ops: list[str] = []
        self._begin()
        while len(self.ops) < length:
            self._try(random.choice(ops))

    def _begin(self) -> None:
        """Make the input."""
        self.shape = input_shape(self.random)
        self.value = "x"
        self._input_shape = self.shape
        self._made = [(self.value, self.shape)]

    def _try(self, op: Op) -> None:
        """Append an op, unless it does not go with what there is."""
        num_nodes, constants = len(self.nodes), dict(self.constants)
        value, shape = self.value, self.shape
        made = self._shape_of_value() if op(self) else None
        if made is None:
            del self.nodes[num_nodes:]
            self.constants, self.value, self.shape = constants, value, shape
        else:
            self.shape = made
            self._made.append((self.value, made))
            self.ops.append(op.__name__)

    def _shape_of_value(self) -> tuple[int, ...] | None:
        """The shape of `value`, if it is a small tensor of floats that ONNX's own rules allow."""
        try:
            checked = onnx.shape_inference.infer_shapes(
                self.model(), strict_mode=True, data_prop=True
            )
        except onnx.shape_inference.InferenceError:
            return None
        tensor = checked.graph.output[0].type.tensor_type
        shape = tuple(size.dim_value for size in tensor.shape.dim)
        is_small = bool(shape) and min(shape) > 0 and np.prod(shape) <= _MAX_ELEMENTS
        return shape if is_small and tensor.elem_type == TensorProto.FLOAT else None

    def model(self) -> onnx.ModelProto:
        """The chain as a model from `x` to what came last."""
        graph = helper.make_graph(
            self.nodes,
            "chain",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, self._input_shape)],
            [helper.make_tensor_value_info(self.value, TensorProto.FLOAT, None)],
            [numpy_helper.from_array(value, name) for name, value in self.constants.items()],
        )
        opsets = [helper.make_opsetid("", self.opset)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=8)

    def inputs(self) -> dict[str, np.ndarray]:
        """Random values of its input."""
        return {"x": self.numbers.standard_normal(self._input_shape, dtype=np.float32)}

    # What ops are made of.

    @property
    def rank(self) -> int:
        """Of `value`."""
        return len(self.shape)

    def maybe(self, probability: float = 0.5) -> bool:
        """Yes or no."""
        return self.random.random() < probability

    def one_of(self, choices: Sequence[Any]) -> Any:
        """One of them."""
        return self.random.choice(choices)

    def axis(self) -> int:
        """Any axis, counted from either side."""
        return self.random.randrange(-self.rank, self.rank)

    def either_side(self, axis: int) -> int:
        """This axis, counted from either side."""
        return axis - self.rank if self.maybe() else axis

    def constant(self, value: Any) -> str:
        """A constant of the type that the array has."""
        name = f"c{len(self.constants)}"
        self.constants[name] = np.asarray(value)
        return name

    def scalar(self, value: float) -> str:
        """A constant float32 without axes."""
        return self.constant(np.float32(value))

    def floats(self, *shape: int, scale: float = 1.0) -> str:
        """A constant of random floats."""
        return self.constant((self.numbers.standard_normal(shape) * scale).astype(np.float32))

    def integers(self, values: Any) -> str:
        """A constant of int64."""
        return self.constant(np.asarray(values, np.int64))

    def node(self, op_type: str, inputs: Sequence[str], **attributes: Any) -> str:
        """Append a node of one output; return its name."""
        return self.nodes_of(op_type, inputs, 1, **attributes)[0]

    def nodes_of(
        self, op_type: str, inputs: Sequence[str], num_outputs: int, **attributes: Any
    ) -> list[str]:
        """Append a node of several outputs; return their names."""
        first = f"v{len(self.nodes)}"
        names = [f"{first}_{output}" for output in range(num_outputs)]
        self.nodes.append(helper.make_node(op_type, inputs, names, name=f"n_{first}", **attributes))
        return names

    def then(self, op_type: str, inputs: Sequence[str], **attributes: Any) -> bool:
        """Append a node, whose result is now the value."""
        self.value = self.node(op_type, inputs, **attributes)
        return True

    def integers_for(self, name: str, values: Sequence[int]) -> tuple[list[str], dict[str, Any]]:
        """Axes or sizes, as an operand or, before opset 13, as an attribute."""
        if self.opset < 13:
            return [], {name: list(values)}
        return [self.integers(values)], {}

    def like_value(self) -> list[str]:
        """Values of the shape of `value`, itself among them."""
        return [name for name, shape in self._made if shape == self.shape]


def input_shape(random: Random) -> tuple[int, ...]:
    rank = random.choice((2, 3, 3, 4, 4, 4, 4, 4, 5))
    if rank == 2:
        return random.randint(1, 9), random.randint(2, 33)
    batch, channels = random.choice((1, 1, 2)), random.choice((1, 3, 4, 6, 8, 16, 17))
    if rank == 5:
        channels = random.choice((1, 2, 4))
    longest = {3: 20, 4: 13, 5: 7}[rank]
    return batch, channels, *(random.randint(3, longest) for _ in range(rank - 2))
