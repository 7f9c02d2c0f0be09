"""Concatenations on vectors: exact, for any shapes and types, with what is fused around them."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from relay_models import TARGET, module, var
from tvm import relay, te, tir, topi
from tvm.contrib import graph_executor

from heteroplace.parts.kernels.cpu.joined_rows import can_join_vectors, schedule_joined_rows
from heteroplace.parts.kernels.cpu.own_schedules import register_schedules
from heteroplace.relay.targets import kernel_target

pytestmark = pytest.mark.relay
Shape = tuple[int, ...]
CASES: list[tuple[list[Shape], int, str]] = [
    ([(1, 9, 20, 32), (1, 9, 20, 32)], 3, "float32"),
    ([(2, 3, 40), (2, 5, 40), (2, 1, 40)], 1, "float32"),
    ([(100, 33), (100, 31)], 1, "float32"),
    ([(90, 4), (90, 80)], -1, "int64"),
    ([(1000,), (24,)], 0, "float16"),
    ([(1, 2, 12, 12, 16), (1, 1, 12, 12, 16)], 1, "float32"),
    ([(64, 7, 7), (64, 7, 7)], 2, "int8"),
    ([(3, 8), (5, 8)], 0, "bool"),
]


def joined(parts: list[relay.Expr], axis: int, kind: str, dtype: str) -> relay.Expr:
    """A concatenation with ops before or behind it."""
    if dtype == "bool" or kind == "alone":
        return relay.concatenate(parts, axis)
    if kind == "before":
        parts = [relay.negative(parts[0]), *parts[1:]]
        return relay.concatenate(parts, axis)
    return relay.add(relay.concatenate(parts, axis), relay.const(1, dtype))


def expected_of(arrays: list[np.ndarray], axis: int, kind: str) -> np.ndarray:
    if arrays[0].dtype == bool or kind == "alone":
        return np.concatenate(arrays, axis)
    if kind == "before":
        return np.concatenate([-arrays[0], *arrays[1:]], axis)
    return np.concatenate(arrays, axis) + arrays[0].dtype.type(1)


@pytest.mark.costly
@pytest.mark.parametrize("kind", ["alone", "before", "behind"])
def test_joined_values_are_exact(kind: str) -> None:
    register_schedules()
    parameters, bodies, inputs, expected = [], [], {}, []
    random = np.random.default_rng(0)
    for number, (shapes, axis, dtype) in enumerate(CASES):
        parts = [var(f"x{number}_{index}", each, dtype) for index, each in enumerate(shapes)]
        arrays = [random.integers(0, 100, each).astype(dtype) for each in shapes]
        parameters += parts
        bodies.append(joined(parts, axis, kind, dtype))
        inputs.update({part.name_hint: each for part, each in zip(parts, arrays, strict=True)})
        expected.append(expected_of(arrays, axis, kind))
    with tvm.transform.PassContext(opt_level=3):
        target = kernel_target(tvm.target.Target(TARGET))
        library = relay.build(module(parameters, relay.Tuple(bodies)), target=target)
    running = graph_executor.GraphModule(library["default"](tvm.cpu()))
    running.run(**inputs)
    for index, each in enumerate(expected):
        np.testing.assert_array_equal(running.get_output(index).numpy(), each)


def test_numbers_are_stored_by_vectors_that_no_boundary_cuts() -> None:
    shapes = [(1, 3, 20, 48), (1, 3, 20, 16)]
    operands = [te.placeholder(each, name=f"x{index}") for index, each in enumerate(shapes)]
    out = topi.concatenate([topi.negative(operands[0]), operands[1]], 3)
    schedule = schedule_joined_rows([out], out.op.input_tensors, 3)
    lowered = tvm.lower(schedule, [*operands, out])
    stores: list[tir.BufferStore] = []

    def visit(node: object) -> None:
        if isinstance(node, tir.BufferStore):
            stores.append(node)

    tir.stmt_functor.post_order_visit(lowered["main"].body, visit)
    assert [each.value.dtype for each in stores] == ["float32x16"]


def test_rows_without_vectors_are_copied_unless_something_is_fused_before() -> None:
    odd, even = (
        [te.placeholder((4, each), name="x") for each in widths] for widths in ((3, 5), (8, 12))
    )
    assert can_join_vectors(even, 1)
    assert not can_join_vectors(odd, 1)
    assert can_join_vectors([topi.negative(odd[0]), odd[1]], 1)
