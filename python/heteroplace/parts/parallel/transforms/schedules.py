"""Stages and microbatches -> the order in which each stage works, and time slots for all of them.

GPipe (arXiv 1811.06965) runs all forward passes, then all backward ones. 1F1B (PipeDream-2BW,
arXiv 2006.09503; DistIR, arXiv 2111.05426, section 4.1) begins a backward pass as soon as there is
one. Unlike DistIR's scheduler, which alternates whatever is ready and keeps up to 2 (P - s) - 1
microbatches in flight at stage s of P, a stage begins with min(P - 1 - s, K) forward passes, and
so never has more than min(K, P - s) in flight.

With equal times f and b of all stages and free communication both take (K + P - 1) (f + b), of
which (P - 1) / (K + P - 1) is idle.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from heteroplace.errors import ShardingError


@dataclass(frozen=True, slots=True, order=True)
class Work:
    """The forward or the backward pass of one microbatch through one stage."""

    stage: int
    micro_batch: int
    backward: bool = False


StageOrder = Callable[[int, int, int], Iterable[Work]]
"""(stage, num_stages, micro_batches) -> the work of that stage, in its order."""


def gpipe(stage: int, num_stages: int, micro_batches: int) -> Iterable[Work]:
    """All forward passes, then all backward ones."""
    for backward in (False, True):
        for micro_batch in range(micro_batches):
            yield Work(stage, micro_batch, backward)


def one_f_one_b(stage: int, num_stages: int, micro_batches: int) -> Iterable[Work]:
    """Some forward passes, then forward and backward ones in turn, then the rest backward."""
    ahead = min(num_stages - 1 - stage, micro_batches)
    for micro_batch in range(ahead):
        yield Work(stage, micro_batch)
    for micro_batch in range(micro_batches):
        if micro_batch + ahead < micro_batches:
            yield Work(stage, micro_batch + ahead)
        yield Work(stage, micro_batch, True)


def forward_only(stage: int, num_stages: int, micro_batches: int) -> Iterable[Work]:
    """Forward passes alone, for inference."""
    for micro_batch in range(micro_batches):
        yield Work(stage, micro_batch)


SCHEDULES: dict[str, StageOrder] = {
    "gpipe": gpipe,
    "1f1b": one_f_one_b,
    "forward": forward_only,
}
"""By name. Of any of them inference takes the forward passes alone."""


def register_schedule(name: str, order: StageOrder) -> None:
    """Add a schedule; raises ShardingError if the name is taken."""
    if name in SCHEDULES:
        raise ShardingError(f"a schedule is called {name!r} already; choose another name")
    SCHEDULES[name] = order


def schedule_slots(
    name: str, num_stages: int, micro_batches: int, is_training: bool = True
) -> tuple[tuple[Work, ...], ...]:
    """Return what runs in each time slot, ascending by stage.

    In each slot every stage takes its next work if what that needs was made in an earlier slot:
    a forward pass needs that of the stage before, a backward pass the forward one of its stage and
    the backward one of the stage after.

    >>> [len(schedule_slots("1f1b", 4, 8)), len(schedule_slots("gpipe", 4, 1))]
    [22, 8]

    Raises
    ------
    ShardingError
        No schedule has that name, or it does not run each work once, or it cannot go on.
    """
    if name not in SCHEDULES:
        raise ShardingError(f"no schedule is called {name!r}; there are: {', '.join(SCHEDULES)}")
    orders = [
        _stage_order(name, stage, num_stages, micro_batches, is_training)
        for stage in range(num_stages)
    ]
    next_work = [0] * num_stages
    done: set[Work] = set()
    slots: list[tuple[Work, ...]] = []
    while any(at < len(order) for at, order in zip(next_work, orders, strict=True)):
        slot = tuple(
            order[at]
            for at, order in zip(next_work, orders, strict=True)
            if at < len(order) and _needs(order[at], num_stages) <= done
        )
        if not slot:
            waiting = [order[at] for at, order in zip(next_work, orders, strict=True)
                       if at < len(order)]  # fmt: skip
            raise ShardingError(
                f"schedule {name!r} with {num_stages} stages and {micro_batches} microbatches "
                f"cannot go on: {'; '.join(map(_quote, waiting))}, each needs another one first"
            )
        done.update(slot)
        for work in slot:
            next_work[work.stage] += 1
        slots.append(slot)
    return tuple(slots)


def max_in_flight(slots: Sequence[Sequence[Work]], num_stages: int) -> tuple[int, ...]:
    """Return for each stage the most microbatches whose backward pass is not done.

    >>> max_in_flight(schedule_slots("1f1b", 4, 8), 4)
    (4, 3, 2, 1)
    """
    now, most = [0] * num_stages, [0] * num_stages
    for slot in slots:
        for work in slot:
            now[work.stage] += -1 if work.backward else 1
            most[work.stage] = max(most[work.stage], now[work.stage])
    return tuple(most)


def _stage_order(
    name: str, stage: int, num_stages: int, micro_batches: int, is_training: bool
) -> tuple[Work, ...]:
    order = tuple(SCHEDULES[name](stage, num_stages, micro_batches))
    if not is_training:
        order = tuple(work for work in order if not work.backward)
    kinds = (False, True) if is_training else (False,)
    expected = {Work(stage, k, backward) for backward in kinds for k in range(micro_batches)}
    if len(order) != len(expected) or set(order) != expected:
        raise ShardingError(
            f"schedule {name!r}: stage {stage} of {num_stages} has the work "
            f"{'; '.join(map(_quote, order)) or 'none'}; expected each of {micro_batches} "
            f"microbatches once {'forward and once backward' if is_training else 'forward'}"
        )
    return order


def _needs(work: Work, num_stages: int) -> set[Work]:
    """What must have run in an earlier slot."""
    if not work.backward:
        return {Work(work.stage - 1, work.micro_batch)} if work.stage else set()
    needs = {Work(work.stage, work.micro_batch)}
    if work.stage + 1 < num_stages:
        needs.add(Work(work.stage + 1, work.micro_batch, True))
    return needs


def _quote(work: Work) -> str:
    way = "backward" if work.backward else "forward"
    return f"{way} of microbatch {work.micro_batch} at stage {work.stage}"
