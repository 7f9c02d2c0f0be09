"""Dense layers -> products that read their weights as they lie, or as their rows need it.

TVM rewrites the weights of a dense layer in blocks. For constants that is done once; for what is
computed or is state it would be a kernel and a buffer more for each call, in a pipeline for each
microbatch. Transposes that belong to the same task are not made at all.

    in a branch   nn.dense(%x, const)             ==>  heteroplace_packed_matmul(%x, panels)
    on a CPU      nn.dense(%x, %w)                ==>  heteroplace_matmul(%x, %w, transpose_b)
                  nn.dense(%x, transpose(%w))     ==>  heteroplace_matmul(%x, %w)
                  nn.matmul(%x, %w, ...)          ==>  heteroplace_matmul(%x, %w, ...)
    elsewhere     nn.matmul(%x, %w)               ==>  nn.dense(%x, transpose(%w))

TVM's own `nn.matmul` is naive on CPUs, and on GPUs cannot be compiled in all its forms. Where a
target names a library for products, all stays as it is. Branches of routers have any number of
rows, for which TVM's dense layers are slow; their panels are the same at each capacity. Where
kernels are to be TVM's own they are not made.
"""

from __future__ import annotations

import tvm
from tvm import relay

from heteroplace.codegen.matmul_op import matmul
from heteroplace.codegen.packed_matmul_op import packed, packed_matmul
from heteroplace.codegen.targets import has_stock_kernels
from heteroplace.relay.expressions import post_order, rebuild, static_shape, task_of_span
from heteroplace.relay.products import Operand, operands_of

Panels = dict[int, tuple[relay.Constant, relay.Constant | None]]
"""By address of its data, a constant and what it is in panels; None: it stays as it is."""

_LIBRARIES = frozenset(("cblas", "mkl", "dnnl", "cublas"))


def ReadWeightsInPlace(  # noqa: N802  (named as TVM names its passes)
    target: tvm.target.Target, panels: Panels | None = None
) -> tvm.transform.Pass:
    """Return the pass for a target. The types of the result are not inferred.

    Parameters
    ----------
    panels
        Of branches: what is known of their weights, to which it adds. None: it is in no branch.
    """

    def run(
        function: relay.Function, _mod: tvm.IRModule, _context: tvm.transform.PassContext
    ) -> relay.Function:
        if _LIBRARIES.intersection(str(library) for library in target.libs):
            return function
        known = None if has_stock_kernels(target) else panels
        return _rewritten(function, target.kind.name == "llvm", known)

    return relay.transform.function_pass(
        run, opt_level=0, name="ReadWeightsInPlace", required=["InferType"]
    )


def _rewritten(function: relay.Function, is_cpu: bool, panels: Panels | None) -> relay.Function:
    nodes = post_order(function.body)
    mapped: dict[relay.Expr, relay.Expr] = {}

    def rewrite(old: relay.Expr, new: relay.Expr) -> relay.Expr:
        found = operands_of(old)
        if found is None:
            return new
        if not is_cpu:
            return _as_dense(new, old) if old.op.name == "nn.matmul" else new
        if old.op.name == "nn.dense" and isinstance(old.args[1], relay.Constant):
            weights = None if panels is None else _in_panels(old, panels)
            return new if weights is None else _spanned(packed_matmul(new.args[0], weights), old)
        (a, turns_a), (b, turns_b) = (_untransposed(each, old) for each in found)
        made = matmul(mapped[a], mapped[b], transpose_a=turns_a, transpose_b=turns_b)
        return relay.Call(made.op, made.args, made.attrs, None, old.span)

    rebuild(nodes, mapped, rewrite)
    return relay.Function(function.params, mapped[function.body], None, [], function.attrs)


def _in_panels(dense: relay.Call, panels: Panels) -> relay.Constant | None:
    """The weights of a dense layer in panels, the same for all layers that have them."""
    rows, constant = dense.args
    address = constant.data.handle.contents.data
    if address not in panels:
        matrix = constant.data.numpy()
        types = {tensor.checked_type.dtype for tensor in (rows, constant, dense)}
        is_plain = types <= {"float32"} or types <= {"float64"}
        is_plain = is_plain and len(static_shape(rows.checked_type)) == 2
        found = packed(matrix) if is_plain else None
        panels[address] = constant, None if found is None else relay.const(found)
    return panels[address][1]


def _untransposed(operand: Operand, reader: relay.Call) -> Operand:
    """An operand before it is transposed, if that is done by the task of its reader."""
    found = operand.before()
    return found if task_of_span(operand.value) == task_of_span(reader) else operand


def _as_dense(new: relay.Call, old: relay.Call) -> relay.Call:
    a, b = new.args
    if old.attrs.transpose_a:
        a = _spanned(relay.transpose(a), old)
    if not old.attrs.transpose_b:
        b = _spanned(relay.transpose(b), old)
    return _spanned(relay.nn.dense(a, b, out_dtype=str(old.attrs.out_dtype)), old)


def _spanned(call: relay.Call, old: relay.Call) -> relay.Call:
    return relay.Call(call.op, call.args, call.attrs, call.type_args, old.span)
