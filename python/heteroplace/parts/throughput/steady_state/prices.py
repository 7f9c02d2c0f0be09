"""Lagrange multipliers of resources and memories: a bound on the time per item, with placements.

With prices mu >= 0 for each resource, sum 1, and lam >= 0 per byte of each memory (the
multipliers), no placement that fits has a smaller time per item T than

    L(mu, lam) = min over placements of [ sum mu_r * busy_r + sum lam_m * used_m ] - sum lam_m * C_m

because T >= busy_r for every r, and used_m <= C_m (Lagrangian relaxation). The inner minimum is
`Relaxation` of the core, over plans whose copies leave the tensor's home by `Cluster.route`. L is
concave and positively homogeneous, so each minimiser is a cutting plane through 0. The planes are
maximised in a box around the best prices, which moves and changes its size (the boxstep method of
Marsten, Hogan and Blankenship 1975, 10.1287/opre.23.3.389). Unlike a subgradient method the planes
also give, as the dual values of the last master problem, a convex combination of placements whose
average load is the bound (Dantzig and Wolfe 1960, 10.1287/opre.8.1.101): what a plan close to the
bound is cut from. C++: src/parts/throughput/steady_state/relaxation.cc.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from heteroplace.errors import SolverLimitError
from heteroplace.native.core_arrays import IntArray
from heteroplace.parts.throughput.native.core_throughput import Relaxation
from heteroplace.parts.throughput.steady_state.work_bound import work_bound
from heteroplace.solve.deadline import Deadline
from heteroplace.solve.lp.linear import LinearFailure, linear_optimum
from heteroplace.solve.lp.linear_program import FloatArray, MixedProgram
from heteroplace.solve.problem import Problem

PRICES = "prices"
"""Name of the bound among the candidates, where it is left out."""
SLACK = 1e-9
"""Relative error allowed for sums of the relaxation: above (terms of the sum) * 2^-52."""
_FIRST_BOX = 0.3
_MIN_BOX = 1e-7
_GAIN_RATIO = 1e-5
"""The search for prices ends when the planes promise less, relative to the bound."""
_MAX_PLANES = 600
_MIN_WEIGHT = 1e-6
_SPARE_RATIO = 0.012
"""Part of each memory that the combination leaves free, where that is possible."""
_SPARE_BOX = 1.0
_WORK_SHARE = 0.1
"""Of the time, for the bound of the work alone."""
_MAX_COMBINED = 16


@dataclass(frozen=True)
class PriceBound:
    """The best bound found and the placements behind it."""

    bound_ns: int
    """No placement that fits has a smaller time per item."""
    combination: tuple[tuple[float, IntArray], ...]
    """(weight, device of each task), weights > 0 with sum about 1: on average their loads are near
    the bound and they fit with a little room. Heaviest first."""
    num_evaluations: int
    is_exact: bool
    """The inner minima were exact, not relaxed further."""
    left_out: str = ""
    """Why there are no prices, and the bound is that of the work alone; "": there are."""


def price_bound(
    problem: Problem,
    reference_ns: int,
    max_evaluations: int,
    time_limit_s: float,
    should_stop: Callable[[int], bool] = lambda bound_ns: False,
) -> PriceBound:
    """Search for prices with a large bound, from that of `work_bound`.

    Parameters
    ----------
    reference_ns
        A time per item of the right size; only scales the numbers.
    should_stop
        Asked after each evaluation with the bound so far in ns.
    """
    deadline = Deadline.after(time_limit_s)
    work_ns = work_bound(problem, deadline.within(_WORK_SHARE * time_limit_s))
    try:
        search = _PriceSearch(problem, reference_ns, work_ns)
    except SolverLimitError as err:
        return PriceBound(work_ns, (), 0, False, f"left out: {err}")
    return search.run(max_evaluations, deadline.at_s, should_stop)


class _PriceSearch:
    """Cutting planes in units of the reference time and of the memories' sizes."""

    def __init__(self, problem: Problem, reference_ns: int, known_ns: int) -> None:
        self._relaxation = Relaxation(problem.native)
        self._num_resources = self._relaxation.num_resources
        self._reference = float(max(1, reference_ns))
        self._capacity = np.array([float(m.bytes) for m in problem.cluster.memories])
        self._planes: list[FloatArray] = []
        self._points: list[FloatArray] = []
        self._best_bound = float(known_ns)

    def run(
        self, max_evaluations: int, deadline: float, should_stop: Callable[[int], bool]
    ) -> PriceBound:
        """See `price_bound`; `deadline` is a value of time.perf_counter()."""
        count = self._num_resources
        center = np.zeros(count + len(self._capacity))
        num_units = self._relaxation.num_units
        center[:num_units] = 1.0 / num_units
        value = self._evaluate(center)
        evaluations, box = 1, _FIRST_BOX
        for unit in range(num_units):
            if time.perf_counter() >= deadline:
                break
            corner = np.zeros_like(center)
            corner[unit] = 1.0
            self._evaluate(corner)
            evaluations += 1
        while evaluations < max_evaluations and time.perf_counter() < deadline:
            if not math.isfinite(value) or should_stop(self._bound_ns()):
                break
            point, promised, _ = self._master(center, box)
            gain = promised - value
            if gain <= _GAIN_RATIO * abs(promised) or box < _MIN_BOX:
                # The bound is concave: what is not gained in a large box is nowhere.
                if box >= _FIRST_BOX:
                    break
                box *= 8.0
                continue
            evaluation = self._evaluate(point)
            evaluations += 1
            if evaluation >= value + 0.1 * gain:
                if evaluation >= value + 0.5 * gain:
                    box *= 1.5
                center, value = point, evaluation
            else:
                box *= 0.7
            self._forget(center)
        return PriceBound(
            self._bound_ns(), self._combination(center, box), evaluations, self._relaxation.is_exact
        )

    def _bound_ns(self) -> int:
        return max(0, math.ceil(self._best_bound))

    def _evaluate(self, point: FloatArray) -> float:
        """Add the plane at `point`; return the bound there, in units of the reference."""
        count = self._num_resources
        prices = point.copy()
        prices[count:] *= self._reference / self._capacity
        # Rounded to a sum that is surely at most 1.
        prices[:count] /= max(prices[:count].sum(), 1e-300) * (1 + SLACK)
        value, totals = self._relaxation.evaluate(prices)
        memory = float(prices[count:] @ self._capacity)
        if not math.isfinite(value):
            return value
        self._best_bound = max(self._best_bound, value * (1 - SLACK) - memory * (1 + SLACK))
        plane = totals / self._reference
        plane[count:] = totals[count:] / self._capacity - 1.0
        self._planes.append(plane)
        self._points.append(prices)
        return (value - memory) / self._reference

    def _master(self, center: FloatArray, box: float) -> tuple[FloatArray, float, FloatArray]:
        """Best point of the planes in the box, its value there, and the weights of the planes."""
        size = len(center)
        planes = np.array(self._planes)
        program = MixedProgram()
        program.add_columns(size, np.maximum(0.0, center - box), center + box)
        value = program.add_column(-math.inf, math.inf, cost=-1.0)
        rows, columns = np.nonzero(planes)
        every = np.arange(len(planes))
        program.add_rows(
            np.zeros(len(planes)),
            (rows, columns, -planes[rows, columns]),
            (every, np.full(len(planes), value), np.ones(len(planes))),
        )
        priced = np.arange(self._num_resources)
        entries = (np.zeros_like(priced), priced, np.ones(len(priced)))
        program.add_rows(np.ones(1), entries, is_equal=True)
        optimum = linear_optimum(program)
        if isinstance(optimum, LinearFailure):
            return center, -math.inf, np.zeros(len(planes))
        return (
            np.maximum(0.0, optimum.values[:size]),
            float(optimum.values[value]),
            optimum.multipliers,
        )

    def _forget(self, center: FloatArray) -> None:
        """Drop the planes that are farthest from binding at the center."""
        if len(self._planes) <= _MAX_PLANES:
            return
        heights = np.array(self._planes) @ center
        keep = np.sort(np.argsort(heights, kind="stable")[: _MAX_PLANES // 2])
        self._planes = [self._planes[index] for index in keep]
        self._points = [self._points[index] for index in keep]

    def _combination(self, center: FloatArray, box: float) -> tuple[tuple[float, IntArray], ...]:
        if not self._planes:
            return ()
        # The parts of a plan are not divided as finely as the weights: some room is kept.
        for plane in self._planes:
            plane[self._num_resources :] += _SPARE_RATIO
        _, _, weights = self._master(center, max(10 * box, _SPARE_BOX))
        chosen = [int(i) for i in np.argsort(-weights, kind="stable") if weights[i] > _MIN_WEIGHT]
        combination = []
        for index in chosen[:_MAX_COMBINED]:
            self._relaxation.evaluate(self._points[index])
            combination.append((float(weights[index]), self._relaxation.placement()))
        return tuple(combination)
