"""Lowered kernels for CPUs -> the same with other loops: equal for threads, and quick to compile.

`even_parts` lets threads divide parallel loops evenly:

    parallel for i in range(36):          parallel for part in range(96):
        body(i)                               if part * 36 % 96 >= 96 - 36:
                                                  i = part * 36 / 96
                                                  body(i)

TVM rounds the length of chunks up, so the last ones are shorter or empty. If 36 steps make eight
chunks, four for each of two threads, one thread gets 20 steps and the other 16. Here each part has
one step or none, evenly spread. 96 parts divide evenly among 1, 2, 3, 4, 6, 8 or 12 threads. Each
thread gets the same share of every loop, so it reads what it wrote itself.

`wide_indices` makes loops and indices of int64, which LLVM compiles faster:

    for i: int32 in range(n):                  for i: int64 in range(n):
        k: int32 = i * 16                          k: int64 = i * 16
        y[k:k + 16] = x[k:k + 16] + f32(i)         y[k:k + 16] = x[k:k + 16] + f32(int32(i))

Addresses have 64 bits, so LLVM extends indices of int32. Where it cannot prove that their sums do
not overflow, it keeps both widths, and its loop strength reduction looks for ways from one to the
other. In a large convolution that takes longer than all other passes together.

Only what fits into int32 for certain gets wider, so no result changes. Vectors of integers stay as
they are: twice as many fit into a register.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import arith, tir

from heteroplace.tir.lowered_functions import with_functions, with_nodes

_PARTS = 96
_EVEN_STEPS = 8
"""Two threads divide multiples of it evenly already. Parts cost two divisions each, and made
`mobilenet_int8` 1.04x slower (Intel Xeon, family 6, model 167)."""
_MAX_STEPS = 1024
"""In longer loops, the last chunk matters little."""
_NARROW, _WIDE = "int32", "int64"
_LIMITS = -(2**31), 2**31 - 1
_ARITHMETIC = (
    *(tir.Add, tir.Mul, tir.Sub, tir.Min, tir.Max),
    *(tir.Div, tir.Mod, tir.FloorDiv, tir.FloorMod),
)
_COMPARISONS = (tir.EQ, tir.NE, tir.LT, tir.LE, tir.GT, tir.GE)


def even_parts(functions: tvm.IRModule) -> tvm.IRModule:
    """Return the kernels with parallel loops that threads divide evenly.

    Parameters
    ----------
    functions
        Lowered functions of one kernel; they are not changed.
    """
    return with_nodes(functions, _in_parts, "tir.For")


def _in_parts(loop: Any) -> tir.For | None:
    """Return a parallel loop over parts; None: the loop stays as it is."""
    is_parallel = loop.kind == tir.ForKind.PARALLEL
    if not is_parallel or not isinstance(loop.extent, tir.IntImm):
        return None
    steps, dtype = int(loop.extent), loop.loop_var.dtype
    parts = -(-steps // _PARTS) * _PARTS
    if not 1 < steps < min(parts, _MAX_STEPS) or steps % _EVEN_STEPS == 0:
        return None
    part, step = tir.Var("part", dtype), tir.Var(loop.loop_var.name, dtype)
    place = part * steps
    body = tir.stmt_functor.substitute(loop.body, {loop.loop_var: step})
    body = tir.LetStmt(step, loop.min + tir.truncdiv(place, parts), body)
    body = tir.IfThenElse(tir.truncmod(place, parts) >= parts - steps, body, None)
    return tir.For(part, 0, parts, loop.kind, body, loop.thread_binding, loop.annotations)


def wide_indices(functions: tvm.IRModule) -> tvm.IRModule:
    """Return the kernels with loop variables of int64, and what is computed from them alike.

    Parameters
    ----------
    functions
        Lowered functions of one kernel; they are not changed. One that is nested more deeply than
        Python's stack allows stays as it is.
    """
    return with_functions(functions, _widened)


def _widened(function: tir.PrimFunc) -> tir.PrimFunc:
    try:
        return function.with_body(_Widener().statement(function.body))
    except RecursionError:  # it compiles all the same, only more slowly
        return function


class _Widener:
    """Rewrites the body of a function, outer statements first."""

    def __init__(self) -> None:
        self._wide: dict[tir.Var, tir.Var] = {}
        """What stands for variables of int32."""
        self._analyzer = arith.Analyzer()

    def statement(self, node: Any) -> Any:
        """Return what stands for a statement; None for None."""
        match node:
            case tir.SeqStmt():
                return tir.SeqStmt(list(map(self.statement, node.seq)))
            case tir.BufferStore():
                value = self._same_type(node.value)
                return tir.BufferStore(node.buffer, value, list(map(self._value, node.indices)))
            case tir.For():
                return self._loop(node)
            case tir.LetStmt():
                variable, value = self._named(node.var, node.value)
                return tir.LetStmt(variable, value, self.statement(node.body))
            case tir.IfThenElse():
                sides = self.statement(node.then_case), self.statement(node.else_case)
                return tir.IfThenElse(self._value(node.condition), *sides)
            case tir.Evaluate():
                return tir.Evaluate(self._same_type(node.value))
            case tir.Allocate():
                return tir.Allocate(
                    *(node.buffer_var, node.dtype, list(map(self._value, node.extents))),
                    *(self._value(node.condition), self.statement(node.body)),
                    node.annotations,
                )
            case tir.AttrStmt():
                value = self._same_type(node.value)
                return tir.AttrStmt(node.node, node.attr_key, value, self.statement(node.body))
            case tir.DeclBuffer():
                return tir.DeclBuffer(node.buffer, self.statement(node.body))
            case tir.AllocateConst():
                return tir.AllocateConst(
                    *(node.buffer_var, node.dtype, node.extents, node.data),
                    self.statement(node.body),
                    node.annotations,
                )
            case tir.AssertStmt():
                condition = self._value(node.condition)
                return tir.AssertStmt(condition, node.message, self.statement(node.body))
            case tir.While():
                return tir.While(self._value(node.condition), self.statement(node.body))
            case None:
                return None
        raise TypeError(f"a lowered kernel has a {type(node).__name__}")

    def _loop(self, loop: tir.For) -> tir.For:
        variable, start, extent = loop.loop_var, self._value(loop.min), self._value(loop.extent)
        if variable.dtype == _NARROW:
            start, extent = _cast(start, _WIDE), _cast(extent, _WIDE)
            variable = self._wide_variable(variable, tvm.ir.Range.from_min_extent(start, extent))
        body = self.statement(loop.body)
        return tir.For(
            *(variable, start, extent, loop.kind, body, loop.thread_binding, loop.annotations)
        )

    def _named(self, variable: tir.Var, value: tir.PrimExpr) -> tuple[tir.Var, tir.PrimExpr]:
        """What stands for a variable and for the value that it gets."""
        if value.dtype != _NARROW:
            return variable, self._same_type(value)
        new_value = self._value(value)
        if new_value.dtype == _WIDE:
            variable = self._wide_variable(variable, new_value)
        return variable, new_value

    def _wide_variable(self, variable: tir.Var, limits: tvm.ir.Range | tir.PrimExpr) -> tir.Var:
        # A new one each time: loops that TVM has split share their variable.
        wide = tir.Var(variable.name, _WIDE)
        self._analyzer.bind(wide, limits)
        self._wide[variable] = wide
        return wide

    def _same_type(self, node: tir.PrimExpr) -> tir.PrimExpr:
        """What stands for an expression, of the type that it has."""
        return _narrow(self._value(node), node.dtype)

    def _fits(self, value: tir.PrimExpr) -> bool:
        bound = self._analyzer.const_int_bound(value)
        return bool(_LIMITS[0] <= bound.min_value and bound.max_value <= _LIMITS[1])

    def _value(self, node: Any) -> Any:
        """What stands for an expression.

        It is of int64 if it was an int32 made from loop variables, and fits into one for certain.
        """
        match node:
            case tir.Var():
                return self._wide.get(node, node)
            case tir.IntImm() | tir.FloatImm() | tir.StringImm():
                return node
            case _ if isinstance(node, _ARITHMETIC):
                a, b, dtype = self._value(node.a), self._value(node.b), node.dtype
                new = type(node)(*_alike(a, b, dtype))
                if dtype != _NARROW or new.dtype == _NARROW or self._fits(new):
                    return new
                return type(node)(_narrow(a, dtype), _narrow(b, dtype))
            case _ if isinstance(node, _COMPARISONS):
                a, b = self._value(node.a), self._value(node.b)
                return type(node)(*_alike(a, b, node.a.dtype))
            case tir.BufferLoad():
                return tir.BufferLoad(node.buffer, list(map(self._value, node.indices)))
            case tir.Ramp():
                base, stride = self._value(node.base), self._value(node.stride)
                return tir.Ramp(*_alike(base, stride, node.base.dtype), node.lanes)
            case tir.Broadcast():
                return tir.Broadcast(self._same_type(node.value), node.lanes)
            case tir.Cast():
                value = self._value(node.value)
                dtype, old_type = node.dtype, node.value.dtype
                is_done = dtype == _WIDE and old_type == _NARROW and value.dtype == _WIDE
                return value if is_done else tir.Cast(dtype, _narrow(value, old_type))
            case tir.Select():
                sides = self._value(node.true_value), self._value(node.false_value)
                return tir.Select(self._value(node.condition), *_alike(*sides, node.dtype))
            case tir.Call():
                return tir.Call(node.dtype, node.op, list(map(self._same_type, node.args)))
            case tir.Let():
                variable, value = self._named(node.var, node.value)
                return tir.Let(variable, value, self._value(node.body))
            case tir.And() | tir.Or():
                return type(node)(self._value(node.a), self._value(node.b))
            case tir.Not():
                return tir.Not(self._value(node.a))
            case tir.Shuffle():
                vectors = list(map(self._same_type, node.vectors))
                return tir.Shuffle(vectors, list(map(self._same_type, node.indices)))
        raise TypeError(f"a lowered kernel has a {type(node).__name__}")


def _alike(a: tir.PrimExpr, b: tir.PrimExpr, dtype: str) -> tuple[tir.PrimExpr, tir.PrimExpr]:
    """Return what stands for two operands of one type: both of int64 if one is, and they may be."""
    if dtype == _NARROW and _WIDE in (a.dtype, b.dtype):
        return _cast(a, _WIDE), _cast(b, _WIDE)
    return _narrow(a, dtype), _narrow(b, dtype)


def _narrow(value: tir.PrimExpr, dtype: str) -> tir.PrimExpr:
    """Return what stands for an expression of a type, of that type again."""
    return _cast(value, dtype) if dtype.startswith(_NARROW) else value


def _cast(value: tir.PrimExpr, dtype: str) -> tir.PrimExpr:
    if value.dtype == dtype:
        return value
    if isinstance(value, tir.IntImm):
        return tir.IntImm(dtype, value.value)
    if isinstance(value, tir.Ramp):  # of vectors there is no cast that stays a ramp
        return tir.Ramp(*(_cast(each, _NARROW) for each in (value.base, value.stride)), value.lanes)
    return tir.Cast(dtype, value)
