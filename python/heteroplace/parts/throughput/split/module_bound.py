"""Problem -> a bound over its modules, by the exact solves that make the plans of `split`.

DiviML, sections IV-B and IV-E: exact over a chain of modules, recursive over a path of modules with
several channels. Dead ends are left out first, and of a chain whatever joins its modules beside
their exits: a host, and colocation groups that lie in several of them.
"""

from __future__ import annotations

from functools import cached_property

from heteroplace.native.core_problem import NativePlan
from heteroplace.native.core_search import search_plans
from heteroplace.native.list import heft
from heteroplace.parts.throughput.bounds.subproblem import spine, subproblem
from heteroplace.parts.throughput.decompose.decomposition import modules_of
from heteroplace.parts.throughput.decompose.serial_modules import ChainModule, module_chain
from heteroplace.parts.throughput.split.chain_split import ChainSplit
from heteroplace.parts.throughput.split.channel_split import ChannelSplit
from heteroplace.parts.throughput.split.pool import Budget, Pool
from heteroplace.solve.bounds.bound import Bound
from heteroplace.solve.deadline import Deadline
from heteroplace.solve.problem import MAX_MODULE_TASKS, Problem

_EVALUATIONS_PER_TASK = 300
"""Schedules tried for a plan that fits, where HEFT has none."""


class ModuleBound:
    """What modules prove about one problem. Not thread-safe."""

    def __init__(self, problem: Problem) -> None:
        """Every task needs a device."""
        self._inner = spine(problem)

    @property
    def exists(self) -> bool:
        """Whether there are modules small enough to be solved."""
        return modules_of(self._inner).path is not None

    def prove(self, time_limit_s: float, threads: int, target_ns: int) -> Bound:
        """Return the bound that the time allows; modules exist.

        Parameters
        ----------
        time_limit_s
            Wall time in seconds.
        threads
            How many modules are solved at once.
        target_ns
            A known makespan: a bound that reaches it is not improved; 0: none is known.

        Raises
        ------
        KeyboardInterrupt
            Ctrl-C came meanwhile.
        """
        pool = Pool(Budget(Deadline.after(time_limit_s), None, 0, threads))
        plan = self._plan(min(1.0, pool.left_s())) if self.chain else None
        if plan is not None:
            chain = ChainSplit(self.relaxed, self.chain, pool)
            chain.start(plan.steps)
            source, bound_ns, improve = "chain of modules", chain.bound_ns, chain.improve
        else:
            path = modules_of(self._inner).path
            assert path is not None
            channels = ChannelSplit(self._inner, path, pool)
            source, bound_ns, improve = "modules", channels.bound_ns, channels.improve_any
        while not 0 < target_ns <= bound_ns() and improve():
            pass
        if pool.was_interrupted:
            raise KeyboardInterrupt
        return Bound(bound_ns(), source)

    @cached_property
    def relaxed(self) -> Problem:
        """The problem without a host: every input is everywhere, no output goes anywhere."""
        if self._inner.cluster.host is None:
            return self._inner
        return subproblem(self._inner, range(len(self._inner.graph.tasks)))

    @cached_property
    def chain(self) -> tuple[ChainModule, ...]:
        """Modules small enough to be solved; empty: there is no such chain."""
        chain = module_chain(self.relaxed.graph, keeps_groups=False)
        is_solved = len(chain) > 1 and max(len(m.tasks) for m in chain) <= MAX_MODULE_TASKS
        return chain if is_solved else ()

    def _plan(self, time_limit_s: float) -> NativePlan | None:
        """A plan that fits, for the chain to begin with; None: none is found at once."""
        native = self.relaxed.native
        native_plan = heft(native, range(len(native.cluster.devices)))
        if native_plan.violation:
            limit = _EVALUATIONS_PER_TASK * len(self.relaxed.graph.tasks)
            end = search_plans(
                native,
                [native_plan],
                max_evaluations=limit,
                time_limit_s=time_limit_s,
                seed=0,
                finds_bound=False,
            )
            if end.was_interrupted:
                raise KeyboardInterrupt
            native_plan = end.native_plan
        return None if native_plan.violation else native_plan
