"""A Relay module -> the same module with its constant expressions computed by numpy.

TVM's own `FoldConstant` compiles every constant expression by LLVM, one after the other: most of
the time of a build goes there. This pass evaluates the cheap ops first (see `fold_ops.py`), so
that almost nothing is left for `FoldConstant`, which stays in the pipeline for the rest.

    add(%x, sqrt(add(const, const)))  ==>  add(%x, const)

Fixed properties: an expression in which nothing folds is returned as the same object; spans stay;
a result has exactly the type that Relay inferred; functions marked Primitive, Compiler or
Composite are left alone; no Python recursion, so graphs of any depth work.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tvm
from tvm import relay

from heteroplace.relay.expr_map import ExprMap
from heteroplace.relay.expressions import (
    function_pass,
    known_shape,
    shared_array,
    static_shape,
)
from heteroplace.relay.limits import copies_fault, has_possible_sizes
from heteroplace.relay.tasks.fold_ops import EVALUATORS, FOLDABLE_DTYPES, SHAPE_OPS

MAX_GROWTH_BYTES = 64 * 2**20
"""A result above this size is folded only if it is no larger than what it is made from."""
_TILE = 64
"""Rows and columns of a tile. The first-level cache holds one of the source and one of the copy."""

_CLOSED_ATTRS = ("Primitive", "Compiler", "Composite")

TypeOf = Callable[[Any], Any]


def inferred_type(expr: Any) -> Any:
    """Return the type that `InferType` wrote on `expr`, or None."""
    return expr._checked_type_


class ConstantFolder:
    """Folds expressions bottom-up and remembers what it has seen, so that calls add up linearly.

    Not thread-safe. All remembered expressions are kept alive by the memo, so that a new object
    can never be taken for an old one at the same address.

    Parameters
    ----------
    type_of
        Gives the type of an expression, or None if it is not known (then it is not folded).
    folds_fills
        Fold calls without operands (`zeros`, `ones`) too. TVM's own folder does not: weights of
        zeros are larger than a call.
    """

    def __init__(self, type_of: TypeOf = inferred_type, folds_fills: bool = True) -> None:
        self._type_of = type_of
        self._folds_fills = folds_fills
        self._memo: ExprMap[Any] = ExprMap()
        self.num_folded = 0
        """Calls replaced by a constant so far."""

    def fold(self, expr: Any) -> Any:
        """Return `expr` with its constant parts computed; `expr` itself if there are none."""
        stack: list[tuple[Any, list[Any] | None]] = [(expr, None)]
        while stack:
            current, parts = stack.pop()
            if current in self._memo:
                continue
            if parts is not None:
                self._memo[current] = self._rebuild(current, parts)
                continue
            parts = children(current)
            stack.append((current, parts))
            stack.extend((child, None) for child in reversed(parts) if child not in self._memo)
        return self._memo[expr]

    def mark_folded(self, expr: Any) -> None:
        """Declare that nothing is left to fold in `expr` and in what it is made of."""
        stack = [expr]
        while stack:
            current = stack.pop()
            if current not in self._memo:
                self._memo[current] = current
                stack.extend(children(current))

    def _rebuild(self, expr: Any, old: Sequence[Any]) -> Any:
        """`expr`, made of `old`, with its constant parts computed."""
        new = [self._memo[child] for child in old]
        if isinstance(expr, relay.Call):
            value = self._evaluate(expr, new)
            if value is not None:
                self.num_folded += 1
                return self._remember(value)
        if isinstance(expr, relay.TupleGetItem) and isinstance(new[0], relay.Tuple):
            return new[0].fields[expr.index]
        if all(before.same_as(after) for before, after in zip(old, new, strict=True)):
            return expr
        return self._remember(with_children(expr, new))

    def _remember(self, expr: Any) -> Any:
        self._memo[expr] = expr
        return expr

    def _evaluate(self, call: Any, args: Sequence[Any]) -> Any | None:
        """Return the constant (or tuple of constants) that `call` computes, or None."""
        op = call.op
        if not isinstance(op, tvm.ir.Op):
            return None
        name = op.name
        if name in SHAPE_OPS:
            value: Any = self._shape_value(name, call)
        elif (
            name in EVALUATORS
            and (args or self._folds_fills)
            and all(is_constant(arg) for arg in args)
        ):
            values = [constant_value(arg) for arg in args]
            result_type = self._type_of(call)
            if not _is_foldable(result_type, values) or copies_fault(call) is not None:
                return None
            with np.errstate(all="ignore"):  # inf and nan are results here, as in compiled code
                value = EVALUATORS[name](call.attrs, values, result_type)
        else:
            return None
        if value is None:
            return None
        if isinstance(value, list):
            return relay.Tuple([_constant(part, call.span) for part in value], call.span)
        return _checked_constant(value, self._type_of(call), name, call.span)

    def _shape_value(self, name: str, call: Any) -> Any:
        arg_type = self._type_of(call.args[0])
        if arg_type is None or not is_static(arg_type):
            return None
        shape = static_shape(arg_type)
        dtype = call.attrs.dtype or "int32"
        return np.asarray(shape if name == "shape_of" else np.prod(shape), dtype=dtype)


def fold_constants(mod: tvm.IRModule) -> tvm.IRModule:
    """Return `mod` with the constant expressions of its functions computed by numpy.

    Parameters
    ----------
    mod
        A Relay module that type-checks. It is not changed.

    Returns
    -------
    A typed module. Linear in the number of expressions.

    Raises
    ------
    tvm.TVMError
        If the module does not type-check.
    """
    return NumpyFoldConstant()(mod)


def NumpyFoldConstant() -> tvm.transform.Pass:  # noqa: N802 (named as TVM names its passes)
    """Return the pass that runs `fold_constants`, with type inference before and after it."""

    def fold_function(function: relay.Function) -> relay.Function:
        return ConstantFolder(folds_fills=False).fold(function)

    fold = function_pass("NumpyFoldFunction", fold_function)
    return tvm.transform.Sequential(
        [fold, relay.transform.InferType()], opt_level=0, name="NumpyFoldConstant"
    )


_FOLDED_BEFORE = ("FoldConstant", "SimplifyExprPostAlterOp")


def with_numpy_folding(passes: Sequence[tvm.transform.Pass]) -> list[tvm.transform.Pass]:
    """Return `passes` with `NumpyFoldConstant` before each `FoldConstant`, nested ones included.

    It goes before `SimplifyExprPostAlterOp` too: that pass searches for patterns, and its time
    grows with the number of ops, many of which change the layout of weights at that point.
    TVM's `FoldScaleAxis` is a sequence that ends in a `FoldConstant` of its own, and on a network
    with batch norms that one compiles more constants than all others together.

    Parameters
    ----------
    passes
        As read from a `Sequential`. They are not changed; sequences inside keep their names and
        levels, so `disabled_pass` works as before.
    """
    result: list[tvm.transform.Pass] = []
    for step in passes:
        info = step.info
        if isinstance(step, tvm.transform.Sequential):
            inner = with_numpy_folding(step.passes)
            step = tvm.transform.Sequential(inner, opt_level=info.opt_level, name=info.name)
        elif info.name in _FOLDED_BEFORE:
            result.append(NumpyFoldConstant())
        result.append(step)
    return result


def children(expr: Any) -> list[Any]:
    """Return the expressions that `expr` is made of and that may be folded, in a fixed order."""
    if isinstance(expr, relay.Call):
        args: list[Any] = expr.args[:]
        op = expr.op
        return args if isinstance(op, tvm.ir.Op) else [*args, op]
    if isinstance(expr, relay.Tuple):
        fields: list[Any] = expr.fields[:]
        return fields
    if isinstance(expr, relay.TupleGetItem):
        return [expr.tuple_value]
    if isinstance(expr, relay.If):
        return [expr.cond, expr.true_branch, expr.false_branch]
    if isinstance(expr, relay.Let):
        return [expr.value, expr.body]
    if isinstance(expr, relay.Function) and not _is_closed(expr):
        return [expr.body]
    return []


def with_children(expr: Any, new: Sequence[Any]) -> Any:
    """Return a copy of `expr` (attributes, span and type kept) made of `new` (see `children`)."""
    if isinstance(expr, relay.Call):
        if isinstance(expr.op, tvm.ir.Op):
            return relay.expr.CallWithFields(expr, expr.op, list(new))
        return relay.expr.CallWithFields(expr, new[-1], list(new[:-1]))
    if isinstance(expr, relay.Tuple):
        return relay.expr.TupleWithFields(expr, list(new))
    if isinstance(expr, relay.TupleGetItem):
        return relay.expr.TupleGetItemWithFields(expr, new[0])
    if isinstance(expr, relay.If):
        return relay.expr.IfWithFields(expr, *new)
    if isinstance(expr, relay.Let):
        return relay.expr.LetWithFields(expr, expr.var, *new)
    return relay.function.FunctionWithFields(expr, list(expr.params), new[0])


def is_static(tensor_type: Any) -> bool:
    """Return True for a tensor type whose dimensions are all known."""
    return isinstance(tensor_type, relay.TensorType) and known_shape(tensor_type) is not None


def is_constant(expr: Any) -> bool:
    """Return True for a constant, or a tuple of constants, of types that numpy knows."""
    if isinstance(expr, relay.Tuple):
        return all(is_constant(field) for field in expr.fields)
    return isinstance(expr, relay.Constant) and expr.data.dtype in FOLDABLE_DTYPES


def constant_value(expr: Any) -> Any:
    """Return the array of a constant; a list of arrays for a tuple of constants."""
    if isinstance(expr, relay.Tuple):
        return [constant_value(field) for field in expr.fields]
    return shared_array(expr.data)


def constant_scalar(expr: Any) -> float | None:
    """Return the number that a constant of one element holds; None: it is no such constant."""
    if not is_constant(expr) or isinstance(expr, relay.Tuple):
        return None
    value = constant_value(expr)
    return float(value.reshape(())) if value.size == 1 else None


def _is_closed(function: Any) -> bool:
    attrs = function.attrs
    return attrs is not None and any(name in attrs for name in _CLOSED_ATTRS)


def _is_foldable(result_type: Any, values: Sequence[Any]) -> bool:
    """Return True if the result has a static type that numpy knows, and is not a blow-up."""
    parts = result_type.fields if isinstance(result_type, relay.TupleType) else [result_type]
    num_bytes = 0
    for part in parts:
        if not is_static(part) or part.dtype not in FOLDABLE_DTYPES:
            return False
        if not has_possible_sizes(static_shape(part)):
            return False
        num_bytes += int(np.prod(static_shape(part), dtype=object)) * np.dtype(part.dtype).itemsize
    source_bytes = 0
    for value in values:
        source_bytes += sum(v.nbytes for v in value) if isinstance(value, list) else value.nbytes
    return num_bytes <= max(MAX_GROWTH_BYTES, source_bytes)


def _constant(value: Any, span: Any) -> Any:
    return relay.Constant(tvm.nd.array(_in_order(value).reshape(value.shape)), span)


def _in_order(array: np.ndarray) -> np.ndarray:
    """Return an array in C order. A transposed matrix is copied in tiles, which is three times as
    fast as numpy's copy."""
    if array.ndim != 2 or array.flags.c_contiguous or array.size < _TILE**2:
        return np.ascontiguousarray(array)
    result = np.empty(array.shape, array.dtype)
    for row in range(0, array.shape[0], _TILE):
        for column in range(0, array.shape[1], _TILE):
            tile = slice(row, row + _TILE), slice(column, column + _TILE)
            result[tile] = array[tile]
    return result


def _checked_constant(value: Any, result_type: Any, name: str, span: Any) -> Any:
    """Wrap `value`; an evaluator that disagrees with Relay's type relation is our own bug."""
    array = np.asarray(value)
    assert result_type is None or (
        array.shape == static_shape(result_type) and array.dtype == result_type.dtype
    ), f"{name} folded to {array.shape} {array.dtype}, Relay says {result_type}"
    return _constant(array, span)
