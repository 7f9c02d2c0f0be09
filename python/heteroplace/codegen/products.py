"""A fused function -> the product of matrices by which cuBLASLt computes all of it, if it can.

    activation(left right + bias + sum)

The product is that of `nn.dense`, `nn.matmul` or `nn.batch_matmul` of float32; a bias is added
along the last axis, a sum has the shape of the result, and the activation is `nn.relu` or GELU by
tanh, which is cuBLASLt's (that by erf differs by up to 5e-4, so it is not taken for it). Shapes may
change on the way. A kernel of this kind has no code: its symbol says all of it, in the form that
`src/exec/devices/product.h` reads.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import tvm
from tvm import relay

from heteroplace.relay.expressions import post_order, static_shape

_NO_ALGORITHM = "0" * 128
"""What stands for the algorithm of a product for which none is chosen."""

_PREFIX = "cublaslt:"
_WORKSPACE_FIELD = 7
_MAX_EXTENT = 2**31 - 1
_MAX_OPERANDS = 64
_PRODUCTS = ("nn.dense", "nn.matmul", "nn.batch_matmul")
_RESHAPES = ("reshape", "squeeze", "expand_dims", "nn.batch_flatten")
_SCALAR_OPS = {
    "add": np.add,
    "subtract": np.subtract,
    "multiply": np.multiply,
    "divide": np.divide,
    "power": np.power,
    "tanh": np.tanh,
}
"""Of which GELU is made: analytic functions, so that what agrees with it at many points is it."""
_POINTS = np.concatenate([np.linspace(-8, 8, 513), np.linspace(-1, 1, 129) ** 3])
_GELU = 0.5 * _POINTS * (1 + np.tanh(math.sqrt(2 / math.pi) * (_POINTS + 0.044715 * _POINTS**3)))
_GELU_TOLERANCE = 1e-6
"""Its constants are of float32."""


@dataclass(frozen=True)
class Product:
    """A product of matrices, and what is done to it; row major, all of float32."""

    batch: int
    rows: int
    columns: int
    depth: int
    is_left_transposed: bool
    """The left is [depth, rows]; else [rows, depth]."""
    is_right_transposed: bool
    """The right is [columns, depth]; else [depth, columns]."""
    is_left_batched: bool
    """There is a left for each of the batch; else all have the same."""
    is_right_batched: bool
    left: int
    """Position among the function's parameters, as of the others."""
    right: int
    bias: int | None = None
    sum: int | None = None
    activation: str = "none"
    """"none", "relu" or "gelu"."""

    @property
    def name(self) -> str:
        """What equal products have in common; no blanks.

        >>> Product(1, 8, 32, 64, False, True, False, False, 0, 1, 2, None, "relu").name
        '1x8x32x64:ntss:relu:0,1,2,-'
        """
        layouts = "".join(
            letters[flag]
            for letters, flag in (
                ("nt", self.is_left_transposed),
                ("nt", self.is_right_transposed),
                ("sb", self.is_left_batched),
                ("sb", self.is_right_batched),
            )
        )
        operands = ",".join(
            "-" if each is None else str(each)
            for each in (self.left, self.right, self.bias, self.sum)
        )
        extents = f"{self.batch}x{self.rows}x{self.columns}x{self.depth}"
        return f"{extents}:{layouts}:{self.activation}:{operands}"

    def key(self, precision: str, target: tvm.target.Target) -> str:
        """Return under what the symbol with an algorithm is kept among a network's tunings.

        Parameters
        ----------
        precision
            What it multiplies in: "float32", "tf32" or "half".
        target
            Of a GPU.
        """
        return f"{_PREFIX}{precision}:{target.attrs.get('arch', '')}:{self.name}"

    def head(self, precision: str, version: int) -> str:
        """Return how a symbol begins, before scratch memory and algorithm.

        Parameters
        ----------
        version
            Of cuBLASLt, as 120903 for 12.9.3.
        """
        return f"{_PREFIX}{version}:{precision}:{self.name}:"

    def unchosen(self, precision: str) -> str:
        """Return a symbol without an algorithm: the library is asked by it for what it offers."""
        return f"{self.head(precision, 0)}0:{_NO_ALGORITHM}"


def is_product(symbol: str) -> bool:
    """Tell whether a kernel is computed by cuBLASLt, by its symbol."""
    return symbol.startswith(_PREFIX)


def product_workspace_bytes(symbol: str) -> int:
    """Return the scratch memory that a product's algorithm needs."""
    return int(symbol.split(":")[_WORKSPACE_FIELD])


def product_of(function: relay.Function) -> Product | None:
    """Return the product that a fused function is; None: it is none."""
    parameters = list(function.params)
    types = [parameter.checked_type for parameter in parameters]
    if len(parameters) >= _MAX_OPERANDS or not all(map(_is_float32, [*types, function.ret_type])):
        return None
    calls = [node for node in post_order(function.body) if isinstance(node, relay.Call)]
    found = [call for call in calls if _op_name(call) in _PRODUCTS]
    if len(found) != 1:
        return None
    call = found[0]
    if any(argument not in parameters for argument in call.args):
        return None
    extents = _extents(call)
    if extents is None or any(not 0 < extent <= _MAX_EXTENT for extent in extents.numbers):
        return None
    left, right = (parameters.index(argument) for argument in call.args)
    epilogue = _Epilogue(function, calls)
    end = epilogue.climb(call, extents)
    activation = _activation(function.body, end)
    if activation is None or not epilogue.reads_all(call):
        return None
    return Product(
        *extents.numbers, *extents.flags, left, right, epilogue.bias, epilogue.sum, activation
    )


@dataclass(frozen=True)
class _Extents:
    numbers: tuple[int, int, int, int]
    """batch, rows, columns, depth"""
    flags: tuple[bool, bool, bool, bool]


def _extents(call: relay.Call) -> _Extents | None:
    """The shape of a product."""
    left, right = (static_shape(argument.checked_type) for argument in call.args)
    if str(call.checked_type.dtype) != "float32":
        return None
    if _op_name(call) == "nn.dense":
        rows = math.prod(left[:-1])
        return _Extents((1, rows, right[0], left[-1]), (False, True, False, False))
    transposed = bool(call.attrs.transpose_a), bool(call.attrs.transpose_b)
    if _op_name(call) == "nn.matmul" and not len(left) == len(right) == 2:
        return None
    depth, rows = left[-2:] if transposed[0] else left[-2:][::-1]
    columns = right[-2] if transposed[1] else right[-1]
    batches = [math.prod(shape[:-2]) for shape in (left, right)]
    batch = max(batches)
    if any(each not in (1, batch) for each in batches):
        return None
    batched = [batch > 1 and each == batch for each in batches]
    return _Extents((batch, rows, columns, depth), (*transposed, batched[0], batched[1]))


@dataclass
class _Epilogue:
    """What is added to a product, found on the way from it to the result."""

    function: relay.Function
    calls: Sequence[relay.Call]
    bias: int | None = None
    sum: int | None = None
    users: dict[relay.Expr, list[relay.Call]] = field(default_factory=lambda: defaultdict(list))

    def __post_init__(self) -> None:
        for call in self.calls:
            for argument in dict.fromkeys(call.args):
                self.users[argument].append(call)

    def climb(self, product: relay.Call, extents: _Extents) -> relay.Expr:
        """Note what is added; return the last sum, or the product."""
        batch, rows, columns, _ = extents.numbers
        at: relay.Expr = product
        while len(self.users[at]) == 1 and at != self.function.body:
            (user,) = self.users[at]
            if _op_name(user) in _RESHAPES:
                at = user
            elif not self._add(user, at, batch * rows * columns, columns):
                break
            else:
                at = user
        return at

    def _add(self, user: relay.Call, at: relay.Expr, size: int, columns: int) -> bool:
        """Take the other operand of an addition as bias or sum; False: it is neither."""
        if _op_name(user) not in ("add", "nn.bias_add") or at not in user.args:
            return False
        other = user.args[1] if user.args[0] == at else user.args[0]
        if other not in self.function.params or user.args[0] == user.args[1]:
            return False
        place = list(self.function.params).index(other)
        whole = static_shape(user.checked_type)
        shape = static_shape(other.checked_type)
        if static_shape(at.checked_type) != whole:
            return False  # it broadcasts the product
        if _op_name(user) == "nn.bias_add" and int(user.attrs.axis) not in (-1, len(whole) - 1):
            return False
        is_row = whole[-1] == columns == math.prod(shape) and (shape or (1,))[-1] == columns
        if is_row and self.bias is None:
            self.bias = place
        elif math.prod(shape) == size and self.sum is None:
            self.sum = place
        else:
            return False
        return True

    def reads_all(self, product: relay.Call) -> bool:
        """Whether what was found are all parameters, each read once."""
        operands = [list(self.function.params).index(each) for each in product.args]
        others = [each for each in (self.bias, self.sum) if each is not None]
        reads = sum(len(self.users[parameter]) for parameter in self.function.params)
        is_square = operands[0] == operands[1]
        return {*operands, *others} == set(range(len(self.function.params))) and reads == len(
            others
        ) + (1 if is_square else 2)


def _activation(body: relay.Expr, end: relay.Expr) -> str | None:
    """The name of what a function does from the last sum to its result; None: it has none."""
    while body != end and _op_name(body) in _RESHAPES:
        body = body.args[0]
    if body == end:
        return "none"
    if _op_name(body) == "nn.relu":
        inner = body.args[0]
        while inner != end and _op_name(inner) in _RESHAPES:
            inner = inner.args[0]
        return "relu" if inner == end else None
    values = _values(body, end)
    if values is None or not np.allclose(values, _GELU, rtol=0, atol=_GELU_TOLERANCE):
        return None
    return "gelu"


def _values(body: relay.Expr, end: relay.Expr) -> np.ndarray | None:
    """What `body` is where `end` is each of the points; None: that is not known."""
    known: dict[relay.Expr, np.ndarray] = {end: _POINTS}
    for node in post_order(body):
        if node in known:
            continue
        if isinstance(node, relay.Constant) and node.data.numpy().size == 1:
            known[node] = node.data.numpy().astype("float64").reshape(())
        elif isinstance(node, relay.Call) and all(argument in known for argument in node.args):
            arguments = [known[argument] for argument in node.args]
            if _op_name(node) in _RESHAPES:
                known[node] = arguments[0]
            elif _op_name(node) in _SCALAR_OPS:
                with np.errstate(all="ignore"):
                    known[node] = _SCALAR_OPS[_op_name(node)](*arguments)
    return known.get(body)


def _op_name(node: relay.Expr) -> str:
    """The name of the op that a node calls; "": none."""
    is_call = isinstance(node, relay.Call) and isinstance(node.op, tvm.ir.Op)
    return str(node.op.name) if is_call else ""


def _is_float32(type_: tvm.ir.Type) -> bool:
    return isinstance(type_, relay.TensorType) and str(type_.dtype) == "float32"
