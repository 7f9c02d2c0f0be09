"""Schedules against their formulas (instance B), with and without sends that block."""

from __future__ import annotations

import pytest

from heteroplace.errors import ShardingError
from heteroplace.parts.parallel.transforms.assemble import assemble
from heteroplace.parts.parallel.transforms.degrees import Degrees
from heteroplace.parts.parallel.transforms.mlp import Mlp
from heteroplace.parts.parallel.transforms.schedules import (
    SCHEDULES,
    Work,
    max_in_flight,
    register_schedule,
    schedule_slots,
)
from heteroplace.simulate.simulator import simulate
from tests.unit.transforms.sharded_cases import costs_by_op, ranks

SLOTS = {(2, 2): 6, (2, 4): 10, (4, 4): 14, (4, 8): 22, (4, 1): 8, (4, 32): 70, (8, 64): 142}
BUBBLES = [0.3333, 0.2, 0.4286, 0.2727, 0.75, 0.0857, 0.0986]
NAMES = ("gpipe", "1f1b")


@pytest.mark.parametrize("name", NAMES)
def test_slots_and_bubbles_of_instance_b(name: str) -> None:
    for ((stages, batches), expected), bubble in zip(SLOTS.items(), BUBBLES, strict=True):
        slots = schedule_slots(name, stages, batches)
        assert len(slots) == expected == 2 * (batches + stages - 1)
        idle = 1 - sum(map(len, slots)) / (stages * len(slots))
        assert idle == pytest.approx(bubble, abs=5e-5)


def test_microbatches_in_flight_of_instance_b() -> None:
    assert max_in_flight(schedule_slots("gpipe", 4, 8), 4) == (8, 8, 8, 8)
    assert max_in_flight(schedule_slots("1f1b", 4, 8), 4) == (4, 3, 2, 1)


@pytest.mark.parametrize("name", NAMES)
def test_each_work_is_done_once_and_after_what_it_needs(name: str) -> None:
    for stages in range(1, 7):
        for batches in (1, 2, 3, 5, 8):
            slots = schedule_slots(name, stages, batches)
            slot_of = {work: at for at, slot in enumerate(slots) for work in slot}
            assert sum(map(len, slots)) == len(slot_of) == 2 * stages * batches
            for work, at in slot_of.items():
                if not work.backward:
                    before = [Work(work.stage - 1, work.micro_batch)] if work.stage else []
                else:
                    before = [Work(work.stage, work.micro_batch)]
                    if work.stage + 1 < stages:
                        before.append(Work(work.stage + 1, work.micro_batch, True))
                assert all(slot_of[other] < at for other in before)
            for slot in slots:
                assert [work.stage for work in slot] == sorted({work.stage for work in slot})
            expected = [batches] * stages if name == "gpipe" else [
                min(batches, stages - stage) for stage in range(stages)
            ]  # fmt: skip
            assert list(max_in_flight(slots, stages)) == expected


def test_inference_takes_one_slot_more_for_each_stage() -> None:
    for stages in range(1, 6):
        for batches in (1, 4, 7):
            for name in (*NAMES, "forward"):
                slots = schedule_slots(name, stages, batches, is_training=False)
                assert sum(map(len, slots)) == stages * batches
            assert len(schedule_slots("gpipe", stages, batches, False)) == batches + stages - 1


@pytest.mark.parametrize(
    ("name", "expected"),
    [("gpipe", (33, 42, 51, 69)), ("1f1b", (33, 41.75, 50.5, 68))],
)
def test_blocking_sends_lengthen_the_schedules_of_instance_b(
    name: str, expected: tuple[float, ...]
) -> None:
    """f = 1, b = 2, sends of 0, 1/4, 1/2 and 1, four stages, eight microbatches."""
    sharded = Mlp(4, 2, rows=1, is_fused=True).training(batch=8)
    peaks = set()
    for send, makespan in zip((0, 1, 2, 4), expected, strict=True):
        cluster = ranks(4, latency_ns=send, copy_engines=0)
        costs = costs_by_op(sharded.graph, cluster, {"dense": 4, "dense_grad": 8})
        plan = assemble(sharded, cluster, Degrees(1, 1, 4, 8), name)
        timeline = simulate(sharded.graph, cluster, costs, plan)
        assert timeline.makespan_ns == 4 * makespan
        peaks.add(timeline.peak_bytes)
    assert len(peaks) == 1


def by_hand(stage: int, num_stages: int, micro_batches: int) -> list[Work]:
    """Each microbatch forth and back before the next one."""
    return [Work(stage, k, back) for k in range(micro_batches) for back in (False, True)]


def test_a_schedule_is_registered_from_outside() -> None:
    register_schedule("one at a time", by_hand)
    try:
        assert len(schedule_slots("one at a time", 3, 4)) == 24
        with pytest.raises(ShardingError, match="called 'one at a time' already"):
            register_schedule("one at a time", by_hand)
    finally:
        del SCHEDULES["one at a time"]


@pytest.mark.parametrize(
    ("order", "fault"),
    [
        (lambda stage, p, k: [Work(stage, 0)], "expected each of 2 microbatches once"),
        (lambda stage, p, k: by_hand(stage, p, k)[::-1], "cannot go on: backward of microbatch 1"),
    ],
)
def test_a_wrong_schedule_is_refused(
    monkeypatch: pytest.MonkeyPatch, order: object, fault: str
) -> None:
    monkeypatch.setitem(SCHEDULES, "wrong", order)
    with pytest.raises(ShardingError, match=fault):
        schedule_slots("wrong", 2, 2)
    with pytest.raises(ShardingError, match="no schedule is called 'none'; there are: gpipe"):
        schedule_slots("none", 2, 2)
