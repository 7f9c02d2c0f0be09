"""Which memory the weights of each branch lie in: what is to be placed, and what a placement costs.

Cui et al., Optimizing Dynamic Neural Networks with Brainstorm (OSDI 2023), profile-guided model
placement: branches of consecutive routers that the same cells take belong into one memory. The
paper gives no objective. Ours is the time of the slowest device of each layer plus that of all
cells that change their memory,

    sum over l of max over d of sum over e of load_ns[l][e][d] x[l][e][d]
    + sum over l, e, f of cells[l][e][f] cell_ns[d of (l, e)][d of (l + 1, f)]

with weights within each memory's bytes; without times it is the number of cells that change.

A layer is mostly a router, and its members are the branches. It may also be the homes of groups of
cells that must meet before an op mixes them (`gather.py`): then members are groups.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from math import inf

import numpy as np
import numpy.typing as npt

from heteroplace.errors import RoutingError
from heteroplace.model.routed.route_profile import RouteProfile

Array = npt.NDArray[np.float64]
BranchMemories = tuple[tuple[int, ...], ...]
"""Memory of each member of each layer. [num_layers][num_members]"""


@dataclass(frozen=True)
class Layer:
    """Members that are placed, each in one memory."""

    name: str
    """Of the router; of a layer of homes anything."""
    num_members: int
    weight_bytes: tuple[int, ...] = ()
    """Of each member; (): none have any."""
    load_ns: tuple[tuple[float, ...], ...] = ()
    """Expected time of each member in each memory; (): it does not count.
    [num_members][num_memories]"""
    is_even: bool = True
    """Each memory gets as many members as any other, or one more."""
    fixed: tuple[int, ...] | None = None
    """Memories that are given; None: they are chosen."""


@dataclass(frozen=True)
class PlacementProblem:
    """Layers in order, cells between them, and the memories.

    Raises
    ------
    RoutingError
        Sizes that do not fit together, negative numbers, or a memory that there is not.
    """

    num_memories: int
    layers: tuple[Layer, ...]
    cells: tuple[tuple[tuple[float, ...], ...], ...]
    """Mean cells per run that take a member of a layer and one of the next one.
    [num_layers - 1][num_members][num_members of the next layer]"""
    cell_ns: tuple[tuple[float, ...], ...] = ()
    """Time of a cell from memory to memory, 0 on the diagonal; (): each counts 1.
    [num_memories][num_memories]"""
    memory_bytes: tuple[int, ...] = ()
    """Room for weights in each memory; (): as much as is needed."""

    def __post_init__(self) -> None:
        faults = [*self._layer_faults(), *self._size_faults()]
        if faults:
            raise RoutingError(f"branches cannot be placed: {'; '.join(faults)}")

    def _layer_faults(self) -> list[str]:
        faults = []
        for layer in self.layers:
            if layer.num_members < 1:
                faults.append(f"layer {layer.name!r} has {layer.num_members} members, expected one")
            for name, values in (("weight_bytes", layer.weight_bytes), ("load_ns", layer.load_ns)):
                if values and len(values) != layer.num_members:
                    faults.append(
                        f"layer {layer.name!r} has {layer.num_members} members, {name} of "
                        f"{len(values)}"
                    )
            if not _are_amounts(layer.weight_bytes):
                faults.append(f"weight_bytes of layer {layer.name!r}: expected numbers >= 0")
            if not _are_rows(layer.load_ns, self.num_memories):
                faults.append(
                    f"load_ns of layer {layer.name!r}: expected {self.num_memories} numbers >= 0 "
                    f"for each member"
                )
            if layer.fixed is not None and not self.is_placement(layer, layer.fixed):
                faults.append(
                    f"layer {layer.name!r} is fixed to {layer.fixed}, expected memories below "
                    f"{self.num_memories} for {layer.num_members} members"
                )
        return faults

    def _size_faults(self) -> list[str]:
        faults = []
        if self.num_memories < 1 or not self.layers:
            faults.append("expected at least one memory and one layer")
        sizes = [layer.num_members for layer in self.layers]
        expected = list(pairwise(sizes))
        shapes = [(len(matrix), len(matrix[0]) if matrix else 0) for matrix in self.cells]
        if shapes != expected:
            faults.append(f"cells between layers: expected matrices of {expected}, got {shapes}")
        for index, (matrix, (_, width)) in enumerate(zip(self.cells, expected, strict=False)):
            if not _are_rows(matrix, width):
                faults.append(
                    f"cells between layers {index} and {index + 1}: expected {width} numbers >= 0 "
                    f"for each member"
                )
        size = self.num_memories
        is_square = len(self.cell_ns) == size and _are_rows(self.cell_ns, size)
        if self.cell_ns and (not is_square or any(row[i] for i, row in enumerate(self.cell_ns))):
            faults.append(
                f"cell_ns: expected {(size, size)} numbers >= 0, 0 from a memory to itself"
            )
        if self.memory_bytes and len(self.memory_bytes) != size:
            faults.append(f"memory_bytes: expected {size} numbers, got {len(self.memory_bytes)}")
        if not _are_amounts(self.memory_bytes):
            faults.append(f"memory_bytes: expected numbers >= 0, got {self.memory_bytes}")
        return faults

    def is_placement(self, layer: Layer, members: Sequence[int]) -> bool:
        """Tell whether these are memories, one for each member of a layer."""
        return len(members) == layer.num_members and all(
            0 <= memory < self.num_memories for memory in members
        )

    @cached_property
    def cell_arrays(self) -> tuple[Array, ...]:
        """`cells`. [num_layers - 1], each [num_members][num_members of the next layer]"""
        return tuple(np.array(matrix, dtype=np.float64) for matrix in self.cells)

    @cached_property
    def move_ns(self) -> Array:
        """`cell_ns`, or 1 between different memories. [num_memories][num_memories]"""
        if self.cell_ns:
            return np.array(self.cell_ns, dtype=np.float64)
        return 1.0 - np.eye(self.num_memories)

    def even_sizes(self, layer: Layer) -> tuple[int, int]:
        """Return the fewest and the most members of a layer in one memory that a solver chooses."""
        if not layer.is_even or layer.fixed is not None:
            return 0, layer.num_members
        fewest, rest = divmod(layer.num_members, self.num_memories)
        return fewest, fewest + bool(rest)


def _are_amounts(values: Sequence[float]) -> bool:
    """Whether all are numbers and none is below 0."""
    return all(0 <= value < inf for value in values)


def _are_rows(rows: Sequence[Sequence[float]], width: int) -> bool:
    """Whether all rows are of so many amounts."""
    return all(len(row) == width and _are_amounts(row) for row in rows)


def in_order(problem: PlacementProblem) -> BranchMemories:
    """Return the placement that knows nothing: members in order, as many in each memory."""
    return tuple(
        layer.fixed
        if layer.fixed is not None
        else tuple(
            member * problem.num_memories // layer.num_members
            for member in range(layer.num_members)
        )
        for layer in problem.layers
    )


def objective(problem: PlacementProblem, placement: BranchMemories) -> float:
    """Return what a placement costs: ns, or cells where no times are given."""
    total = 0.0
    for layer, members in zip(problem.layers, placement, strict=True):
        total += max(layer_loads(problem, layer, members), default=0.0)
    move = problem.move_ns
    for cells, src, dst in zip(problem.cell_arrays, placement, placement[1:], strict=False):
        total += float((cells * move[np.ix_(src, dst)]).sum())
    return total


def layer_loads(problem: PlacementProblem, layer: Layer, members: Sequence[int]) -> list[float]:
    """Return the expected time of each memory's devices in a layer; [] where times do not count."""
    if not layer.load_ns:
        return []
    loads = [0.0] * problem.num_memories
    for member, memory in enumerate(members):
        loads[memory] += layer.load_ns[member][memory]
    return loads


def crossing_cells(problem: PlacementProblem, placement: BranchMemories) -> float:
    """Return the mean cells per run that change their memory between two layers."""
    return sum(
        float((cells * (np.array(src)[:, None] != np.array(dst))).sum())
        for cells, src, dst in zip(problem.cell_arrays, placement, placement[1:], strict=False)
    )


def used_bytes(problem: PlacementProblem, placement: BranchMemories) -> tuple[int, ...]:
    """Return the bytes of weights in each memory."""
    used = [0] * problem.num_memories
    for layer, members in zip(problem.layers, placement, strict=True):
        for memory, weight in zip(members, layer.weight_bytes, strict=bool(layer.weight_bytes)):
            used[memory] += weight
    return tuple(used)


def fits(problem: PlacementProblem, placement: BranchMemories) -> bool:
    """Tell whether the weights fit, members are even where they must be, and fixed ones stay."""
    for layer, members in zip(problem.layers, placement, strict=True):
        fewest, most = problem.even_sizes(layer)
        counts = [members.count(memory) for memory in range(problem.num_memories)]
        if not fewest <= min(counts) <= max(counts) <= most:
            return False
        if layer.fixed not in (None, members):
            return False
    if not problem.memory_bytes:
        return True
    used = used_bytes(problem, placement)
    return all(have <= room for have, room in zip(used, problem.memory_bytes, strict=True))


def relaxed_bound(problem: PlacementProblem) -> float:
    """Return what no placement costs less than, without a program.

    Of the cells of a member of an even layer those of its largest neighbours can stay, as many as
    one memory has members of the next layer; the same from the other side. Each layer's slowest
    device takes at least the mean, and the longest of its members.
    """
    total = 0.0
    move = problem.move_ns
    off_diagonal = move[~np.eye(problem.num_memories, dtype=bool)]
    cheapest = float(off_diagonal.min(initial=np.inf)) if len(off_diagonal) else 0.0
    for index, cells in enumerate(problem.cell_arrays):
        share = [problem.even_sizes(problem.layers[index + side])[1] for side in (0, 1)]
        rows = np.sort(cells, axis=1)[:, ::-1][:, : share[1]].sum()
        columns = np.sort(cells, axis=0)[::-1][: share[0]].sum()
        total += cheapest * max(0.0, float(cells.sum() - min(rows, columns)))
    for layer in problem.layers:
        if layer.load_ns:
            least = np.array(layer.load_ns).min(axis=1)
            total += max(float(least.sum()) / problem.num_memories, float(least.max()))
    return total


def problem_of_profile(
    profile: RouteProfile,
    routers: Sequence[str],
    num_memories: int,
    *,
    weight_bytes: Sequence[Sequence[int]] = (),
    load_ns: Sequence[Sequence[Sequence[float]]] = (),
    cell_ns: Sequence[Sequence[float]] = (),
    memory_bytes: Sequence[int] = (),
) -> PlacementProblem:
    """Return the problem of placing the branches of some routers by a profile.

    Parameters
    ----------
    routers
        Names, in the order in which they decide.
    weight_bytes, load_ns
        Of each router as `Layer` has them; () where they do not count.
    cell_ns, memory_bytes
        As of `PlacementProblem`.

    Raises
    ------
    RoutingError
        The profile has no such router, or does not say how cells go from one to the next; or sizes
        do not fit together.
    """
    layers = []
    for index, name in enumerate(routers):
        weights = tuple(weight_bytes[index]) if weight_bytes else ()
        times = tuple(tuple(row) for row in load_ns[index]) if load_ns else ()
        layers.append(Layer(name, profile.router(name).num_branches, weights, times))
    matrices = []
    for src, dst in pairwise(routers):
        matrices.append(_cells_between(profile, src, dst))
    rows = tuple(tuple(row) for row in cell_ns)
    return PlacementProblem(num_memories, tuple(layers), tuple(matrices), rows, tuple(memory_bytes))


def _cells_between(profile: RouteProfile, src: str, dst: str) -> tuple[tuple[float, ...], ...]:
    transition = profile.transition(src, dst)
    if transition is None:
        raise RoutingError(
            f"the profile does not say how cells go from router {src!r} to {dst!r}: record runs "
            f"cell by cell (level 2), or place by loads alone (balance)"
        )
    shape = profile.router(src).num_branches, profile.router(dst).num_branches
    means = np.zeros(shape)
    for pair, count in transition.cells_per_run().items():
        means[pair] = count
    return tuple(tuple(row) for row in means.tolist())


def balanced_problem(
    profile: RouteProfile,
    routers: Sequence[str],
    num_memories: int,
    *,
    weight_bytes: Sequence[Sequence[int]] = (),
    memory_bytes: Sequence[int] = (),
) -> PlacementProblem:
    """Return the problem of balancing loads layer by layer, which needs no decisions cell by cell.

    Times are mean loads, in cells; cells between layers do not count. Parameters and errors as of
    `problem_of_profile`.
    """
    layers, matrices = [], []
    for index, name in enumerate(routers):
        router = profile.router(name)
        loads = [router.mean_load(branch) for branch in range(router.num_branches)]
        times = tuple((load,) * num_memories for load in loads)
        weights = tuple(weight_bytes[index]) if weight_bytes else ()
        layers.append(Layer(name, router.num_branches, weights, times))
        if index:
            zeros = (0.0,) * router.num_branches
            matrices.append((zeros,) * layers[index - 1].num_members)
    return PlacementProblem(num_memories, tuple(layers), tuple(matrices), (), tuple(memory_bytes))
