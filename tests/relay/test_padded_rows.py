"""Loops over padded rows: each column gets what it got, and the ends alone are padded."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import te, tir

from heteroplace.parts.kernels.cpu.padded_rows import padded_rows

pytestmark = pytest.mark.relay

ROWS, COLUMNS, LANES = 3, 6, 4
NUMBERS = np.arange(1, 73, dtype="float32").reshape(ROWS, COLUMNS, LANES)


def padded(before: int, after: int, rows_too: bool = True) -> tuple[tvm.IRModule, np.ndarray]:
    """A kernel that pads [ROWS, COLUMNS, LANES], and what it makes of NUMBERS."""
    above = before if rows_too else 0
    data = te.placeholder((ROWS, COLUMNS, LANES), "float32", "data")
    shape = (ROWS + 2 * above, COLUMNS + before + after, LANES)

    def value(y: tir.Var, x: tir.Var, lane: tir.Var) -> tir.PrimExpr:
        terms = [y >= above, y < ROWS + above, x >= before, x < COLUMNS + before]
        inside = data[y - above, x - before, lane]
        return tir.if_then_else(tir.all(*terms), inside, tir.const(0, "float32"))

    result = te.compute(shape, value, "result")
    schedule = te.create_schedule(result.op)
    schedule[result].vectorize(result.op.axis[2])
    expected = np.pad(NUMBERS, ((above, above), (before, after), (0, 0)))
    return tvm.lower(schedule, [data, result], name="pad"), expected


def loops(functions: tvm.IRModule) -> list[tir.For]:
    nodes: list[tir.For] = []

    def look(node: object) -> None:
        if isinstance(node, tir.For):
            nodes.append(node)

    tir.stmt_functor.post_order_visit(functions["pad"].body, look)
    return nodes


@pytest.mark.parametrize(("before", "after"), [(1, 1), (2, 0), (0, 3), (1, 2)])
@pytest.mark.parametrize("rows_too", [False, True])
def test_columns_are_those_of_numpy(before: int, after: int, rows_too: bool) -> None:
    functions, expected = padded(before, after, rows_too)
    split = padded_rows(functions)
    assert len(loops(split)) == len(loops(functions)) + (before > 0) + (after > 0)
    assert "i1 <" not in str(split) and "<= i1" not in str(split)
    kernel = tvm.build(split, target="llvm")
    result = tvm.nd.array(np.full(expected.shape, -1, "float32"))
    kernel(tvm.nd.array(NUMBERS), result)
    np.testing.assert_array_equal(result.numpy(), expected)


def test_a_row_without_padding_stays() -> None:
    functions, _ = padded(0, 0)
    assert padded_rows(functions).same_as(functions)


@pytest.mark.parametrize("is_skewed", [False, True])
def test_other_conditions_on_columns_stay(is_skewed: bool) -> None:
    """Every second column, or a limit that moves with the row."""
    data = te.placeholder((8, 8, LANES), "float32", "data")

    def value(y: tir.Var, x: tir.Var, lane: tir.Var) -> tir.PrimExpr:
        condition = x + y < 8 if is_skewed else tir.indexmod(x, 2).equal(0)
        return tir.if_then_else(condition, data[y, x, lane], tir.const(0, "float32"))

    result = te.compute(data.shape, value, "result")
    functions = tvm.lower(te.create_schedule(result.op), [data, result], name="pad")
    assert padded_rows(functions).same_as(functions)
