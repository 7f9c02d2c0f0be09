"""Degrees: what is enumerated, how ranks are numbered, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from heteroplace.errors import ShardingError
from heteroplace.model.cluster import Cluster, Device, Memory
from heteroplace.parts.parallel.transforms.degrees import (
    Degrees,
    enumerate_degrees,
    parse_degrees,
    rank_devices,
)
from tests.instances import cpu
from tests.unit.transforms.sharded_cases import ranks


def test_the_published_grids_have_as_many_configurations() -> None:
    inference = [len(enumerate_degrees(16, 2**power)) for power in range(7, 21)]
    assert inference[:4] == [65, 71, 74, 75]
    assert set(inference[3:]) == {75}
    assert sum(inference) == 1035
    assert len(enumerate_degrees(16, 2**20, allow_fewer=True)) == 155


def test_degrees_use_all_devices_and_leave_no_row_over() -> None:
    for number, batch in ((1, 1), (6, 24), (16, 100), (7, 3)):
        for degrees in enumerate_degrees(number, batch):
            assert degrees.num_devices == number
            assert degrees.rows(batch) * degrees.num_items == batch
            assert (degrees.micro_batches == 1) == (degrees.pipeline == 1)
    assert Degrees(3, 1, 2, 4) in enumerate_degrees(6, 24)


def test_ranks_and_items_are_numbered_once() -> None:
    degrees = Degrees(2, 3, 4, 5)
    found = [degrees.rank(d, t, p) for d in range(2) for t in range(3) for p in range(4)]
    assert found == list(range(24))
    assert [degrees.item(d, k) for d in range(2) for k in range(5)] == list(range(10))


def test_text_is_read_back() -> None:
    assert (
        parse_degrees("2/2/2/4") == Degrees(2, 2, 2, 4) == parse_degrees(str(Degrees(2, 2, 2, 4)))
    )
    for text in ("2,2", "2,2,2,2,2", "a,b,c", "2,-1,1", ""):
        with pytest.raises(ShardingError, match="expected D,T,P"):
            parse_degrees(text)


def test_degrees_that_do_not_divide_are_refused_with_the_numbers() -> None:
    with pytest.raises(
        ShardingError, match=r"batch of 12 rows.*2 replicas.*4 micro.*multiple of 8"
    ):
        Degrees(2, 1, 2, 4).rows(12)
    with pytest.raises(ShardingError, match="tensor is 0; pipeline is -1"):
        Degrees(1, 0, -1, 1)


def test_degrees_that_are_no_whole_numbers_are_refused() -> None:
    wrong: tuple[Any, ...] = ("2", 2.0, None, True)
    told = "data is '2'; tensor is 2.0; pipeline is None; micro_batches is True; each must be"
    with pytest.raises(ShardingError, match=told):
        Degrees(*wrong)
    assert Degrees(np.int64(2)) == Degrees(2)


def test_too_few_devices_are_told() -> None:
    with pytest.raises(ShardingError, match=r"4/1/1/1 need 4 devices; .* has 3 .*d0, d1, d2"):
        rank_devices(ranks(3), Degrees(4))
    with pytest.raises(ShardingError, match=r"need 3 devices; .* has 2 .*cpu.0, cpu.1"):
        rank_devices(cpu(), Degrees(3))


def test_devices_of_memories_of_their_own_come_first() -> None:
    devices = tuple(Device(f"d{i}", "cuda", "", i, memory) for i, memory in enumerate((0, 0, 1)))
    cluster = Cluster("box", (Memory("a", 1), Memory("b", 1)), devices)
    assert rank_devices(cluster, Degrees(2)) == (0, 2)
    assert rank_devices(cluster, Degrees(3)) == (0, 2, 1)
    assert rank_devices(cluster, Degrees(2), (1, 0)) == (1, 0)
