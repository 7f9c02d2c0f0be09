"""A fused function -> schedules of it that TVM's MetaSchedule draws, each a trace.

The rules are those of TVM for any LLVM target: tiles of several levels, parallel loops, vectors,
unrolled loops, inlining, sums apart. A draw is either fresh, all its choices random, or it is one
change of the best schedule so far. TVM's own search ranks draws by a model that needs xgboost,
which is not needed here: every draw is measured.

TVM's `TuneContext` parses the tensor instructions of all processors first, for 10 s and more of a
core; those rules need none of them, so it is made without.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

import tvm
from tvm import meta_schedule, relay
from tvm.meta_schedule import _ffi_api

from heteroplace.parts.kernels.tuned.tuned_kernels import tensor_program

_KIND = "llvm"
_MAX_PARTS_PER_CORE = 16
_MAX_LANES = 32
_UNROLLED = (0, 16, 64)
"""Most steps of unrolled loops. TVM's own go up to 512, and to vectors of 64: kernels that take
LLVM 10 many seconds to compile, in which others could be tried."""
_SHARE_OF_CHANGES = 0.75
"""Of draws, once there is a schedule to change."""
_MAX_FAILURES = 8
"""In a row, after which there are no more draws."""
_FAULTS = (RuntimeError, ValueError, TypeError, AttributeError, IndexError)
"""By which TVM says that steps do not fit: its own error is a RuntimeError."""


class Schedules:
    """All schedules of one fused function that the rules know.

    Parameters
    ----------
    num_cores
        Into parts for how many parallel loops are cut.
    """

    def __init__(self, program: tvm.IRModule, target: tvm.target.Target, num_cores: int) -> None:
        self._program = program
        space = meta_schedule.space_generator.PostOrderApply(
            sch_rules=_rules(), postprocs=_KIND, mutator_probs=_KIND
        )
        exported = {**target.export(), "num-cores": num_cores}
        exported.pop("host", None)
        self._context = _context(program, tvm.target.Target(exported), space)
        self._designs = [each.trace for each in space.generate_design_space(program)]
        self._finish = list(space.postprocs)
        self._changes = [
            (change, float(probability)) for change, probability in space.mutator_probs.items()
        ]

    @classmethod
    def of(
        cls, function: relay.Function, target: tvm.target.Target, num_cores: int
    ) -> Schedules | None:
        """Return the schedules of a function; None: TVM's rules have none for it."""
        program = tensor_program(function, target)
        if program is None:
            return None
        try:
            schedules = cls(program, target, num_cores)
        except _FAULTS:
            return None
        return schedules if schedules._designs else None

    def draw(self, seed: int, best: str = "") -> Iterator[tvm.tir.Schedule]:
        """Yield schedules without end, or until the draws fail.

        Parameters
        ----------
        seed
            Equal seeds draw equal schedules.
        best
            The trace (JSON) that some of them change; "": none.
        """
        chance = random.Random(seed)
        num_failures = 0
        while num_failures < _MAX_FAILURES:
            trace = None
            if best and chance.random() < _SHARE_OF_CHANGES:
                trace = self._changed(best, chance)
            if trace is None:
                design = chance.choice(self._designs)
                trace = tvm.tir.schedule.Trace(design.insts, {})
            schedule = self._finished(trace, chance)
            num_failures = num_failures + 1 if schedule is None else 0
            if schedule is not None:
                yield schedule

    def _changed(self, best: str, chance: random.Random) -> Any:
        """A change of a schedule; None: that which was drawn has none."""
        try:
            schedule = tvm.tir.Schedule(self._program)
            tvm.tir.schedule.Trace.apply_json_to_schedule(json.loads(best), schedule)
            changes, weights = zip(*self._changes, strict=True)
            (change,) = chance.choices(changes, weights)
            bare = schedule.trace.simplified(remove_postproc=True)
            return _ffi_api.MutatorApply(change, bare, _seed(chance))
        except _FAULTS:
            return None

    def _finished(self, trace: Any, chance: random.Random) -> tvm.tir.Schedule | None:
        """The schedule of a trace, what is left to choose drawn; None: its steps do not fit."""
        schedule = tvm.tir.Schedule(self._program, seed=_seed(chance))
        try:
            trace.apply_to_schedule(schedule, remove_postproc=True)
            schedule.enter_postproc()
            if all(step.apply(schedule) for step in self._finish):
                return schedule
        except _FAULTS:
            pass
        return None


def trace_text(schedule: tvm.tir.Schedule) -> str:
    """Return the trace of a schedule as JSON."""
    return json.dumps(schedule.trace.as_json(), separators=(",", ":"))


def _rules() -> list[Any]:
    """TVM's rules for LLVM, with less unrolling."""
    rules = meta_schedule.schedule_rule
    unrolling = rules.ParallelizeVectorizeUnroll(
        max_jobs_per_core=_MAX_PARTS_PER_CORE,
        max_vectorize_extent=_MAX_LANES,
        unroll_max_steps=list(_UNROLLED),
        unroll_explicit=True,
    )
    return [
        unrolling if isinstance(rule, rules.ParallelizeVectorizeUnroll) else rule
        for rule in rules.ScheduleRule.create(_KIND)
    ]


def _context(program: tvm.IRModule, target: tvm.target.Target, space: Any) -> Any:
    """What the steps of MetaSchedule know of a program: where it runs, and how many threads draw.

    It must live as long as they do.
    """
    tune_context = meta_schedule.TuneContext.__new__(meta_schedule.TuneContext)
    about = (program, target, space, None, "main", 1, 1, None)
    tune_context.__init_handle_by_constructor__(_ffi_api.TuneContext, *about)
    _ffi_api.TuneContextInitialize(tune_context)
    return tune_context


def _seed(chance: random.Random) -> int:
    return chance.randrange(1, 2**31 - 1)
