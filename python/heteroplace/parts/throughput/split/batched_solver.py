"""MILP-SPLIT for several items: modules between compositions, joined, then without barriers.

DiviML, section IV and its throughput (table IV, GPT-3), DOI 10.48550/arXiv.2308.00127. What is
minimised is the makespan T of all L items; their throughput in DiviML's sense is L / T.

1. List schedulers, and on equal nodes the plan of one node for its share of the items, replicated;
   for `auto` a placement of least time per item, all items one behind the other (`pipelined.py`).
2. Over a chain: pairs of compositions, once per class, by shortest paths (`batched_chain.py`).
3. What that gives, without barriers, and the best list schedule are annealed as a whole
   (`src/parts/throughput/batched/batch_search.h`), each seed on a thread.
4. A small whole is solved exactly by DiviML's programme; bounds of modules with what is left.

Unlike DiviML, modules of a pair are annealed, not solved by a MILP. Exact is what step 4 proves.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from threading import Event

from heteroplace.errors import InfeasibleError, SolverLimitError
from heteroplace.model.plan import Plan, Step
from heteroplace.native.simulate import simulate_steps
from heteroplace.parts.throughput.batched import device_symmetry
from heteroplace.parts.throughput.batched.batch_plan import best_steps
from heteroplace.parts.throughput.batched.divi import NEEDED_SHARE, DiviSolver, slot_pairs
from heteroplace.parts.throughput.batched.divi_limits import may_overflow
from heteroplace.parts.throughput.batched.divi_milp import solve_batched_milp
from heteroplace.parts.throughput.batched.divi_rules import BatchRules, MemoryRule
from heteroplace.parts.throughput.batched.equal_nodes import equal_nodes, node_problem, replicated
from heteroplace.parts.throughput.batched.layouts import block_of, first_layout, layout_of_steps
from heteroplace.parts.throughput.batched.list_solver import check_compositions, no_plan_error
from heteroplace.parts.throughput.bounds.batched import batched_lower_bound
from heteroplace.parts.throughput.decompose.decomposition import modules_of
from heteroplace.parts.throughput.native.core_batches import (
    BATCH_RULES,
    BatchLayout,
    FoundLayout,
    schedule_batches,
    search_batches,
    unserved_tasks,
)
from heteroplace.parts.throughput.split.batched_chain import BatchedChain, ChainBudget, too_large
from heteroplace.parts.throughput.split.batched_shares import AUTO_SHARES, DIVI_SHARES
from heteroplace.parts.throughput.split.pipelined import pipelined
from heteroplace.solve.deadline import Deadline, TimeUpError
from heteroplace.solve.feasibility import fits
from heteroplace.solve.lp.engines import ChosenEngine
from heteroplace.solve.problem import Problem, SolveOptions, SolveResult, make_result, report

MAX_EXACT_PAIRS = 600
"""Pairs of batches on one device up to which the whole is solved exactly at the end."""
_LIST_SHARE, _NODE_SHARE, _SMALL_SHARE = 0.4, 0.3, 0.1
"""Of the time left: for a list scheduler, one of several equal nodes, annealing before a proof."""
_MODULE_HEAT, _LIST_HEAT = 0.002, 0.02
"""Of the annealing of the whole, which begins with what modules gave, and that is good already, or
with a list schedule, out of which less heat does not lead."""
_SMALL_ROUNDS = 3
"""Of annealing where an exact solve may follow, each from the best so far."""
_CHAIN_EVALUATIONS = 50
"""Layouts of a pair at first, for each task."""
_SYMMETRY_SHARE = 0.1
"""Of the time that is left, after which no further devices are compared."""


@dataclass
class BatchedSplit:
    """One solve: what is known so far."""

    problem: Problem
    options: SolveOptions
    tolerance: float = device_symmetry.EQUAL_WITHIN
    """Of equal devices and nodes; negative: none are looked for."""
    is_divi: bool = True
    """A device runs at most one batch of a task, as in DiviML; else items may also follow each
    other in equal batches (`pipelined.py`), and what is proven holds for that too."""
    singles: Mapping[str, Plan] = field(default_factory=dict)
    """Plans of single devices, that the best one is compared with."""
    begin: float = field(default_factory=time.perf_counter)
    best: tuple[Step, ...] | None = None
    best_ns: int | None = None
    bound_ns: int = 0
    candidates: list[tuple[str, int | None, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._deadline = Deadline.after(self.options.time_limit_s, self.begin)
        self._is_short = may_overflow(self.problem, self.options.items)
        self._stop = Event()
        self._layouts: list[tuple[int, BatchLayout]] = []
        """Makespan of each."""
        self._first_heat = _LIST_HEAT
        self._shares = DIVI_SHARES if self.is_divi else AUTO_SHARES
        self._name = "split" if self.is_divi else "auto"

    def run(self) -> SolveResult:
        """Solve it; see `Solver.solve`."""
        problem, items = self.problem, self.options.items
        if self.is_divi:
            check_compositions(problem, items)
        bound = batched_lower_bound(problem, items, deadline=self._within(self._shares.bound))
        self.bound_ns = bound.ns
        try:
            self._improve()
        except KeyboardInterrupt:
            self._stop.set()
        if self.best is None:
            check_compositions(problem, items)
            raise no_plan_error(self._name, problem, self.options)
        self._report()
        return make_result(
            problem,
            self._plan(self.best),
            self.bound_ns,
            self._name,
            time.perf_counter() - self.begin,
            was_interrupted=self._stop.is_set(),
            candidates=tuple(self.candidates),
        )

    def _improve(self) -> None:
        is_served = not unserved_tasks(self.problem.native, self.options.items)
        block = block_of(self.problem, self.options.items) if is_served else None
        until = self._within(_SYMMETRY_SHARE)
        symmetry = device_symmetry.symmetry_in_time(self.problem, self.tolerance, until)
        if symmetry.num_orders > 1:
            self.candidates.append(("symmetry", None, f"{symmetry.num_orders} equal orders"))
        self._solve_node(block, symmetry)
        if self.best is None and is_served:
            self._list_schedules(block)
        for device, plan in self.singles.items():
            self._offer(f"single {device}", plan.steps)
        if block is not None and not self._layouts:
            self._begin_anywhere(block)
        if not self.is_divi and not self._is_done():
            self._pipeline()
        if block is not None and not self._is_done():
            self._solve_chain(block, symmetry)
            self._anneal(block)
        self._report()
        if not self._is_done():
            self._prove()

    def _is_done(self) -> bool:
        return self._stop.is_set() or self._deadline.is_over() or self.best_ns == self.bound_ns

    def _within(self, share: float) -> Deadline:
        return self._deadline.part(share, self.options.iterations)

    def _offer(self, name: str, steps: tuple[Step, ...], note: str = "") -> int:
        """Keep a plan if it fits and is the best so far; return its makespan."""
        times = simulate_steps(self.problem.native, steps, self.options.items)
        is_kept, makespan = fits(self.problem, times), times.makespan_ns
        outcome = (makespan, note) if is_kept else (None, "overflows a memory")
        self.candidates.append((name, *outcome))
        if is_kept and (self.best_ns is None or makespan < self.best_ns):
            self.best, self.best_ns = steps, makespan
        return makespan

    def _keep_layout(self, block: int | None, steps: tuple[Step, ...], makespan_ns: int) -> None:
        if block is None:
            return
        layout = layout_of_steps(self.problem, steps, self.options.items, block)
        if layout is not None:
            self._layouts.append((makespan_ns, layout))

    def _list_schedules(self, block: int | None) -> None:
        for rule in BATCH_RULES:
            limit_s = self._within(_LIST_SHARE).left_s()
            try:
                plan = schedule_batches(self.problem.native, self.options.items, rule, limit_s)
            except SolverLimitError:
                self.candidates.append((rule, None, "left out: the time was up"))
                continue
            if plan.violation:
                self.candidates.append((rule, None, "overflows a memory or lacks a link"))
                continue
            makespan = self._offer(f"list schedule by {rule}", plan.steps)
            self._keep_layout(block, plan.steps, makespan)
        self._report()

    def _solve_node(self, block: int | None, symmetry: device_symmetry.DeviceSymmetry) -> None:
        """One of several equal nodes serves its share of the items, and all others do the same."""
        nodes = equal_nodes(self.problem, self.options.items, symmetry)
        if not nodes:
            return
        share = self.options.items // len(nodes)
        iterations = self.options.iterations
        options = replace(
            self.options,
            items=share,
            time_limit_s=max(1e-3, self._within(_NODE_SHARE).left_s()),
            iterations=None if iterations is None else iterations // 4,
            progress=None,
        )
        inner = BatchedSplit(
            node_problem(self.problem, nodes[0]), options, self.tolerance, self.is_divi
        )
        try:
            result = inner.run()
        except InfeasibleError as err:
            self.candidates.append(("one node, replicated", None, f"left out: {err}"))
            return
        if result.status == "interrupted":
            self._stop.set()
        steps = replicated(self.problem, nodes, result.plan.steps, share)
        makespan = self._offer("one node, replicated", steps, f"{share} items on each node")
        self._keep_layout(block, steps, makespan)
        self._report()

    def _pipeline(self) -> None:
        """Items one behind the other, at the least time from one to the next."""
        deadline = self._within(self._shares.pipeline)
        for size, steps in pipelined(self.problem, self.options, deadline):
            self._offer(f"pipeline of batches of {size}", steps)
            self._report()

    def _begin_anywhere(self, block: int) -> None:
        """No list schedule has the items in blocks, or none fits."""
        if (layout := first_layout(self.problem, self.options.items, block)) is not None:
            self._layouts.append((1 << 62, layout))

    def _solve_chain(self, block: int, symmetry: device_symmetry.DeviceSymmetry) -> None:
        if len(modules := modules_of(self.problem).chain) < 2 or not self._layouts:
            return
        end = self._within(self._shares.chain)
        if self.options.iterations is None and too_large(self.problem, end):
            self.candidates.append(("modules with barriers", None, "left out: too little time"))
            return
        chain = BatchedChain(self.problem, modules, self.options.items, block, symmetry)
        layouts = [layout for _, layout in sorted(self._layouts, key=lambda entry: entry[0])]
        try:
            chain.find_states(layouts, end)
            self._join_modules(chain, block, end)
        except TimeUpError:
            self.candidates.append(("modules with barriers", None, "left out: the time was up"))

    def _join_modules(self, chain: BatchedChain, block: int, end: Deadline) -> None:
        iterations = self.options.iterations
        evaluations = _CHAIN_EVALUATIONS
        if iterations is not None:
            # A sixth of the budget, were all pairs searched once; those near the path take more.
            pairs = max(1, chain.num_pairs * len(self.problem.graph.tasks))
            evaluations = max(1, iterations // 6 // pairs)
        options = self.options
        budget = ChainBudget(end, evaluations, options.seed, options.threads, self._stop)
        chain.improve(budget)
        barrier_ns = chain.best_ns()
        note = (
            f"{len(chain.modules)} modules, {chain.num_classes} distinct, "
            f"{chain.num_searches} searches of {chain.num_pairs} pairs"
        )
        self.candidates.append(("modules with barriers", barrier_ns, note))
        if barrier_ns is None:
            return
        layout = self._search(chain.layout(), block, seed=0, evaluations=0, deadline=self._deadline)
        if not layout.violation:
            makespan = self._offer("modules without barriers", layout.steps)
            self._layouts.append((makespan, layout.layout))
            self._first_heat = _MODULE_HEAT
            self._report()

    def _search(
        self,
        layout: BatchLayout,
        block: int,
        seed: int,
        evaluations: int | None,
        deadline: Deadline,
    ) -> FoundLayout:
        return search_batches(
            self.problem.native,
            self.options.items,
            layout,
            block=block,
            max_evaluations=evaluations,
            time_limit_s=deadline.left_s(),
            seed=self.options.seed + seed,
            first_heat=self._first_heat,
            bound_ns=self.bound_ns,
            progress=lambda _: self._stop.is_set(),
        )

    def _anneal(self, block: int) -> None:
        """The whole, from the best layouts, one on each thread; small ones in several rounds."""
        is_small = self._num_pairs() <= MAX_EXACT_PAIRS
        rounds = _SMALL_ROUNDS if is_small else 1
        end = self._within(_SMALL_SHARE if is_small else self._shares.annealing)
        for index in range(rounds):
            if self._layouts and not self._is_done():
                deadline = end.part(1 / (rounds - index), self.options.iterations)
                self._anneal_round(block, index * self.options.threads, deadline)

    def _anneal_round(self, block: int, first_seed: int, deadline: Deadline) -> None:
        ordered = [layout for _, layout in sorted(self._layouts, key=lambda entry: entry[0])]
        iterations = self.options.iterations
        threads = self.options.threads
        evaluations = None if iterations is None else 1 + iterations // 2 // threads
        with ThreadPoolExecutor(threads) as executor:
            search = partial(self._search, block=block, evaluations=evaluations, deadline=deadline)
            futures = [
                executor.submit(
                    search, ordered[seed % min(2, len(ordered))], seed=first_seed + seed
                )
                for seed in range(threads)
            ]
            try:
                layouts = [future.result() for future in futures]
            except KeyboardInterrupt:
                self._stop.set()
                layouts = [future.result() for future in futures]
        for end in layouts:
            if not end.violation:
                note = f"{end.num_evaluations} layouts tried"
                self._layouts.append((self._offer("annealing", end.steps, note), end.layout))

    def _num_pairs(self) -> int:
        return slot_pairs(self.problem, self.options.items, BatchRules())

    def _prove(self) -> None:
        """Solve a small whole exactly; else raise the bound by modules. A budget in iterations
        leaves out the second, which only the clock ends."""
        if self._num_pairs() <= MAX_EXACT_PAIRS:
            self._solve_whole()
            if self.options.iterations is not None and not self._is_done():
                self._solve_as_divi()
            if self.is_divi:
                return
        if self.options.iterations is None and not self._is_done():
            bound = batched_lower_bound(
                self.problem,
                self.options.items,
                rounds=1 if self.is_divi else self.options.items,
                time_limit_s=self._deadline.left_s(),
                deadline=self._deadline,
            )
            self.bound_ns = max(self.bound_ns, bound.ns)
            self.candidates.append(("bound", None, f"{bound.ns} ns by {bound.source}"))

    def _solve_whole(self) -> None:
        """The programme; where memory may be short, first with what every plan needs, which proves
        a bound."""
        if self._is_short and self.is_divi:
            self._solve_programme("needed", NEEDED_SHARE)
        if not self._is_done():
            self._solve_programme("held", 1.0)

    def _solve_programme(self, memory: MemoryRule, share: float) -> None:
        """Only what is shorter than the best plan: with less big-M, bounds are proven sooner."""
        iterations = self.options.iterations
        engine = ChosenEngine(self.options, takes_whole_numbers=True)
        end = solve_batched_milp(
            self.problem,
            self.options.items,
            BatchRules(memory=memory),
            time_limit_s=self._within(share).left_s(),
            node_limit=None if iterations is None else 1 + iterations // 200,
            horizon_ns=self.best_ns,
            bound_ns=self.bound_ns,
            engine=engine,
            start=self.best,
        )
        if end.was_interrupted:
            self._stop.set()
        misses_none = memory == "needed" or not self._is_short
        if self.is_divi and misses_none and not end.is_infeasible:
            self.bound_ns = max(self.bound_ns, end.bound_ns)
        note = f"{engine.name}, {end.num_rows} rows, {end.num_columns} columns"
        self.candidates.append(("whole, exactly", end.value_ns, note))
        if end.value_ns is not None:
            steps = best_steps(self.problem, end.batches, self.options.items)
            self._offer("whole, exactly, as simulated", steps)

    def _solve_as_divi(self) -> None:
        """Where nodes ran out: in so many, the programme within the horizon of a list schedule and
        that of blocks may find plans that the one above misses."""
        options = replace(self.options, time_limit_s=self._deadline.left_s(), progress=None)
        try:
            result = DiviSolver().solve(self.problem, options)
        except InfeasibleError as err:
            self.candidates.append((DiviSolver.name, None, f"left out: {err}"))
            return
        if result.status == "interrupted":
            self._stop.set()
        if self.is_divi:
            self.bound_ns = max(self.bound_ns, result.bound_ns)
        self._offer(DiviSolver.name, result.plan.steps)

    def _plan(self, steps: tuple[Step, ...]) -> Plan:
        native, items = self.problem.native, self.options.items
        origin = f"{self._name} items {items} seed {self.options.seed}"
        return Plan(native.graph_digest, native.cluster_digest, steps, origin, (), items)

    def _report(self) -> None:
        best = self.best
        plan = None if best is None else partial(self._plan, best)
        report(self.options, self._name, self.begin, self.best_ns, self.bound_ns, plan)
