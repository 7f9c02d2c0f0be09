"""A prepared module -> the same, with a kernel behind every output that needs one.

What is placed and run are kernels. An output that is a constant has none, and a model that only
reshapes its inputs, or hands them on, has none at all; each gets one that copies here.

    (%x, meta[Constant])  ==>  (%x, where(zeros(bool), meta[Constant], meta[Constant]))
    reshape(%x)           ==>  copy(reshape(%x))

The first form is no constant expression to any folder, since none folds a call without arguments.
"""

from __future__ import annotations

import tvm
from tvm import relay

from heteroplace.model.op_traits.op_table import traits_of
from heteroplace.relay.expressions import leaves, post_order


def with_computed_outputs(mod: tvm.IRModule) -> tvm.IRModule:
    """Return `mod`, whose only function is `main`, with a kernel where an output has none.

    A typed module; `mod` itself where nothing is to be done.
    """
    main = mod["main"]
    calls = [node for node in post_order(main.body) if isinstance(node, relay.Call)]
    has_kernels = any(_is_kernel(call) for call in calls)
    outputs = leaves(main.body)
    fills = [isinstance(leaf, relay.Constant) for leaf in outputs]
    if has_kernels and not any(fills):
        return mod
    # One kernel makes the model something to run; the other outputs stay what they are.
    needs_copy = not has_kernels and not any(fills)
    computed = [
        _fill(leaf) if is_fill else relay.copy(leaf) if needs_copy else leaf
        for leaf, is_fill in zip(outputs, fills, strict=True)
    ]
    is_tuple = isinstance(main.body.checked_type, relay.TupleType)
    body = relay.Tuple(computed) if is_tuple else computed[0]
    function = relay.Function(main.params, body, attrs=main.attrs)
    functions = {**dict(mod.functions.items()), mod.get_global_var("main"): function}
    return relay.transform.InferType()(tvm.IRModule(functions))


def _is_kernel(call: relay.Call) -> bool:
    """Say whether a call computes something; views of the operand do not."""
    return traits_of(getattr(call.op, "name", "")).kind not in ("view", "flatten")


def _fill(constant: relay.Constant) -> relay.Expr:
    """Return a call that gives `constant`, and that is folded by nobody."""
    return relay.where(relay.zeros((), "bool"), constant, constant)
