"""Random Relay programs of many ops and types, whose numbers stay finite.

To compile a kernel takes most of the time, so programs are made in batches of a few shapes and
types: what an op makes has a shape of the batch again, and programs share kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

import numpy as np
import tvm
from relay_models import module, var
from tvm import relay

FLOATS = ("float32", "float64", "float16")
DTYPES = (*FLOATS, "int8", "uint8", "int32", "int64")
SHAPES = ((4, 16), (2, 4, 8), (64,), (16, 4))
MAP = (1, 4, 4, 4)
"""What convolutions take. All shapes have as many elements; halves of them come too."""
LIMIT = 100.0
"""Of values that are cast: every type holds it."""


@dataclass(frozen=True)
class Typed:
    """An expression with its type."""

    expr: relay.Expr
    shape: tuple[int, ...]
    dtype: str


Made = list[Typed]


@dataclass(frozen=True)
class Batch:
    """Programs side by side in one module: none reads what another makes."""

    mod: tvm.IRModule
    inputs: tuple[tuple[str, ...], ...]
    """Names of the inputs of each program."""
    num_outputs: tuple[int, ...]
    """How many of the module's outputs are each program's, in order."""


def random_batch(random: Random, num_programs: int) -> Batch:
    """Programs of some shapes and types."""
    shapes = (MAP, random.choice(SHAPES))
    dtypes = ("float32", *random.sample(DTYPES[1:], 2))
    programs = [RandomRelay(random, f"p{n}_", shapes, dtypes) for n in range(num_programs)]
    outputs = relay.Tuple([output for program in programs for output in program.outputs])
    return Batch(
        module([parameter for program in programs for parameter in program.inputs], outputs),
        tuple(tuple(each.name_hint for each in program.inputs) for program in programs),
        tuple(len(program.outputs) for program in programs),
    )


class RandomRelay:
    """One random program: a graph of ops over inputs and weights, and some of its values."""

    def __init__(
        self,
        random: Random,
        prefix: str,
        shapes: Sequence[tuple[int, ...]],
        dtypes: Sequence[str],
    ) -> None:
        self._random = random
        self._shapes = shapes
        self._dtypes = dtypes
        self.inputs: list[relay.Var] = []
        self._values: list[Typed] = []
        for index in range(random.randint(1, 3)):
            shape, dtype = random.choice(shapes), random.choice(dtypes)
            self.inputs.append(var(f"{prefix}x{index}", shape, dtype))
            self._values.append(Typed(self.inputs[-1], shape, dtype))
        first = len(self._values)
        while len(self._values) < first + 8 or random.random() < 0.85:
            # Of the last values mostly: deep programs, with joins of what lies far apart.
            recent = self._values[-4:] if random.random() < 0.6 else self._values
            self._values += random.choice(_WAYS)(self, random.choice(recent))
        made = [value.expr for value in self._values[first:]]
        self.outputs = [*made[-2:], *random.sample(made, random.randint(0, 2))]
        """The last values and some others, now and then one twice or an input."""
        if random.random() < 0.1:
            self.outputs.append(self.inputs[0])

    # Each takes a value and makes some.

    def unary(self, value: Typed) -> Made:
        """An element for each element."""
        if value.dtype in ("bool", "uint8"):
            return self.cast(value)
        names = ["negative", "abs", "relu"]
        if value.dtype in FLOATS:
            names += ["tanh", "sigmoid", "exp", "sqrt", "clip"]
        make: dict[str, Callable[[relay.Expr], relay.Expr]] = {
            "negative": relay.negative,
            "abs": relay.abs,
            "relu": relay.nn.relu,
            "tanh": relay.tanh,
            "sigmoid": relay.sigmoid,
            "exp": lambda x: relay.exp(relay.tanh(x)),
            "sqrt": lambda x: relay.sqrt(relay.abs(x)),
            "clip": lambda x: relay.clip(x, -1.5, 2.0),
        }
        return [Typed(make[self._random.choice(names)](value.expr), value.shape, value.dtype)]

    def binary(self, value: Typed) -> Made:
        """Two values of one type, or one and a weight that is broadcast."""
        if value.dtype == "bool":
            return self.cast(value)
        left, other = value.expr, self._random.choice(self._like(value)).expr
        has_weight = left.same_as(other)
        if has_weight:
            other = self._weight((*[1] * (len(value.shape) - 1), value.shape[-1]), value.dtype)
        name = self._random.choice(["add", "subtract", "multiply", "maximum", "minimum", "where"])
        if name == "multiply":  # neither overflow nor infinity
            left = self._tamed(left, value.dtype)
            # Weights are small. What is computed of them alone is folded, by other code than a
            # kernel's: its last bit may differ.
            other = other if has_weight else self._tamed(other, value.dtype)
        if name == "where":
            made = relay.where(relay.greater(left, other), left, other)
        else:
            made = getattr(relay, name)(left, other)
        return [Typed(made, value.shape, value.dtype)]

    def compare(self, value: Typed) -> Made:
        """Truth values."""
        if value.dtype == "bool":
            return [Typed(relay.logical_not(value.expr), value.shape, "bool")]
        other = self._random.choice(self._like(value)).expr
        op = self._random.choice([relay.greater, relay.less, relay.equal])
        return [Typed(op(value.expr, other), value.shape, "bool")]

    def cast(self, value: Typed) -> Made:
        """Another type, of values that it holds."""
        dtype = self._random.choice([each for each in self._dtypes if each != value.dtype])
        return [self._cast(value, dtype)]

    def reshape(self, value: Typed) -> Made:
        """Another shape of the same elements."""
        count = int(np.prod(value.shape))
        fit = [s for s in self._shapes if int(np.prod(s)) == count and s != value.shape]
        shape = self._random.choice(fit or [(count,)])
        return [Typed(relay.reshape(value.expr, shape), shape, value.dtype)]

    def transpose(self, value: Typed) -> Made:
        """The last axes, or all of them, in another order."""
        axes = list(range(len(value.shape)))
        axes[-2:] = axes[:-3:-1]
        shape = tuple(value.shape[axis] for axis in axes)
        return [Typed(relay.transpose(value.expr, axes), shape, value.dtype)]

    def split(self, value: Typed) -> Made:
        """Halves along an axis, of which not all need be used."""
        axis = len(value.shape) // 2
        if value.shape[axis] % 2:
            return self.unary(value)
        shape = tuple(n // 2 if i == axis else n for i, n in enumerate(value.shape))
        halves = relay.split(value.expr, 2, axis=axis)
        return [Typed(halves[index], shape, value.dtype) for index in range(2)]

    def concat(self, value: Typed) -> Made:
        """Two values of one type side by side, sometimes the same."""
        axis = len(value.shape) // 2
        if int(np.prod(value.shape)) > 64:
            return self.slice(value)
        parts = [value.expr, self._random.choice(self._like(value)).expr]
        shape = tuple(n * 2 if i == axis else n for i, n in enumerate(value.shape))
        return [Typed(relay.concatenate(parts, axis), shape, value.dtype)]

    def slice(self, value: Typed) -> Made:
        """Every other element of an axis."""
        axis = len(value.shape) // 2
        begins = [0] * len(value.shape)
        strides = [2 if i == axis else 1 for i in range(len(value.shape))]
        made = relay.strided_slice(value.expr, begins, list(value.shape), strides)
        shape = tuple((n + 1) // 2 if i == axis else n for i, n in enumerate(value.shape))
        return [Typed(made, shape, value.dtype)]

    def reduce(self, value: Typed) -> Made:
        """A sum, mean, extreme or its place along the last axis, and the value less that."""
        if value.dtype not in ("float32", "float64", "int32"):
            return [self._cast(value, "float32")]
        names = ["sum", "max", "min", "argmax"]
        name = self._random.choice([*names, "mean"] if value.dtype != "int32" else names)
        expr = value.expr if name != "sum" else self._tamed(value.expr, value.dtype)
        made = getattr(relay, name)(expr, axis=[-1], keepdims=True)
        if name == "argmax":
            return [Typed(made, (*value.shape[:-1], 1), "int32")]
        return [Typed(relay.subtract(value.expr, made), value.shape, value.dtype)]

    def softmax(self, value: Typed) -> Made:
        """A softmax of the last axis."""
        value = self._cast(value, "float32")
        return [Typed(relay.nn.softmax(value.expr), value.shape, value.dtype)]

    def dense(self, value: Typed) -> Made:
        """A matrix product with a weight."""
        columns = value.shape[-1]
        rows = int(np.prod(value.shape)) // columns
        matrix = self._cast(value, "float32").expr
        if len(value.shape) != 2:
            matrix = relay.reshape(matrix, (rows, columns))
        made = relay.nn.dense(matrix, self._weight((8, columns), "float32"))
        return [Typed(relay.tanh(made), (rows, 8), "float32")]

    def conv(self, value: Typed) -> Made:
        """A convolution, and what mostly follows it."""
        image = self._map(value)
        kernel = self._random.choice([1, 3])
        made = relay.nn.conv2d(
            image,
            self._weight((4, 4, kernel, kernel), "float32"),
            padding=(kernel // 2, kernel // 2),
            channels=4,
            kernel_size=(kernel, kernel),
        )
        return [Typed(relay.nn.relu(relay.tanh(made)), MAP, "float32")]

    def pool(self, value: Typed) -> Made:
        """A pooling that keeps the size, or takes all of it."""
        image = self._map(value)
        which = self._random.randrange(3)
        if which == 2:
            return [Typed(relay.nn.global_avg_pool2d(image), (1, 4, 1, 1), "float32")]
        op = (relay.nn.max_pool2d, relay.nn.avg_pool2d)[which]
        return [Typed(op(image, (3, 3), padding=(1, 1)), MAP, "float32")]

    def _like(self, value: Typed) -> Made:
        """Values of the same type, itself among them."""
        return [v for v in self._values if (v.shape, v.dtype) == (value.shape, value.dtype)]

    def _map(self, value: Typed) -> relay.Expr:
        """A value as a map; the first input's shape has its elements where this has not."""
        if int(np.prod(value.shape)) != int(np.prod(MAP)):
            value = self._values[0]
        expr = self._cast(value, "float32").expr
        return expr if value.shape == MAP else relay.reshape(expr, MAP)

    def _cast(self, value: Typed, dtype: str) -> Typed:
        """The value in a type, cut to what that holds."""
        if value.dtype == dtype:
            return value
        expr = value.expr
        is_small = value.dtype in ("bool", "uint8") or (value.dtype == "int8" and dtype != "uint8")
        if not is_small or (value.dtype, dtype) == ("uint8", "int8"):
            expr = relay.clip(expr, 0.0 if "uint8" in (value.dtype, dtype) else -LIMIT, LIMIT)
        return Typed(relay.cast(expr, dtype), value.shape, dtype)

    def _tamed(self, expr: relay.Expr, dtype: str) -> relay.Expr:
        if dtype in FLOATS:
            return relay.tanh(expr)
        return relay.clip(expr, 0.0 if dtype == "uint8" else -5.0, 5.0)

    def _weight(self, shape: tuple[int, ...], dtype: str) -> relay.Constant:
        """One of four of a type."""
        numbers = np.random.default_rng([self._random.randrange(4), *shape])
        if dtype in FLOATS:
            return relay.const(numbers.standard_normal(shape).astype(dtype), dtype)
        return relay.const(numbers.integers(0, 5, shape).astype(dtype), dtype)


_WAYS = (
    *(RandomRelay.unary, RandomRelay.binary, RandomRelay.split, RandomRelay.concat) * 2,
    *(RandomRelay.compare, RandomRelay.cast, RandomRelay.reshape, RandomRelay.transpose),
    *(RandomRelay.slice, RandomRelay.reduce, RandomRelay.softmax, RandomRelay.dense),
    *(RandomRelay.conv, RandomRelay.pool),
)
