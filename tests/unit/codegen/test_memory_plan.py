"""memory_plan: live values never overlap, and every reuse names whom to wait for."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("tvm.relay")

from tests.strategies import num_cases

from heteroplace.codegen.memory_plan import Arena
from heteroplace.codegen.program import ALIGNMENT_BYTES

pytestmark = pytest.mark.relay


def aligned(num_bytes: int) -> int:
    return -(-max(num_bytes, 1) // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


def test_freed_bytes_are_used_again_and_their_users_named() -> None:
    arena = Arena()
    first, users = arena.allocate(0, 100, lambda user: True)
    assert (first, users) == (0, ())
    arena.retire(0, (7, 9))
    assert arena.allocate(1, 50, lambda user: True) == (0, (7, 9))
    assert arena.size_bytes == ALIGNMENT_BYTES


def test_bytes_whose_users_are_not_done_are_left_alone() -> None:
    arena = Arena()
    arena.allocate(0, 100, lambda user: True)
    arena.retire(0, (7, 9))
    assert arena.allocate(1, 50, lambda user: user != 9) == (ALIGNMENT_BYTES, ())


def test_the_smallest_gap_that_fits_is_taken() -> None:
    arena = Arena()
    for key, size in enumerate([512, 128, 256, 128]):
        arena.allocate(key, size, lambda user: True)
    arena.retire(0, (0,))
    arena.retire(2, (2,))
    assert arena.allocate(9, 200, lambda user: True) == (512 + 128, (2,))


def test_a_place_over_two_freed_values_names_the_users_of_both_and_keeps_the_rest() -> None:
    arena = Arena()
    for key in range(3):
        arena.allocate(key, 256, lambda user: True)
    for key in (0, 1):
        arena.retire(key, (key,))
    assert arena.allocate(9, 384, lambda user: True) == (0, (0, 1))
    assert arena.allocate(10, 128, lambda user: True) == (384, (1,))


def test_a_value_of_no_bytes_has_a_place_of_its_own() -> None:
    arena = Arena()
    assert arena.allocate(0, 0, lambda user: True)[0] != arena.allocate(1, 0, lambda user: True)[0]


@num_cases(200)
@given(
    st.lists(
        st.tuples(st.integers(0, 700), st.integers(0, 5), st.sets(st.integers(0, 30), max_size=9)),
        max_size=30,
    )
)
def test_live_values_never_overlap_and_users_are_those_of_what_was_there(moves) -> None:
    """Each move allocates a value, after it has freed up to so many; `open_` are not done yet."""
    arena = Arena()
    live: dict[int, tuple[int, int]] = {}
    last: dict[int, set[int]] = {}  # byte block -> users of what was last stored there
    for key, (size, num_freed, open_) in enumerate(moves):
        for old in list(live)[:num_freed]:
            begin, end = live.pop(old)
            arena.retire(old, (old,))
            for block in range(begin, end, ALIGNMENT_BYTES):
                last[block] = {old}
        offset, users = arena.allocate(key, size, lambda user, open_=open_: user not in open_)
        begin, end = offset, offset + aligned(size)
        assert offset % ALIGNMENT_BYTES == 0
        assert end <= arena.size_bytes
        assert all(end <= b or e <= begin for b, e in live.values())
        there = [last.pop(block, set()) for block in range(begin, end, ALIGNMENT_BYTES)]
        assert set(users) == set().union(*there)
        assert not set(users) & open_
        live[key] = (begin, end)
        assert arena.size_bytes >= sum(e - b for b, e in live.values())


def test_one_value_after_the_other_takes_the_memory_of_two() -> None:
    arena = Arena()
    arena.allocate(0, 1000, lambda user: True)
    for key in range(1, 50):
        arena.allocate(key, 1000, lambda user: True)
        arena.retire(key - 1, (key,))
    assert arena.size_bytes == 2 * aligned(1000)
