"""late_calls: no order needs more bytes at once than before; calls come after what they read."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("tvm.relay")

import tvm

from heteroplace.lower.kernels import Kernel, KernelCall, KernelCalls, Value
from heteroplace.lower.order.delay_for_memory import with_late_calls
from heteroplace.lower.order.instructions import Instance, Instruction, Ordered, resolve
from heteroplace.lower.workspace import Workspace
from heteroplace.model.cluster import Cluster, Device, Memory
from tests.strategies import num_cases

pytestmark = pytest.mark.relay

UNIT = 1024
Call = tuple[int, list[int], int]
"""(step, values that it reads, value that it makes)."""


def reordered(
    program: list[Call],
    units: list[int],
    output: int,
    device_of: list[int],
    op: str = "reshape+layout_transform",
) -> list[int]:
    """What the calls make, in their new order. Value `n` has `units[n]` units of bytes."""
    instructions = tuple(
        Instruction(
            index,
            device_of[step],
            (),
            step,
            step,
            step + 1,
            tuple((value, 0) for value in reads),
            ((made, 0),),
        )
        for index, (step, reads, made) in enumerate(program)
    )
    values = tuple(Value((count * UNIT,), "int8") for count in units)
    calls = tuple(KernelCall("k", 0, "task", tuple(reads), (made,)) for _, reads, made in program)
    kernel = Kernel("k", None, tvm.target.Target("llvm"), Workspace(), op)
    device = Device("cpu", "cpu", "llvm", 0, 0, (0,))
    cluster = Cluster("one", (Memory("ram", 2**30),), (device,), (), 0)
    found = with_late_calls(
        Ordered(instructions, values, {}),
        KernelCalls(values, calls, (output,), {"k": kernel}),
        cluster,
    )
    for each in found.instructions:
        assert each.device == device_of[each.step]
    return [each.writes[0][0] for each in found.instructions]


def peak(program: list[Call], order: list[int], units: list[int], output: int) -> int:
    """By the definition: a value is needed from its call to the last that reads it."""
    calls = {made: reads for _, reads, made in program}
    at = {made: index for index, made in enumerate(order)}
    end = {
        made: max([index, *(at[reader] for reader in order if made in calls[reader])])
        for made, index in at.items()
    }
    end[output] = len(order)
    return max(
        sum(units[made] for made in order if at[made] <= index <= end[made])
        for index in range(len(order))
    )


def test_other_layout_of_an_input_is_made_where_it_is_read() -> None:
    program: list[Call] = [(0, [9], 0), (0, [], 1), (1, [1], 2), (2, [0, 2], 3)]
    units = [4, 5, 1, 1, 0, 0, 0, 0, 0, 4]
    assert reordered(program, units, 3, [0, 0, 0]) == [1, 2, 0, 3]


@pytest.mark.parametrize("op", ["nn.conv2d", "nn.conv2d+layout_transform", "reshape", ""])
def test_what_computes_stays_as_planned(op: str) -> None:
    program: list[Call] = [(0, [9], 0), (0, [], 1), (1, [1], 2), (2, [0, 2], 3)]
    units = [4, 5, 1, 1, 0, 0, 0, 0, 0, 4]
    assert reordered(program, units, 3, [0, 0, 0], op) == [0, 1, 2, 3]


def test_a_call_stays_where_it_frees_what_it_reads() -> None:
    program: list[Call] = [(0, [], 0), (0, [0], 1), (1, [], 2), (2, [1, 2], 3)]
    units = [4, 4, 1, 1]
    assert reordered(program, units, 3, [0, 0, 0]) == [0, 1, 2, 3]


def test_a_call_moves_to_no_step_of_another_device() -> None:
    program: list[Call] = [(0, [9], 0), (0, [], 1), (1, [1], 2), (2, [0, 2], 3)]
    units = [4, 5, 1, 1, 0, 0, 0, 0, 0, 4]
    assert reordered(program, units, 3, [0, 0, 1]) == [0, 1, 2, 3]


def test_what_is_not_fullest_stays_as_planned() -> None:
    program: list[Call] = [(0, [9], 0), (0, [], 1), (1, [1], 2), (2, [0, 2], 3), (3, [3], 4)]
    units = [4, 5, 1, 1, 30, 0, 0, 0, 0, 4]
    assert reordered(program, units, 4, [0, 0, 0, 0]) == [0, 1, 2, 3, 4]


def num_lookups(count: int, monkeypatch: pytest.MonkeyPatch) -> int:
    """How often it is asked where a value lies, for so many calls none of whose moves gains."""
    program: list[Call] = []
    for made in range(0, 2 * count, 2):  # a value and its other layout, which is read last
        program += [(0, [], made), (0, [made], made + 1)]
    for _ in range(count + 2):
        made = len(program)
        program.append((1, [made - 1], made))
    layouts = list(range(1, 2 * count, 2))
    program.append((2, [*layouts, len(program) - 1], len(program)))
    units = [1] * (2 * count) + [0] * (count + 3)
    units[-3] = 5
    lookups = 0

    def place(ordered: Ordered, instance: Instance) -> tuple[Instance, int]:
        nonlocal lookups
        lookups += 1
        return resolve(ordered.stored, instance)

    with monkeypatch.context() as patched:
        patched.setattr(Ordered, "place", place)
        order = reordered(program, units, len(program) - 1, [0, 0, 0])
    assert order == list(range(len(program)))
    return lookups


def test_all_moves_are_looked_at_in_one_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    few, many = (num_lookups(count, monkeypatch) for count in (10, 40))
    assert many <= 4 * few


@given(st.integers(0, 2**32 - 1))
@num_cases(100)
def test_no_order_needs_more_at_once(seed: int) -> None:
    random = Random(seed)
    count = random.randint(1, 14)
    program: list[Call] = []
    step = 0
    for made in range(count):
        step += random.random() < 0.5
        reads = random.sample(range(made), min(made, random.randint(0, 2)))
        program.append((step, reads, made))
    units = [random.randint(0, 5) for _ in range(count)]
    device_of = [random.choice((0, 0, 1)) for _ in range(step + 1)]
    order = reordered(program, units, count - 1, device_of)
    planned = list(range(count))
    assert sorted(order) == planned
    for _, reads, made in program:
        assert all(order.index(read) < order.index(made) for read in reads)
    assert peak(program, order, units, count - 1) <= peak(program, planned, units, count - 1)
