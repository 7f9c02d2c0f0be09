"""What a fused function does with the result of its one product or convolution.

    activation(result + bias + sum)

A bias is one number for each column or channel, a sum has the shape of the result, and the
activation is `nn.relu` or GELU by tanh. Shapes may change on the way.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import tvm
from tvm import relay

from heteroplace.model.op_traits.op_table import ops_where
from heteroplace.parts.kernels.nvidia.library_kernels import MAX_OPERANDS
from heteroplace.relay.expressions import post_order, static_shape

_RESHAPES = ops_where(lambda op: op.kind in ("view", "flatten"))
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

IsBias = Callable[[Sequence[int], Sequence[int], int | None], bool]
"""Whether an operand is a bias: shapes of the sum and of the operand, axis of `nn.bias_add`."""


@dataclass
class Epilogue:
    """What is added to a product, found on the way from it to the result."""

    function: relay.Function
    calls: Sequence[relay.Call]
    size: int
    """Numbers of the result."""
    is_bias: IsBias
    bias: int | None = None
    sum: int | None = None
    users: dict[relay.Expr, list[relay.Call]] = field(default_factory=lambda: defaultdict(list))

    def __post_init__(self) -> None:
        for call in self.calls:
            for argument in dict.fromkeys(call.args):
                self.users[argument].append(call)

    def climb(self, call: relay.Call) -> relay.Expr:
        """Note what is added to a product or convolution; return the last sum, or the call."""
        at: relay.Expr = call
        while len(self.users[at]) == 1 and at != self.function.body:
            (user,) = self.users[at]
            if op_name(user) in _RESHAPES:
                at = user
            elif not self._add(user, at):
                break
            else:
                at = user
        return at

    def _add(self, user: relay.Call, at: relay.Expr) -> bool:
        """Take the other operand of an addition as bias or sum; False: it is neither."""
        if op_name(user) not in ("add", "nn.bias_add") or at not in user.args:
            return False
        other = user.args[1] if user.args[0] == at else user.args[0]
        if other not in self.function.params or user.args[0] == user.args[1]:
            return False
        place = list(self.function.params).index(other)
        whole = static_shape(user.checked_type)
        shape = static_shape(other.checked_type)
        if static_shape(at.checked_type) != whole:
            return False  # it broadcasts the result
        axis = int(user.attrs.axis) if op_name(user) == "nn.bias_add" else None
        if self.bias is None and self.is_bias(whole, shape, axis):
            self.bias = place
        elif math.prod(shape) == self.size and self.sum is None and axis is None:
            self.sum = place
        else:
            return False
        return True

    def reads_all(self, call: relay.Call) -> bool:
        """Whether what was found are all parameters, each read once."""
        operands = [list(self.function.params).index(each) for each in call.args]
        others = [each for each in (self.bias, self.sum) if each is not None]
        reads = sum(len(self.users[parameter]) for parameter in self.function.params)
        is_square = operands[0] == operands[1]
        return {*operands, *others} == set(range(len(self.function.params))) and reads == len(
            others
        ) + (1 if is_square else 2)


def activation_of(body: relay.Expr, end: relay.Expr) -> str | None:
    """Return the name of what a function does from the last sum on; None: it has none."""
    while body != end and op_name(body) in _RESHAPES:
        body = body.args[0]
    if body == end:
        return "none"
    if op_name(body) == "nn.relu":
        inner = body.args[0]
        while inner != end and op_name(inner) in _RESHAPES:
            inner = inner.args[0]
        return "relu" if inner == end else None
    values = _values(body, end)
    if values is None or not np.allclose(values, _GELU, rtol=0, atol=_GELU_TOLERANCE):
        return None
    return "gelu"


def _values(body: relay.Expr, end: relay.Expr) -> np.ndarray | None:
    """What `body` is where `end` is each of the points; None: that is not known."""
    values: dict[relay.Expr, np.ndarray] = {end: _POINTS}
    for node in post_order(body):
        if node in values:
            continue
        if isinstance(node, relay.Constant) and node.data.numpy().size == 1:
            values[node] = node.data.numpy().astype("float64").reshape(())
        elif isinstance(node, relay.Call) and all(argument in values for argument in node.args):
            arguments = [values[argument] for argument in node.args]
            if op_name(node) in _RESHAPES:
                values[node] = arguments[0]
            elif op_name(node) in _SCALAR_OPS:
                with np.errstate(all="ignore"):
                    values[node] = _SCALAR_OPS[op_name(node)](*arguments)
    return values.get(body)


def op_name(node: relay.Expr) -> str:
    """Return the name of the op that a node calls; "": none."""
    is_call = isinstance(node, relay.Call) and isinstance(node.op, tvm.ir.Op)
    return str(node.op.name) if is_call else ""


def _is_float32(type_: tvm.ir.Type) -> bool:
    return isinstance(type_, relay.TensorType) and str(type_.dtype) == "float32"


def is_float32_function(function: relay.Function) -> bool:
    """Tell whether parameters and result of a function are tensors of float32, and not too many."""
    types = [*(parameter.checked_type for parameter in function.params), function.ret_type]
    return len(types) <= MAX_OPERANDS and all(map(_is_float32, types))
