"""A fused Relay function and a target -> its kernel, under a symbol that says what it computes.

TVM numbers kernels in the order in which a process lowers them. Here equal functions have the same
symbol in every process, so kernels can be lowered in forks, and linked together.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import tvm
from tvm import relay
from tvm.relay.backend import te_compiler

from heteroplace.errors import LoweringError
from heteroplace.lower.kernel_provider import kernel_providers
from heteroplace.lower.kernels import Kernel, KernelCode, structural_hash
from heteroplace.lower.library_symbols import library_workspace_bytes
from heteroplace.lower.workspace import Workspace, kernel_workspace
from heteroplace.place_options import CONFIG_PREFIX
from heteroplace.relay.expressions import is_injective, is_op_call, post_order
from heteroplace.relay.opt_level import inner_context
from heteroplace.relay.ranges.legal import legal_tensors
from heteroplace.relay.targets import has_stock_kernels
from heteroplace.relay.tasks.flops import call_flops, has_plain_weights
from heteroplace.tir.cpu_loops import even_parts, wide_indices
from heteroplace.tir.exact_floats import exact_floats, order_comparisons
from heteroplace.tir.exact_math import exact_math, half_by_float32
from heteroplace.tir.fold_starts import start_folds
from heteroplace.tir.keep_nan import keep_nan
from heteroplace.tir.rounded_bytes import rounded_bytes
from heteroplace.tir.safe_integers import define_integers

_DIGEST_BYTES = 8
_MAX_NAME_LENGTH = 80
"""Of the ops in a symbol; TVM's own names are about as long."""
_LOOP_PARTITION = "tir.LoopPartition"
"""TVM's options for loops whose last steps are only partly inside."""
_TILED_CONVOLUTION = "nn.contrib_conv2d_NCHWc"


def kernel_symbol(function: relay.Function, target: tvm.target.Target) -> str:
    """Return the symbol of a typed fused function's kernel: its ops, and a digest of 64 bits of the
    function and the target."""
    ops = op_text(function)
    types = [str(parameter.checked_type) for parameter in function.params]
    parts = [f"{structural_hash(function):016x}", ops, *types, str(function.ret_type)]
    parts += [str(target), str(target.host)]
    digest = hashlib.blake2b("\n".join(parts).encode(), digest_size=_DIGEST_BYTES).hexdigest()
    name = ops.replace(".", "_").replace("+", "_")[:_MAX_NAME_LENGTH]
    return f"{name}_{digest}"


def lower_kernel(symbol: str, function: relay.Function, target: tvm.target.Target) -> Kernel:
    """Lower a typed fused function as TVM and the kernel providers do.

    Raises
    ------
    LoweringError
        TVM has no implementation of an op on the target.
    """
    try:
        with target, _split_loops(function, target), exact_floats():
            lowered = te_compiler.get().lower(function, target)
        functions = finished(lowered.funcs, function, target)
    except (RuntimeError, ValueError, TypeError, AttributeError) as err:
        # TVM's strategies and schedules fail by all of these where they know no way.
        reason = last_cause(str(err))
        raise LoweringError(
            f"TVM cannot compile {op_text(function)} for target {target.kind.name!r}: "
            f"{reason}. Pin its task to another device, or leave this device out of the cluster"
        ) from err
    others = dict(functions.functions.items())
    entry = others.pop(lowered.prim_fn_var).with_attr("global_symbol", symbol)
    named = {tvm.ir.GlobalVar(symbol): entry, **others}
    return kernel_of(symbol, tvm.IRModule(named, attrs=functions.attrs), function, target)


@contextmanager
def _split_loops(function: relay.Function, target: tvm.target.Target) -> Iterator[None]:
    """Let TVM split loops whose last vector or tile is only partly inside.

    Otherwise every step asks which elements are inside, and such vectors become single numbers.
    Providers split products when they finish them. Other kernels would take longer to compile, and
    run no faster. An option that the user gives stays in force.
    """
    calls = _op_calls(function)
    is_convolution = any(is_op_call(call, _TILED_CONVOLUTION) for call in calls)
    gains = is_convolution or all(map(is_injective, calls))
    is_set = _LOOP_PARTITION in tvm.transform.PassContext.current().config
    if has_stock_kernels(target) or is_set or not gains:
        yield
        return
    with inner_context({_LOOP_PARTITION: {"partition_const_loop": True}}):
        yield


def kernel_of(
    symbol: str,
    functions: tvm.IRModule | None,
    function: relay.Function,
    target: tvm.target.Target,
    workspace: Workspace | None = None,
    code: KernelCode | None = None,
) -> Kernel:
    """Return a kernel with all that is known of it.

    Parameters
    ----------
    functions
        Its lowered code; None: only the compiled `code` is left, or a library of NVIDIA's computes
        it.
    workspace
        None: `functions` say it, or the symbol.
    """
    if workspace is None and functions is None:
        workspace = Workspace(library_workspace_bytes(symbol))
    elif workspace is None:
        workspace = kernel_workspace(functions, is_cpu=target.kind.name == "llvm")
    return Kernel(
        symbol,
        functions,
        target,
        workspace,
        op_text(function),
        function_flops(function),
        tuple(legal_tensors(function)),
        function,
        code,
    )


def config_texts(context: tvm.transform.PassContext) -> list[str]:
    """Return the options in a context's config that may change kernels, each as a text, sorted.

    Those of HeteroPlace are left out: they change where kernels run, and not what they are.
    """
    return sorted(
        f"{name}={value}"
        for name, value in context.config.items()
        if not str(name).startswith(CONFIG_PREFIX)
    )


def finished(
    functions: tvm.IRModule, function: relay.Function, target: tvm.target.Target
) -> tvm.IRModule:
    """Return lowered functions with what all kernels of a target have.

    These are defined integers, NaNs that stay and maxima from -inf; on a CPU right casts to
    float16, comparisons that no NaN passes and wide indices, on a GPU functions without short cuts.
    Kernels that are not TVM's own get the rewrites of kernel providers too, and on a CPU loops that
    threads divide evenly.
    """
    is_cpu = target.kind.name == "llvm"
    functions = half_by_float32(functions) if is_cpu else exact_math(functions)
    functions = start_folds(functions, function, is_cpu=is_cpu)
    is_stock = has_stock_kernels(target)
    functions = functions if is_stock else rounded_bytes(functions)
    functions = define_integers(keep_nan(functions, is_cpu=is_cpu))
    functions = order_comparisons(functions) if is_cpu else functions
    for provider in () if is_stock else kernel_providers().values():
        functions = provider.finish(functions, function)
    if is_cpu and not is_stock:
        functions = even_parts(functions)
    return wide_indices(functions) if is_cpu else functions


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
