"""Random graphs of ONNX nodes: many inputs, types and outputs; values that are read many times."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper
from random_onnx import Chain, Op, input_shape
from random_onnx_runs import reference

FLOATS = ("float32", "float16", "float64")
SIGNED = ("int32", "int64", "int8", "int16")
UNSIGNED = ("uint8", "uint16", "uint32", "uint64")
DTYPES = (*FLOATS, *SIGNED, *UNSIGNED, "bool")
_INPUT_DTYPES = (*["float32"] * 12, *DTYPES)
_MAX_ELEMENTS, _MAX_RANK = 20_000, 5
_LARGEST = 1e4
"""Of a float, so that float16 holds it."""
_ATTEMPTS = 200


@dataclass(frozen=True)
class Made:
    """A value that is there to be read."""

    name: str
    array: np.ndarray


class Graph(Chain):
    """Nodes each behind any value so far, of any type and shape; onnxruntime knows all of them."""

    def __init__(self, random: Random, ops: Sequence[Op], length: int) -> None:
        self._attempts = 0
        self.made: list[Made] = []
        self._given: dict[str, np.ndarray] = {}
        super().__init__(random, ops, length)
        self.outputs = self._choose_outputs()

    def _begin(self) -> None:
        base = input_shape(self.random)
        for count in range(self.one_of((1, 1, 2, 3))):
            shape = base if count == 0 or self.maybe() else self._related(base)
            self.add_input(self.drawn(self.one_of(_INPUT_DTYPES), shape))
        self.focus(self.made[0])

    def add_input(self, array: np.ndarray) -> None:
        """Have one more input, of which this is the value."""
        name = f"x{len(self._given)}"
        self._given[name] = array
        self.made.append(Made(name, array))

    def _related(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """A shape that is broadcast with another one, or has nothing to do with it."""
        if self.maybe(0.3):
            return self.one_of(((), (1,), (0,), (2, 0, 3), input_shape(self.random)))  # type: ignore[no-any-return]
        return tuple(size if self.maybe(0.6) else 1 for size in shape)[self.one_of((0, 0, 1)) :]

    def drawn(self, dtype: str, shape: Sequence[int]) -> np.ndarray:
        """Random numbers of a type."""
        if dtype == "bool":
            return self.numbers.random(shape) < 0.5  # type: ignore[no-any-return]
        if dtype in FLOATS:
            return np.asarray(self.numbers.standard_normal(shape)).astype(dtype)
        low = 0 if dtype in UNSIGNED else -100
        return np.asarray(self.numbers.integers(low, 100, shape)).astype(dtype)

    def focus(self, made: Made) -> None:
        """Let the next op read this value."""
        self.value, self.array = made.name, made.array
        self.shape, self.dtype = made.array.shape, made.array.dtype.name

    def _try(self, op: Op) -> None:
        """Append an op behind any value, unless it does not go with it."""
        self._attempts += 1
        if self._attempts > _ATTEMPTS:
            self.ops += ["gave up"] * 100
            return
        num_nodes, constants = len(self.nodes), dict(self.constants)
        self.focus(self.made[-1] if self.maybe(0.5) else self.one_of(self.made))
        try:
            is_made = op(self) and self._look_at_value()
        except (ValueError, IndexError, ZeroDivisionError, KeyError):  # of no axis or no element
            is_made = False
        if is_made:
            self.ops.append(op.__name__)
        else:
            del self.nodes[num_nodes:]
            self.constants = constants

    def _look_at_value(self) -> bool:
        """Keep the value if onnxruntime computes it, and it is small in every sense."""
        if self.nodes[-1].op_type in ("GRU", "LSTM", "RNN") and not self.array.size:
            return False  # onnxruntime ends the process
        found = reference(self.model_to([self.value]), self._given)
        if found is None or not isinstance(found[0], np.ndarray):
            return False
        array = found[0]
        if array.ndim > _MAX_RANK or array.size > _MAX_ELEMENTS or array.dtype.name not in DTYPES:
            return False
        if self.nodes[-1].op_type.startswith("Reduce") and not array.size:
            return False  # onnxruntime forgets to reduce what has no elements
        if array.dtype.kind == "f" and not (np.abs(array) < _LARGEST).all():
            return False
        self.made.append(Made(self.value, array))
        return True

    def _choose_outputs(self) -> list[str]:
        """What nobody reads, and now and then an input, a constant, and what is read as well."""
        read = {name for node in self.nodes for name in node.input}
        computed = [made.name for made in self.made if made.name not in self._given]
        outputs = [name for name in computed if name not in read] or [self.made[-1].name]
        outputs += [name for name in computed if name in read and self.maybe(0.15)]
        outputs += [name for name in self._given if name not in outputs and self.maybe(0.1)]
        if self.constants and self.maybe(0.1):
            outputs.append(self.one_of([*self.constants]))
        self.random.shuffle(outputs)
        return outputs

    def model_to(self, outputs: Sequence[str]) -> onnx.ModelProto:
        """The graph up to some of its values."""
        types = {made.name: made.array for made in self.made}
        types |= self.constants

        def info(name: str) -> onnx.ValueInfoProto:
            if name not in types:
                return onnx.ValueInfoProto(name=name)
            dtype = helper.np_dtype_to_tensor_dtype(types[name].dtype)
            return helper.make_tensor_value_info(name, dtype, types[name].shape)

        graph = helper.make_graph(
            self.nodes,
            "graph",
            [info(name) for name in self._given],
            [info(name) for name in outputs],
            [numpy_helper.from_array(value, name) for name, value in self.constants.items()],
        )
        opsets = [helper.make_opsetid("", self.opset)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=8)

    def model(self) -> onnx.ModelProto:
        """The whole graph."""
        return self.model_to(self.outputs)

    def inputs(self) -> dict[str, np.ndarray]:
        """The values with which it was made."""
        return dict(self._given)

    # What ops are made of, in the type of the value.

    def scalar(self, value: float) -> str:
        """A constant of the type of the value, away from zero where that is of integers."""
        if self.dtype in FLOATS:
            return self.constant(np.asarray(value, self.dtype))
        whole = int(np.sign(value) * np.ceil(abs(value)))
        return self.constant(
            np.asarray(abs(whole) if self.dtype in UNSIGNED else whole, self.dtype)
        )

    def floats(self, *shape: int, scale: float = 1.0) -> str:
        """A constant of random numbers of the type of the value."""
        array = self.drawn(self.dtype, shape)
        return self.constant((array * scale).astype(self.dtype))

    def like_value(self) -> list[str]:
        """Values of the shape and type of the value, itself among them."""
        return [
            made.name
            for made in self.made
            if (made.array.shape, made.array.dtype) == (self.array.shape, self.array.dtype)
        ]

    def of_type(self, *dtypes: str) -> list[Made]:
        """Values of these types."""
        return [made for made in self.made if made.array.dtype.name in dtypes]

    def as_type(self, dtype: str) -> str:
        """The value, cast to another type."""
        return self.node("Cast", [self.value], to=tensor_type(dtype))


def tensor_type(dtype: str) -> Any:
    """ONNX's number of a type."""
    return helper.np_dtype_to_tensor_dtype(np.dtype(dtype))


def broadcast_of(first: tuple[int, ...], second: tuple[int, ...]) -> tuple[int, ...] | None:
    """The shape of both together, if there is one."""
    try:
        return np.broadcast_shapes(first, second)
    except ValueError:
        return None
