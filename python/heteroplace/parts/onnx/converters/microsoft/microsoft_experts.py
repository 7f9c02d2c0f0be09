"""MoE of com.microsoft ==> a router, and a branch for each of its experts.

onnxruntime, contributed operators. The scores are logits: their softmax says how much each expert
counts. Weights of all experts are in one tensor, [experts, out, in]; each branch reads its part, so
that experts can be placed apart, and run for the rows that chose them alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tvm import relay

from heteroplace.errors import FrontendError
from heteroplace.parts.onnx.converters.call import OnnxCall, const
from heteroplace.registry import load_plugin

_FC1, _FC2, _FC3 = 2, 4, 6
"""Operands that are weights; biases come behind each."""
_NOT_FUSED, _INTERLEAVED, _SIDE_BY_SIDE = range(3)
"""Values of swiglu_fusion."""
_SWIGLU = "swiglu"


def routed_experts(call: OnnxCall) -> relay.Expr:
    """Convert MoE: each row is computed by k experts, which are branches of a router."""
    layer = _Layer.of(call)
    shape = call.shape(0)
    rows = relay.reshape(call.operand(0), [-1, shape[-1]])
    scores = relay.nn.softmax(relay.cast(call.operand(1), "float32"), 1)
    # Of the part `routing`, which models without routers do not need.
    routing = load_plugin("public_names", "routing")
    decision = routing.top_k(scores, layer.k)
    if layer.is_normalised:
        total = relay.sum(decision.gates, 1, keepdims=True)
        gates = relay.divide(decision.gates, total)
        decision = routing.Decision(decision.mask, layer.k, gates)
    cells = routing.annotate_cell(rows, dims=(0,), shape=(1, shape[-1]))
    branches = [layer.expert(index) for index in range(layer.count)]
    result = routing.route(cells, decision, branches, gate="combine")
    return relay.reshape(result, shape)


@dataclass(frozen=True)
class _Product:
    """A product with a matrix of each expert."""

    weights: relay.Expr
    """[experts, out, in]"""
    bias: relay.Expr | None
    """[experts, out]"""

    def of(self, rows: relay.Expr, expert: int) -> relay.Expr:
        """Return the product of rows, [rows, out]."""
        result = relay.nn.dense(rows, _part(self.weights, expert))
        return result if self.bias is None else relay.add(result, _part(self.bias, expert))

    def every(self, begin: int, end: int, step: int) -> _Product:
        """Return the product of some of the rows of each matrix."""

        def cut(data: relay.Expr) -> relay.Expr:
            return relay.strided_slice(data, [begin], [end], [step], axes=[1])

        return _Product(cut(self.weights), None if self.bias is None else cut(self.bias))


def _part(data: relay.Expr, expert: int) -> relay.Expr:
    return relay.take(data, const(expert, "int32"), 0, mode="clip")


@dataclass(frozen=True)
class _Layer:
    """What the experts of a node compute: out(activation(inner(x))), or with a gate
    out(combine(inner(x), linear(x)))."""

    count: int
    k: int
    is_normalised: bool
    inner: _Product
    linear: _Product | None
    """None: there is no gate."""
    out: _Product
    activation: Callable[[relay.Expr], relay.Expr]
    """Of the inner values."""
    of_linear: Callable[[relay.Expr], relay.Expr]
    """Of what they are multiplied by."""

    @classmethod
    def of(cls, call: OnnxCall) -> _Layer:
        """Read a node; raises FrontendError for a form that is not supported."""
        for name in ("use_sparse_mixer", "swiglu_limit_after_activation"):
            if call.number(name, 0):
                raise FrontendError(f"{name}={call.number(name, 0)} is not supported, only 0")
        name = call.text("activation_type", "relu")
        if name != _SWIGLU and name not in _ACTIVATIONS:
            names = ", ".join(sorted((*_ACTIVATIONS, _SWIGLU)))
            raise FrontendError(f"activation_type={name} is not supported, only {names}")
        fusion = int(call.number("swiglu_fusion", _NOT_FUSED)) if name == _SWIGLU else _NOT_FUSED
        inner, linear = _gate_and_linear(call, name, fusion)
        return cls(
            count=call.shape(1)[1],
            k=_chosen(call),
            is_normalised=bool(call.number("normalize_routing_weights", 0)),
            inner=inner,
            linear=linear,
            out=_product(call, _FC2, "fc2", (call.shape(0)[-1], _width(call))),
            activation=_swish(call) if name == _SWIGLU else _ACTIVATIONS[name],
            of_linear=_linear(call) if name == _SWIGLU else lambda data: data,
        )

    def expert(self, index: int) -> Callable[[relay.Expr], relay.Expr]:
        """Return what an expert makes of rows, [rows, in] -> [rows, in]."""

        def run(rows: relay.Expr) -> relay.Expr:
            inner = self.activation(self.inner.of(rows, index))
            if self.linear is not None:
                linear = self.of_linear(self.linear.of(rows, index))
                inner = relay.multiply(inner, linear)
            return self.out.of(inner, index)

        return run


def _chosen(call: OnnxCall) -> int:
    """Return how many experts a row goes to."""
    k, count = int(call.number("k", 1)), call.shape(1)[1]
    if not 1 <= k <= count:
        raise FrontendError(f"k={k} of {count} experts; expected 1 to {count}")
    return k


def _width(call: OnnxCall) -> int:
    """Return how many inner values of a row an expert has."""
    return call.shape(_FC2)[-1]


def _gate_and_linear(call: OnnxCall, name: str, fusion: int) -> tuple[_Product, _Product | None]:
    """Return the product whose activation is taken, and that which it is multiplied by."""
    hidden, width = call.shape(0)[-1], _width(call)
    if fusion == _NOT_FUSED:
        inner = _product(call, _FC1, "fc1", (width, hidden))
        if not call.has(_FC3):
            if name == _SWIGLU:
                raise FrontendError("swiglu_fusion=0 needs fc3_experts_weights (operand 6)")
            return inner, None
        if name not in ("silu", _SWIGLU):
            raise FrontendError(
                f"fc3_experts_weights (operand 6) with activation_type={name} are not supported, "
                f"only with silu and swiglu"
            )
        return inner, _product(call, _FC3, "fc3", (width, hidden))
    if call.has(_FC3):
        raise FrontendError(
            f"swiglu_fusion={fusion} with fc3_experts_weights (operand 6) is not supported; leave "
            f"them out, or set it to 0"
        )
    both = _product(call, _FC1, "fc1", (2 * width, hidden))
    if fusion == _INTERLEAVED:
        return both.every(0, 2 * width, 2), both.every(1, 2 * width, 2)
    if fusion == _SIDE_BY_SIDE:
        return both.every(0, width, 1), both.every(width, 2 * width, 1)
    raise FrontendError(f"swiglu_fusion={fusion} is not supported, only 0, 1 and 2")


def _product(call: OnnxCall, operand: int, name: str, sizes: tuple[int, int]) -> _Product:
    """Return a product whose matrices have these sizes, (out, in)."""
    count = call.shape(1)[1]
    expected: dict[int, tuple[str, tuple[int, ...]]] = {
        operand: (f"{name}_experts_weights", (count, *sizes))
    }
    if call.has(operand + 1):
        expected[operand + 1] = (f"{name}_experts_bias", (count, sizes[0]))
    for place, (what, shape) in expected.items():
        if call.shape(place) != shape:
            raise FrontendError(
                f"{what} (operand {place}) has the shape {list(call.shape(place))}; expected "
                f"{list(shape)}"
            )
    return _Product(
        call.operand(operand), call.operand(operand + 1) if call.has(operand + 1) else None
    )


def _swish(call: OnnxCall) -> Callable[[relay.Expr], relay.Expr]:
    """Return g sigmoid(alpha g) of gates that are cut at the limit."""
    alpha, limit = float(call.number("activation_alpha", 1.0)), _limit(call)

    def run(data: relay.Expr) -> relay.Expr:
        dtype = call.dtype(0)
        gate = data if limit is None else relay.minimum(data, const(limit, dtype))
        return relay.multiply(gate, relay.sigmoid(relay.multiply(gate, const(alpha, dtype))))

    return run


def _linear(call: OnnxCall) -> Callable[[relay.Expr], relay.Expr]:
    """Return l + beta of values that are cut at the limit on both sides."""
    beta, limit = float(call.number("activation_beta", 0.0)), _limit(call)

    def run(data: relay.Expr) -> relay.Expr:
        part = data if limit is None else relay.clip(data, -limit, limit)
        return relay.add(part, const(beta, call.dtype(0))) if beta else part

    return run


def _limit(call: OnnxCall) -> float | None:
    limit = call.number("swiglu_limit", math.inf)
    return None if math.isinf(limit) else float(limit)


def _silu(data: relay.Expr) -> relay.Expr:
    return relay.multiply(data, relay.sigmoid(data))


def _gelu(data: relay.Expr) -> relay.Expr:
    """Return the approximation by tanh, as onnxruntime's kernels have it."""

    def number(value: float) -> relay.Expr:
        return const(value, "float32")

    cube = relay.multiply(relay.multiply(data, data), data)
    inner = relay.add(data, relay.multiply(cube, number(0.044715)))
    bent = relay.tanh(relay.multiply(inner, number(math.sqrt(2 / math.pi))))
    half = relay.multiply(data, number(0.5))
    return relay.multiply(half, relay.add(bent, number(1.0)))


_ACTIVATIONS: Mapping[str, Callable[[relay.Expr], relay.Expr]] = {
    "gelu": _gelu,
    "identity": lambda data: data,
    "relu": relay.nn.relu,
    "silu": _silu,
}
"""By activation_type."""
