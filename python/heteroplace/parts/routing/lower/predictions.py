"""Calls of a routed network + plan -> calls of predicted branches, twice: predicted and missed.

A predicted call runs before its router has decided, and a missed one if it was not predicted. Only
one of them is made, and what it makes is there whoever made it: the missed call writes over the
bytes of the predicted one, which it comes after. Nothing has to be rolled back, as nobody reads
these before the branches are put together, which is when the router has decided.

before ==> after, for a branch of the task a

    y = a(x)  ==>  y' = a(x), predicted; y = a(x) in place of y', missed
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import floor

from heteroplace.errors import LoweringError
from heteroplace.lower.kernels import KernelCall, KernelCalls, Value, Variant
from heteroplace.lower.lowered import Lowered
from heteroplace.lower.order.instructions import root
from heteroplace.lower.program import RouterPrediction
from heteroplace.model.graph import TaskGraph
from heteroplace.model.plan import Plan, Run
from heteroplace.model.routed.speculation import PlannedPrediction

_Places = dict[str, tuple[int, int]]
"""(step, device) by when a run is made."""


def with_predictions(calls: KernelCalls, graph: TaskGraph, plan: Plan) -> KernelCalls:
    """Return the calls with those of predicted branches twice; of a plan without, as they are.

    Raises
    ------
    LoweringError
        A branch is predicted whose rows its router has to say, or that has a router in it.
    """
    places = _places(graph, plan)
    return _Doubler(calls, places).doubled() if places else calls


def _places(graph: TaskGraph, plan: Plan) -> dict[str, _Places]:
    places: dict[str, _Places] = {}
    for index, step in enumerate(plan.steps):
        if isinstance(step, Run) and step.guard is not None and step.guard.when != "active":
            of_task = places.setdefault(graph.tasks[step.task].name, {})
            of_task[step.guard.when] = index, step.device
    return places


def with_hit_rates(lowered: Lowered, predictions: Sequence[PlannedPrediction]) -> Lowered:
    """Return what was lowered with what is predicted from the first run on, and until when."""
    if not predictions:
        return lowered
    names = [router.name for router in lowered.program.routers]
    routers = tuple(
        RouterPrediction(
            names.index(each.prediction.router),
            each.prediction.branches if each.is_on else (),
            0 if each.prediction.probability is None else floor(1000 * each.gain.least_share),
        )
        for each in predictions
    )
    return replace(lowered, program=replace(lowered.program, predictions=routers))


class _Doubler:
    def __init__(self, calls: KernelCalls, places: Mapping[str, _Places]) -> None:
        self._calls = calls
        self._places = places
        self._values = list(calls.values)
        self._early: dict[int, int] = {}
        """By value, what stands for it where it is predicted."""

    def doubled(self) -> KernelCalls:
        for call in self._calls.calls:
            if call.task in self._places:
                self._check(call)
                for value in call.writes:
                    self._early[value] = len(self._values)
                    self._values.append(self._values[value])
                    self._values[value] = replace(
                        self._values[value], in_place_of=self._early[value]
                    )
        calls: list[KernelCall] = []
        for call in self._calls.calls:
            places = self._places.get(call.task)
            if places is None:
                calls.append(call)
                continue
            calls.append(self._predicted(call, places["predicted"]))
            calls.append(replace(call, at=places["missed"]))
        return replace(self._calls, values=tuple(self._values), calls=tuple(calls))

    def _check(self, call: KernelCall) -> None:
        decided = {router.loads for router in self._calls.routers}
        has_rows = any(variant.capacity for variant in call.variants)
        if has_rows or decided.intersection(call.writes):
            assert call.branch is not None
            why = (
                "its rows are known when its router has decided"
                if has_rows
                else ("what is in it hangs on a router of its own")
            )
            raise LoweringError(
                f"branch {call.branch[1]} of router {call.branch[0]!r} cannot be predicted: {why}; "
                f"predict branches of one cell, a whole tensor, without routers"
            )

    def _predicted(self, call: KernelCall, at: tuple[int, int]) -> KernelCall:
        variants = tuple(
            Variant(
                variant.capacity,
                variant.kernel,
                tuple(map(self._value, variant.reads)),
                tuple(map(self._value, variant.writes)),
            )
            for variant in call.variants
        )
        reads, writes = tuple(map(self._value, call.reads)), tuple(map(self._value, call.writes))
        return replace(call, reads=reads, writes=writes, variants=variants, at=at)

    def _value(self, value: int) -> int:
        """What a predicted call reads or writes in place of a value."""
        owner = root(self._calls, value)
        if owner not in self._early or owner == value:
            return self._early.get(value, value)
        own = self._values[value]
        self._values.append(Value(own.shape, own.dtype, alias_of=self._early[owner]))
        return len(self._values) - 1
