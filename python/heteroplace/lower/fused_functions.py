"""A fused function -> what is said of its kernel, and what all lowered kernels of a target have."""

from __future__ import annotations

import tvm
from tvm import relay

from heteroplace.lower.kernel_provider import kernel_providers
from heteroplace.relay.expressions import post_order
from heteroplace.relay.targets import has_stock_kernels
from heteroplace.relay.tasks.flops import call_flops, has_plain_weights
from heteroplace.tir.exact_math import exact_math
from heteroplace.tir.fold_starts import start_folds
from heteroplace.tir.half_casts import half_by_float32
from heteroplace.tir.keep_nan import keep_nan
from heteroplace.tir.rounded_bytes import rounded_bytes
from heteroplace.tir.safe_integers import define_integers


def finished(
    functions: tvm.IRModule, function: relay.Function, target: tvm.target.Target
) -> tvm.IRModule:
    """Return lowered functions with what all kernels of a target have: defined integers, NaNs that
    stay, maxima from -inf, casts to float16 that are, on a GPU functions without short cuts, and,
    unless they are TVM's own, the rewrites of kernel providers."""
    is_cpu = target.kind.name == "llvm"
    functions = half_by_float32(functions) if is_cpu else exact_math(functions)
    functions = start_folds(functions, function, is_cpu=is_cpu)
    if has_stock_kernels(target):
        return define_integers(keep_nan(functions, is_cpu=is_cpu))
    functions = define_integers(keep_nan(rounded_bytes(functions), is_cpu=is_cpu))
    for provider in kernel_providers().values():
        functions = provider.finish(functions, function)
    return functions


def op_text(function: relay.Function) -> str:
    """Return the names of the ops in a fused function, in the order in which they run."""
    return "+".join(call.op.name for call in _op_calls(function))


def _op_calls(function: relay.Function) -> list[relay.Call]:
    return [
        node
        for node in post_order(function.body)
        if isinstance(node, relay.Call) and isinstance(node.op, tvm.ir.Op)
    ]


def function_flops(function: relay.Function) -> int:
    """Return the floating-point operations of a call of a fused function; 0: not known."""
    calls = _op_calls(function)
    # Weights that were transformed for a fast algorithm no longer have the shape of their layout.
    if any(not has_plain_weights(call) for call in calls):
        return 0
    return sum(call_flops(call) for call in calls)


def last_cause(text: str) -> str:
    """Return the line of TVM's long message that says what is wrong."""
    lines = [
        line.strip() for line in text.splitlines() if "Error:" in line or "Check failed" in line
    ]
    return lines[-1] if lines else text.strip().splitlines()[-1]
