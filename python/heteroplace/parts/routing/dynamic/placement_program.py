"""PlacementProblem -> a mixed-integer program, its placement and its bound.

x[l][e][d] is 1 where member e of layer l is in memory d. Products of two of them are linear by
columns of their own, up to 1, for pairs that cells take (Glover, Improved linear integer
programming formulations of nonlinear integer problems, Management Science 22(4), 1975):

    z[l][e][f][d] <= x[l][e][d], x[l + 1][f][d]               where all moves cost the same,
    y[l][e][f][d][d'] with sums x[l][e][d] and x[l + 1][f][d'] else.

Unlike the published code of Brainstorm, which gives the product to a quadratic solver. Rows that
sum z over all f beside one member make the relaxation tell more than nothing: of an even layer no
more than its share can be in one memory.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from heteroplace.parts.routing.dynamic.placement_problem import (
    Array,
    BranchMemories,
    PlacementProblem,
    fits,
)
from heteroplace.solve.lp.engines import ChosenEngine
from heteroplace.solve.lp.linear_program import INFEASIBLE, MipLimits, MixedProgram, Terms
from heteroplace.solve.problem import SolveOptions

_TOLERANCE = 1e-6
"""Of the engines; bounds are lowered by so much of the largest objective."""


@dataclass(frozen=True)
class ProgramEnd:
    """What the engine found."""

    placement: BranchMemories | None
    """None: none was found."""
    bound: float
    """No placement costs less."""
    tolerance: float
    """How far below the optimum the bound is for the engine's arithmetic alone."""
    is_infeasible: bool
    """It is proven that there is no placement."""
    engine: str


def solve_program(problem: PlacementProblem, options: SolveOptions) -> ProgramEnd:
    """Return the cheapest placement that the engine finds within `options.time_limit_s`.

    Raises
    ------
    SolverError, SolverLicenceError, MissingPackageError
        As of the engine that `options.engine` names.
    """
    program = _Program(problem)
    engine = ChosenEngine(options)
    answer = engine.solve(program.mixed, MipLimits(options.time_limit_s, 0.0, None))
    placement = None if answer.values is None else program.read(answer.values)
    if placement is not None and not fits(problem, placement):
        placement = None  # bytes are held to the engine's tolerance only
    bound, tolerance = 0.0, _TOLERANCE * program.scale
    if math.isfinite(answer.bound):
        bound = max(0.0, program.to_objective(answer.bound) - tolerance)
    is_infeasible = answer.status == INFEASIBLE
    return ProgramEnd(placement, bound, tolerance, is_infeasible, engine.name)


class _Program:
    """The columns and rows; the objective is divided by `scale`, so that numbers are near 1."""

    def __init__(self, problem: PlacementProblem) -> None:
        self._problem = problem
        self.mixed = MixedProgram()
        move = problem.move_ns
        total = sum(float(cells.sum()) for cells in problem.cell_arrays) * float(move.max())
        total += sum(
            float(np.array(layer.load_ns).max(axis=1).sum())
            for layer in problem.layers
            if layer.load_ns
        )
        self.scale = total or 1.0
        self._offset = 0.0
        self._x = [self._members(index) for index in range(len(problem.layers))]
        self._add_memory()
        off_diagonal = move[~np.eye(problem.num_memories, dtype=bool)]
        is_uniform = not len(off_diagonal) or off_diagonal.min() == off_diagonal.max()
        for index, cells in enumerate(problem.cell_arrays):
            if is_uniform:
                self._add_stays(index, cells * off_diagonal.max(initial=0.0))
            else:
                self._add_moves(index, cells, move)
        if is_uniform and self._is_symmetric():
            # The memories have no names: the first member may as well be in the first one.
            self.mixed.lower[int(self._x[0][0][0])] = 1.0

    def to_objective(self, value: float) -> float:
        """Return what a value of the program is as an objective."""
        return value * self.scale + self._offset

    def read(self, values: Array) -> BranchMemories:
        """Return the placement in a solution."""
        return tuple(
            tuple(int(memory) for memory in np.argmax(values[columns], axis=1))
            for columns in self._x
        )

    def _members(self, index: int) -> np.ndarray:
        """Columns of a layer, [num_members][num_memories], with its own rows."""
        problem, mixed = self._problem, self.mixed
        layer = problem.layers[index]
        columns = np.array(
            [
                [mixed.add_binary() for _ in range(problem.num_memories)]
                for _ in range(layer.num_members)
            ]
        )
        for member, row in enumerate(columns):
            mixed.add_row([(int(column), 1.0) for column in row], 1.0, 1.0)
            if layer.fixed is not None:
                mixed.lower[int(row[layer.fixed[member]])] = 1.0
        fewest, most = problem.even_sizes(layer)
        if (fewest, most) != (0, layer.num_members):
            for row in columns.T:
                mixed.add_row([(int(column), 1.0) for column in row], fewest, most)
        if layer.load_ns:
            slowest = mixed.add_column(0.0, np.inf, cost=1.0)
            times = np.array(layer.load_ns) / self.scale
            for memory in range(problem.num_memories):
                terms: Terms = [(slowest, 1.0)]
                terms += [
                    (int(columns[member, memory]), -float(times[member, memory]))
                    for member in range(layer.num_members)
                ]
                mixed.add_row(terms)
        return columns

    def _add_memory(self) -> None:
        problem = self._problem
        for memory, room in enumerate(problem.memory_bytes):
            terms: Terms = []
            for layer, columns in zip(problem.layers, self._x, strict=True):
                for member, weight in enumerate(layer.weight_bytes):
                    terms.append((int(columns[member, memory]), weight / max(room, 1)))
            if terms:
                self.mixed.add_row(terms, -np.inf, 1.0 if room else 0.0)

    def _add_stays(self, index: int, costs: Array) -> None:
        """Take off the cost of what stays: all cells move but those of z."""
        problem, mixed = self._problem, self.mixed
        self._offset += float(costs.sum())
        before, after = self._x[index], self._x[index + 1]
        shares = [problem.even_sizes(problem.layers[index + side])[1] for side in (0, 1)]
        of_src: dict[int, Terms] = {}
        of_dst: dict[int, Terms] = {}
        for src, dst in np.argwhere(costs):
            for memory in range(problem.num_memories):
                cost = -float(costs[src, dst]) / self.scale
                stays = mixed.add_column(0.0, 1.0, cost=cost)
                for column in (int(before[src, memory]), int(after[dst, memory])):
                    mixed.add_row([(column, 1.0), (stays, -1.0)])
                of_src.setdefault(int(before[src, memory]), []).append((stays, -1.0))
                of_dst.setdefault(int(after[dst, memory]), []).append((stays, -1.0))
        for rows, share in ((of_src, shares[1]), (of_dst, shares[0])):
            for column, terms in rows.items():
                if len(terms) > share:
                    mixed.add_row([(column, float(share)), *terms])

    def _add_moves(self, index: int, cells: Array, move: Array) -> None:
        """Charge each pair of memories by columns whose sums are those of x."""
        problem, mixed = self._problem, self.mixed
        before, after = self._x[index], self._x[index + 1]
        memories = range(problem.num_memories)
        for src, dst in np.argwhere(cells):
            count = float(cells[src, dst]) / self.scale
            pairs = {
                (a, b): mixed.add_column(0.0, 1.0, cost=count * float(move[a, b]))
                for a in memories
                for b in memories
            }
            for memory in memories:
                leaves: Terms = [(pairs[memory, b], 1.0) for b in memories]
                comes: Terms = [(pairs[a, memory], 1.0) for a in memories]
                mixed.add_row([*leaves, (int(before[src, memory]), -1.0)], 0.0, 0.0)
                mixed.add_row([*comes, (int(after[dst, memory]), -1.0)], 0.0, 0.0)

    def _is_symmetric(self) -> bool:
        """Whether exchanging two memories changes nothing."""
        problem = self._problem
        return (
            len(set(problem.memory_bytes)) <= 1
            and all(layer.fixed is None for layer in problem.layers)
            and all(len(set(row)) == 1 for layer in problem.layers for row in layer.load_ns)
        )
