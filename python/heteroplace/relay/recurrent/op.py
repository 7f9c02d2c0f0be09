"""LSTM, GRU and RNN over all steps: two ops for CPUs, for weights in float32 and in 8 bits.

    for each step t, from the first or from the last:
        r = h @ weights + biases                              [batch, gates * hidden]
        LSTM: i, o, f, g = products[t] + r                    c = sig(f) c + sig(i) tanh(g)
                                                              h = sig(o) tanh(c)
        GRU:  z, s = sig(products[t] + r), n = tanh(products[t] + s r)
                                                              h = n + z (h - n)
        RNN:  h = tanh(products[t] + r)
        states[t] = h

`products` are the products of the inputs of all steps with their own weights. If each step were
compiled by itself, a layer of 48 steps would be 500 tasks.

With weights of 8 bits, the state is rounded to bytes in each step, by its range (dynamic
quantisation). Source: ONNX operator specification; onnxruntime, DynamicQuantizeLSTM.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import tvm
from tvm import relay, te

from heteroplace.relay.expressions import static_shape, tensor_types
from heteroplace.relay.recurrent.kernel import recurrent_kernel
from heteroplace.relay.vnni import BYTES
from heteroplace.tvm_bridge import add_relay_op

RECURRENT_OP = "heteroplace_recurrent"
RECURRENT_BYTES_OP = "heteroplace_recurrent_bytes"
GATES = {"lstm": 4, "gru": 3, "rnn": 1}
"""Of each kind, in the order of ONNX; GRU with `linear_before_reset`."""
HIDDEN_MULTIPLE = 16
"""Sizes of states are padded to it, with zeros, which stay 0 in each of the kinds."""
_WIDTHS = 64, 48, 32, 16
"""Columns of a panel of weights: the first that divides all columns."""


class Recurrent(NamedTuple):
    """The operands of a call. `hidden` is a multiple of `HIDDEN_MULTIPLE`."""

    products: relay.Expr
    "[steps, batch, gates * hidden]"
    weights: relay.Expr
    "What `in_panels` makes."
    biases: relay.Expr
    "[gates * hidden]"
    hidden: relay.Expr
    "The first state, [batch, hidden]."
    cell: relay.Expr
    "Of an LSTM, likewise; else any one number, [1]."
    scales: relay.Expr | None = None
    "Of weights of bytes, [gates * hidden]."
    sums: relay.Expr | None = None
    "Of weights of bytes: of each column, int32[gates * hidden]."


def recurrent(operands: Recurrent, kind: str, is_backward: bool) -> list[relay.Expr]:
    """Return the states of all steps, [steps, batch, hidden], and of an LSTM the last cell.

    Parameters
    ----------
    kind
        A key of `GATES`.
    is_backward
        The steps go from the last to the first; the states are in the order of the inputs.
    """
    register_recurrent_ops()
    arguments = [each for each in operands if each is not None]
    name = RECURRENT_OP if operands.scales is None else RECURRENT_BYTES_OP
    attributes = tvm.ir.make_node("DictAttrs", kind=kind, is_backward=int(is_backward))
    call = relay.Call(tvm.ir.Op.get(name), arguments, attributes)
    return [relay.TupleGetItem(call, index) for index in (0, 1)] if kind == "lstm" else [call]


def in_panels(weights: relay.Expr, columns: int, depth: int, dtype: str) -> relay.Expr:
    """Return weights of the state in the order in which the kernel reads them.

    Of constants and parameters it is made while compiling.

    Parameters
    ----------
    weights
        float32 or int8 [gates * hidden, hidden], padded: [columns, depth].

    Returns
    -------
    expression
        float32 [panels, hidden, width], or int8 [panels, hidden / 4, width, 4].
    """
    width = next(each for each in _WIDTHS if columns % each == 0)
    if dtype == "float32":
        panels = relay.reshape(weights, (columns // width, width, depth))
        return relay.transpose(panels, (0, 2, 1))
    words = relay.reshape(weights, (columns // width, width, depth // BYTES, BYTES))
    return relay.transpose(words, (0, 2, 1, 3))


def register_recurrent_ops() -> None:
    """Make the ops known to TVM. Doing so again changes nothing."""
    arguments = {
        "products": ("Tensor", "[steps, batch, gates * hidden]"),
        "weights": ("Tensor", "see `in_panels`"),
        "biases": ("Tensor", "[gates * hidden]"),
        "hidden": ("Tensor", "[batch, hidden]"),
        "cell": ("Tensor", "[batch, hidden] or [1]"),
    }
    of_bytes = {
        "scales": ("Tensor", "[gates * hidden]"),
        "sums": ("Tensor", "int32[gates * hidden]"),
    }
    describe = "A recurrent layer over all steps of a sequence."
    for name, each in ((RECURRENT_OP, arguments), (RECURRENT_BYTES_OP, arguments | of_bytes)):
        add_relay_op(name, describe, each, _type_of, _compute, _schedule)


def _type_of(arguments: Any, attributes: Any) -> tvm.ir.Type | None:
    if not all(isinstance(each, relay.TensorType) for each in arguments):
        return None
    (steps, *_), hidden = static_shape(arguments[0]), static_shape(arguments[3])
    states = relay.TensorType((steps, *hidden), arguments[0].dtype)
    if str(attributes["kind"]) != "lstm":
        return states
    return relay.TupleType([states, relay.TensorType(hidden, arguments[4].dtype)])


def _compute(attributes: Any, tensors: Sequence[te.Tensor], result: Any) -> list[te.Tensor]:
    shapes = [static_shape(each) for each in tensor_types(result)]
    kind, is_backward = str(attributes["kind"]), bool(attributes["is_backward"])
    return recurrent_kernel(kind, is_backward, tensors, shapes)


def _schedule(_attributes: Any, outs: Any, _target: Any) -> te.Schedule:
    return te.create_schedule([each.op for each in outs])
