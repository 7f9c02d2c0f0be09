"""The best plan of `auto`, for one item -> modules solved exactly, joined, and a bound over them.

The core asks for it in its group `heteroplace.refinements`.
"""

from __future__ import annotations

from heteroplace.entries import load_entry
from heteroplace.model.plan import Step
from heteroplace.parts.throughput.decompose.decomposition import modules_of
from heteroplace.solve.deadline import Deadline
from heteroplace.solve.problem import MAX_CPSAT_TASKS, Problem, SolveOptions
from heteroplace.solve.refinement import EARLY, Prover, RefinementEnd, Route

_MAX_SPLIT_TASKS = 2_000
"""Modules of larger graphs are too many, or too large, to be solved within seconds; equal ones are
solved once by the search as well."""
_MODULE_BOUND = "heteroplace.parts.throughput.split.module_bound:ModuleBound"
_REFINEMENTS = ("split", "lns")


class SplitRefinement:
    """MILP-SPLIT as a refinement solver."""

    module = "heteroplace.parts.throughput.split.split_solver"

    def route(self, problem: Problem) -> Route | None:
        """Return the route for a graph with narrow cuts."""
        if len(problem.graph.tasks) > _MAX_SPLIT_TASKS:
            return None
        chain = modules_of(problem).chain
        largest = max(len(module.tasks) for module in chain)
        if len(chain) > 1 and largest <= MAX_CPSAT_TASKS:
            reason = f"a chain of {len(chain)} modules of up to {largest} tasks: each exactly"
            return Route(_REFINEMENTS, reason, EARLY)
        path = modules_of(problem).path
        if path is not None and len(path.modules) > 1:
            reason = f"{len(path.modules)} modules, up to {path.num_channels} channels between them"
            return Route(_REFINEMENTS, reason)
        return None

    def improve(
        self,
        problem: Problem,
        incumbent: tuple[Step, ...],
        options: SolveOptions,
        deadline: Deadline,
        bound_ns: int,
    ) -> RefinementEnd:
        """See `run_split`."""
        run_split = load_entry(f"{self.module}:run_split")
        end: RefinementEnd = run_split(problem, incumbent, options, deadline, bound_ns)
        return end

    def prover(self, problem: Problem) -> Prover | None:
        """Return what solves modules, if there are any small enough."""
        bound = load_entry(_MODULE_BOUND)(problem)
        prove: Prover = bound.prove
        return prove if bound.exists else None


SPLIT = SplitRefinement()
