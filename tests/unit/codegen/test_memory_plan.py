"""memory_plan, lifetimes: values in conflict never overlap; reuse names whom to wait for."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("tvm.relay")

from heteroplace.lower.order.lifetimes import Conflicts, find_conflicts
from heteroplace.lower.order.memory_plan import Arena, lay_out
from heteroplace.lower.order.order import Instruction
from heteroplace.lower.program import ALIGNMENT_BYTES, aligned
from tests.strategies import num_cases

pytestmark = pytest.mark.relay


def instruction(
    reads: list[int], writes: list[int], start_ns: int, finish_ns: int, memory: int = 0
) -> Instruction:
    return Instruction(
        0,
        0,
        (),
        0,
        start_ns,
        finish_ns,
        tuple((value, memory) for value in reads),
        tuple((value, memory) for value in writes),
    )


def conflicts_of(
    instructions: list[Instruction], queues: list[int], inputs: int = 0, is_tight: bool = False
) -> set[tuple[int, int]]:
    """Pairs of values in conflict; the inputs are the values -1, -2, ..."""
    named = [(-1 - index, 0) for index in range(inputs)]
    (found,) = find_conflicts(
        1, instructions, [(queue, ()) for queue in queues], named, frozenset(named), is_tight
    )
    names = [value for value, _ in found.instances]
    return {
        (names[one], names[other])
        for one, near in enumerate(found.neighbours)
        for other in near
        if names[one] < names[other]
    }


def test_a_chain_on_one_queue_alternates_between_two_places() -> None:
    chain = [instruction([step - 1] if step else [], [step], step, step + 1) for step in range(6)]
    assert conflicts_of(chain, [0] * 6) == {(step, step + 1) for step in range(5)}


def test_values_of_two_queues_that_overlap_in_time_conflict() -> None:
    instructions = [instruction([], [0], 0, 10), instruction([], [1], 5, 15)]
    assert conflicts_of(instructions, [0, 1]) == {(0, 1)}


def test_bytes_are_passed_on_where_the_users_are_predicted_to_have_finished() -> None:
    instructions = [instruction([], [0], 0, 10), instruction([], [1], 10, 15)]
    assert conflicts_of(instructions, [0, 1]) == set()


def test_bytes_are_passed_on_where_the_users_have_finished_by_order() -> None:
    # By prediction 2 begins before 0 ends, but it follows 1, which read 0.
    instructions = [
        instruction([], [0], 0, 10),
        instruction([0], [1], 10, 20),
        instruction([1], [2], 5, 15),
    ]
    assert conflicts_of(instructions, [0, 1, 0]) == {(0, 1), (1, 2)}


def test_a_tight_memory_passes_on_whatever_is_not_needed_any_more() -> None:
    instructions = [instruction([], [0], 0, 10), instruction([], [1], 5, 15)]
    assert conflicts_of(instructions, [0, 1], is_tight=True) == set()


def test_inputs_conflict_with_everything() -> None:
    instructions = [
        instruction([-1], [0], 0, 1),
        instruction([0], [1], 1, 2),
        instruction([1], [2], 2, 3),
    ]
    assert {(-1, 0), (-1, 1), (-1, 2)} <= conflicts_of(instructions, [0, 0, 0], inputs=1)


def test_live_bytes_are_the_greatest_sum_of_what_is_needed_at_once() -> None:
    found = Conflicts([], [[1, 2], [0, 2], [1, 0]], [0, 1, 1])
    assert found.live_bytes([100, 10, 1]) == 110


def test_large_values_are_placed_first() -> None:
    # In order of time the small first value would lie where the large ones need one range.
    sizes = [128, 256, 384]
    layout = lay_out(sizes, [[1], [0, 2], [1]])
    assert layout.size_bytes == 256 + 384


def test_values_without_conflict_share_bytes() -> None:
    assert lay_out([128, 640, 256], [[], [], []]).offsets == (0, 0, 0)


def test_no_values_need_no_bytes() -> None:
    assert lay_out([], []).size_bytes == 0


@st.composite
def intervals(draw: st.DrawFn) -> tuple[list[int], list[list[int]], int]:
    """Sizes, conflicts of random lifetimes, and the greatest sum of sizes alive at once."""
    num_bytes = draw(st.lists(st.integers(0, 900), min_size=1, max_size=25))
    sizes = [aligned(size) for size in num_bytes]
    spans = []
    for begin in range(len(sizes)):
        spans.append((begin, begin + draw(st.integers(1, 6))))
    neighbours = [
        [
            other
            for other, (begin, end) in enumerate(spans)
            if other != number and begin < span[1] and span[0] < end
        ]
        for number, span in enumerate(spans)
    ]
    alive = max(
        sum(size for size, (begin, end) in zip(sizes, spans, strict=True) if begin <= time < end)
        for time in range(len(sizes))
    )
    return sizes, neighbours, alive


@num_cases(200)
@given(intervals(), st.booleans())
def test_neighbours_never_overlap(case, is_bound_known) -> None:
    sizes, neighbours, alive = case
    layout = lay_out(sizes, neighbours, alive if is_bound_known else 0)
    ends = [offset + size for offset, size in zip(layout.offsets, sizes, strict=True)]
    assert layout.size_bytes == max(ends)
    assert alive <= layout.size_bytes <= sum(sizes)
    for number, near in enumerate(neighbours):
        assert layout.offsets[number] % ALIGNMENT_BYTES == 0
        for other in near:
            begin, end = layout.offsets[number], ends[number]
            assert end <= layout.offsets[other] or ends[other] <= begin


@num_cases(50)
@given(intervals())
def test_improvement_never_makes_a_layout_larger(case) -> None:
    sizes, neighbours, alive = case
    not_improved = lay_out(sizes, neighbours, bound_bytes=sum(sizes))
    assert lay_out(sizes, neighbours, alive).size_bytes <= not_improved.size_bytes


def test_users_of_all_that_lay_there_are_named_and_the_rest_is_kept() -> None:
    arena = Arena()
    for key in range(3):
        assert arena.write(key, 256 * key, 256) == ()
    for key in (0, 1):
        arena.retire(key, (key,))
    assert arena.write(9, 0, 384) == (0, 1)
    assert arena.write(10, 384, 128) == (1,)


def test_a_value_over_one_that_is_needed_is_a_bug() -> None:
    arena = Arena()
    arena.write(0, 0, 256)
    with pytest.raises(AssertionError, match="overlap"):
        arena.write(1, 128, 256)


@num_cases(200)
@given(
    st.lists(
        st.tuples(st.integers(0, 9), st.integers(0, 700), st.integers(0, 5)),
        max_size=30,
    )
)
def test_users_are_those_of_what_was_there_last(moves) -> None:
    """Each move frees up to so many values, and then writes one where no live value lies."""
    arena = Arena()
    live: dict[int, tuple[int, int]] = {}
    last: dict[int, set[int]] = {}  # byte block -> users of what was last stored there
    for key, (block, num_bytes, num_freed) in enumerate(moves):
        for old in list(live)[:num_freed]:
            begin, end = live.pop(old)
            arena.retire(old, (old,))
            for freed in range(begin, end, ALIGNMENT_BYTES):
                last[freed] = {old}
        begin = block * ALIGNMENT_BYTES
        end = begin + aligned(num_bytes)
        if any(begin < e and b < end for b, e in live.values()):
            continue
        users = arena.write(key, begin, end - begin)
        there = [last.pop(place, set()) for place in range(begin, end, ALIGNMENT_BYTES)]
        assert set(users) == set().union(*there)
        live[key] = (begin, end)
