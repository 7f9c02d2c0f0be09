"""`relay.frontend.from_onnx` in linear time: types, constants and shape values are kept as it goes.

TVM's importer asks for the type of every expression it makes, and each answer runs `InferType` and
`FoldConstant` over the whole graph so far: quadratic, and every tiny shape expression is compiled
by LLVM on top. Inside `linear_time_import()` the same questions are answered incrementally:

- the type of an expression is inferred from the types of its arguments alone and written on it
  (`InferTypeLocal`, arguments first, so that it never looks deeper than one call);
- objects of TVM are not asked for attributes that they lack, which takes 0.2 ms each time;
- constants are folded by numpy once per new expression; only what numpy cannot do goes to TVM's
  folder, one call at a time;
- values (`infer_value`) are folded from the given parameters the same way.

The module that comes out is structurally the one that the stock importer makes. The importer lets
`onnx.checker` serialise and check the whole model, and only warns of what it finds: it is left out.

The patch replaces module-level names of `tvm.relay.frontend.common` and `.onnx`, so it holds for
the whole process while it lasts. A lock lets one import run at a time; an import that another
thread starts by calling TVM directly at that moment is served by the patched functions too, which
is safe (they fall back to TVM's own) but unsynchronised: import from one thread.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import onnx.checker
import tvm
from tvm import relay
from tvm.relay.frontend import common as tvm_common
from tvm.relay.frontend import onnx as tvm_onnx

from heteroplace.errors import FrontendError
from heteroplace.parts.onnx.converters import converters_of
from heteroplace.parts.onnx.converters.quantized.rounded_qnn import rounded_qnn
from heteroplace.relay.expr_map import ExprSet
from heteroplace.relay.limits import call_fault
from heteroplace.relay.local_types import collected_diagnostics, write_types
from heteroplace.relay.tasks.fold import ConstantFolder, children, is_constant

_IMPORT_LOCK = threading.RLock()

_STOCK_INFER_TYPE = tvm_common.infer_type
_STOCK_INFER_VALUE = tvm_common.infer_value
_STOCK_SET_SPAN = tvm_common.set_span
_STOCK_SHAPE_OF = tvm_common.shape_of
_STOCK_GET_SOURCE_NAME = tvm_onnx.get_source_name
_STOCK_CONVERT_MAP = tvm_onnx._get_convert_map


class IncrementalImport:
    """The memory of one import: what is typed is typed once, what is folded is folded once."""

    def __init__(self) -> None:
        self._folder = _ImportFolder(self._typed_or_none)
        self.current_node: Any = None
        """The ONNX node that is being converted, for messages."""
        self.diagnostics: list[str] = []
        """What TVM's type checker would have printed, in order."""

    @property
    def num_folded(self) -> int:
        """Expressions that numpy replaced by constants so far."""
        return self._folder.num_folded

    def infer_type(self, node: Any, mod: Any = None) -> Any:
        """Stand in for `common.infer_type`: return `node` with its `checked_type` set."""
        if mod is not None or not _is_local(node):
            return _STOCK_INFER_TYPE(node, mod)
        write_types(node)
        return node

    def fold_constant(self, node: Any, mod: Any = None) -> Any:
        """Stand in for `common.fold_constant`."""
        if mod is not None:
            return relay.transform.FoldConstantExpr(node, mod)
        if _is_local(node):
            write_types(node)
        return self._folder.fold(node)

    def infer_value(self, input_val: Any, params: Mapping[str, Any], mod: Any = None) -> Any:
        """Stand in for `common.infer_value`: the value of `input_val` for given parameters."""
        bound = relay.bind(
            input_val,
            {
                var: relay.Constant(_as_ndarray(params[var.name_hint]))
                for var in relay.analysis.free_vars(input_val)
                if var.name_hint in params
            },
        )
        folded = self.fold_constant(bound)
        if isinstance(folded, relay.Constant):
            return folded.data
        return _STOCK_INFER_VALUE(input_val, params, mod)

    def set_span(self, sym: Any, span: Any) -> Any:
        """Stand in for `common.set_span`: the spanned copies are as folded as the originals."""
        result = _STOCK_SET_SPAN(sym, span)
        if isinstance(result, (relay.Expr, relay.expr.TupleWrapper)):
            self._folder.mark_folded(_expression(result))
        return result

    def shape_of(
        self, x: Any, dtype: str = "int64", start: int | None = None, end: int | None = None
    ) -> Any:
        """Stand in for `common.shape_of`, where numpy takes TVM's objects for arrays."""
        shape = self.infer_type(x).checked_type.shape
        if not all(isinstance(extent, tvm.tir.IntImm) for extent in shape):
            return _STOCK_SHAPE_OF(x, dtype, start, end)
        extents = [int(extent) for extent in shape]
        return relay.const(extents[start or 0 : end or len(extents)], dtype)

    def get_source_name(self, node: Any, type_dict: dict[str, int]) -> Any:
        """Stand in for `onnx.get_source_name`, which is called once for each node, first of all."""
        self.current_node = node
        return _STOCK_GET_SOURCE_NAME(node, type_dict)

    def _typed_or_none(self, expr: Any) -> Any:
        """Return the type of `expr`, inferring it if it is missing."""
        if expr._checked_type_ is None and _is_local(expr):
            write_types(expr)
        return expr._checked_type_


class _SpansInOrder(tvm_common._SpanFiller):  # type: ignore[misc]
    """Stand in for `common._SpanFiller`: spans come on arguments before the calls of them, so that
    its recursion finds them written, and goes no deeper than one call."""

    def visit(self, expr: Any) -> Any:
        """Return an expression with spans; an op has none, and is not asked for it."""
        return expr if isinstance(expr, tvm.ir.Op) else super().visit(expr)

    def fill(self, sym: Any) -> Any:
        """Return a copy of what a converter made, with the span wherever there is none."""
        seen = ExprSet()
        roots = sym if isinstance(sym, (list, tuple)) else [sym]
        stack = [(_expression(root), False) for root in roots]
        while stack:
            expr, is_ready = stack.pop()
            if is_ready:
                self.visit(expr)
            elif isinstance(expr, relay.Expr) and not expr.span and expr not in seen:
                seen.add(expr)
                stack.append((expr, True))
                stack.extend((child, False) for child in children(expr))
        return super().fill(sym)


def _expression(sym: Any) -> Any:
    return sym.tuple_value if isinstance(sym, relay.expr.TupleWrapper) else sym


class _ImportFolder(ConstantFolder):
    """Folds by numpy, then hands a call of constants that is left over to TVM's folder."""

    def _rebuild(self, expr: Any, old: Sequence[Any]) -> Any:
        result = super()._rebuild(expr, old)
        if not isinstance(result, relay.Call) or not isinstance(result.op, tvm.ir.Op):
            return result
        if not all(is_constant(arg) for arg in result.args) or not result.args:
            return result
        fault = call_fault(result, self._type_of(expr))
        if fault is not None:
            raise FrontendError(f"a constant cannot be computed: {fault}")
        folded = relay.transform.FoldConstantExpr(result, tvm.IRModule())
        return self._remember(folded)


@contextlib.contextmanager
def linear_time_import() -> Iterator[IncrementalImport]:
    """Make `relay.frontend.from_onnx` linear in the size of the graph while the context lasts.

    Yields
    ------
    The memory of the import, for its counts. TVM's own functions are put back in any case.
    """
    with _IMPORT_LOCK:
        state = IncrementalImport()
        replacements: dict[str, Any] = {
            "infer_type": state.infer_type,
            "fold_constant": state.fold_constant,
            "infer_value": state.infer_value,
            "set_span": state.set_span,
            "_SpanFiller": _SpansInOrder,
            "get_source_name": state.get_source_name,
            "shape_of": state.shape_of,
            "get_name": _name_of,
            "_qnn": rounded_qnn(),
            # The table of converters is the same for every node of one opset.
            "_get_convert_map": functools.lru_cache(maxsize=4)(_converters),
        }
        saved = [
            (module, name, getattr(module, name))
            for module in (tvm_common, tvm_onnx)
            for name in replacements
            if hasattr(module, name)
        ]
        saved.append((onnx.checker, "check_model", onnx.checker.check_model))
        replacements["check_model"] = _unless_in_this_thread(onnx.checker.check_model)
        try:
            for module, name, _ in saved:
                setattr(module, name, replacements[name])
            with collected_diagnostics(state.diagnostics):
                yield state
        finally:
            for module, name, stock in saved:
                setattr(module, name, stock)


def _name_of(node: Any) -> str:
    """Stand in for `common.get_name`: only variables are asked for their names."""
    return str(node.name_hint) if isinstance(node, (relay.Var, tvm.ir.GlobalVar)) else ""


def _unless_in_this_thread(function: Callable[..., object]) -> Callable[..., object]:
    """Return a function that does nothing in this thread, and in others what `function` does."""
    thread = threading.get_ident()

    def run(*arguments: Any, **options: Any) -> object:
        return None if threading.get_ident() == thread else function(*arguments, **options)

    return run


def _converters(opset: int) -> dict[str, Any]:
    """Return the converters of TVM and of ours by op type."""
    return converters_of(_STOCK_CONVERT_MAP(opset), opset)


def _is_local(node: Any) -> bool:
    """Return True for forms whose type follows from their parts without a scope."""
    return isinstance(
        node, (relay.Call, relay.Tuple, relay.TupleGetItem, relay.Var, relay.Constant, relay.If)
    )


def _as_ndarray(value: Any) -> tvm.nd.NDArray:
    return value if isinstance(value, tvm.nd.NDArray) else tvm.nd.array(value)
