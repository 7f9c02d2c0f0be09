"""Random routed networks: any protocol, gates, residuals, flows, overflow, loops and nesting.

A network is made of its seed alone; to make one takes longer than to run it by numpy. Each routed
part reads tensors of the same shape as the next, so that they follow one another; branches are
unlike (widths, depths, identity, nested routers). To compile kernels takes most of the time, so
several networks of one shape may stand side by side in a module, and share kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random

import numpy as np
import tvm
from relay_models import module, var
from tvm import relay

from heteroplace import routing
from heteroplace.parts.routing.relay.cells import shape_of
from heteroplace.parts.routing.relay.rewrite import named_routers

Array = np.ndarray
MAX_DEPTH = 2
HOST_ROUTER = "tests.branches_by_sign"
"""A router function of the host: a cell takes the branches at whose places it is above 0."""


@dataclass(frozen=True)
class RoutedCase:
    """A routed network and what it may read."""

    mod: tvm.IRModule
    masks: Mapping[str, tuple[int, tuple[int, ...]]]
    """For each input that is a mask the branches of a cell at most, and weights of its branches."""
    seed: int
    """Of its inputs."""
    num_outputs: tuple[int, ...] = (1,)
    """Of each of the networks that stand side by side."""

    def inputs(self, seed: int | None = None) -> dict[str, Array]:
        """Inputs of the network; others for another seed."""
        generator = np.random.default_rng([self.seed, 0 if seed is None else seed])
        found = {}
        for parameter in self.mod["main"].params:
            shape = tuple(int(extent) for extent in parameter.checked_type.shape)
            name, dtype = parameter.name_hint, parameter.checked_type.dtype
            if name in self.masks:
                found[name] = random_mask(generator, shape[0], *self.masks[name])
            elif dtype == "float32":
                found[name] = generator.standard_normal(shape).astype(dtype)
            else:
                found[name] = generator.integers(-5, 6, shape).astype(dtype)
        return found


def random_mask(
    generator: np.random.Generator, num_cells: int, most: int, weights: Sequence[int]
) -> Array:
    """A mask of at most so many branches for a cell; branches of weight 0 get none."""
    mask = np.zeros((num_cells, len(weights)), "int32")
    usable = np.flatnonzero(weights)
    if usable.size:
        chances = np.array(weights)[usable] / sum(weights)
        for cell in range(num_cells):
            count = int(generator.integers(0, min(most, usable.size) + 1))
            mask[cell, generator.choice(usable, count, replace=False, p=chances)] = 1
    return mask


def register_host_router() -> None:
    """Make `HOST_ROUTER` known to TVM."""

    def decide(x: tvm.nd.NDArray, mask: tvm.nd.NDArray) -> None:
        cells = x.numpy().reshape(mask.shape[0], -1)
        places = np.arange(mask.shape[1]) % cells.shape[1]
        mask.copyfrom((cells[:, places] > 0).astype("int32"))

    tvm.register_func(HOST_ROUTER, decide, override=True)


def random_routed(random: Random, dtype: str | None = None, max_parts: int = 3) -> RoutedCase:
    """One to `max_parts` routed parts, one after another or side by side."""
    return random_batch(random, 1, dtype, max_parts)


def random_batch(
    random: Random, num_networks: int, dtype: str | None = None, max_parts: int = 3
) -> RoutedCase:
    """So many networks side by side: none reads what another makes. One may have an overflow."""
    dtype = dtype or random.choice(("float32", "float32", "int32"))
    register_host_router()
    shapes = _Shapes(random, dtype)
    networks = [_Network(random, shapes, max_parts, at) for at in range(num_networks)]
    outputs = [output for network in networks for output in network.outputs]
    inputs = [each for network in networks for each in network.inputs]
    masks = {name: mask for network in networks for name, mask in network.masks.items()}
    mod = module(inputs, relay.Tuple(outputs) if len(outputs) > 1 else outputs[0])
    counts = tuple(len(network.outputs) for network in networks)
    return RoutedCase(named_routers(mod), masks, random.randrange(2**31), counts)


class _Shapes:
    """What networks side by side have in common."""

    def __init__(self, random: Random, dtype: str) -> None:
        self.dtype = dtype
        self.width = random.choice((1, 3, 4, 16))
        self.cells = random.choice((1, 2, 5, 6, 9))
        self.is_wide = random.random() < 0.25
        """Cells are [2, width] rather than [width]."""
        pool = range(1, self.cells + 3)
        self.sizes = [
            sorted(random.sample(pool, random.randint(1, min(3, len(pool))))) for _ in range(3)
        ]
        """Capacities of branches."""


class _Network:
    def __init__(self, random: Random, shapes: _Shapes, max_parts: int, number: int) -> None:
        self._random, self._dtype, self._shapes = random, shapes.dtype, shapes
        self._number = number
        self.inputs: list[relay.Var] = []
        self.masks: dict[str, tuple[int, tuple[int, ...]]] = {}
        self._width, self._cells, self._is_wide = shapes.width, shapes.cells, shapes.is_wide
        values = [self._input((self._cells, *self._cell()))]
        for _ in range(random.randint(1, max_parts)):
            make = self._loop if random.random() < 0.1 else self._part
            values.append(make(random.choice(values), 0))
        self.outputs = values[1:] if random.random() < 0.5 else values[-1:]

    def _cell(self) -> tuple[int, ...]:
        return (2, self._width) if self._is_wide else (self._width,)

    def _input(self, shape: tuple[int, ...], dtype: str | None = None) -> relay.Var:
        name = f"{self._number}_x{len(self.inputs)}"
        self.inputs.append(var(name, shape, dtype or self._dtype))
        return self.inputs[-1]

    def _loop(self, x: relay.Expr, depth: int) -> relay.Expr:
        """Cells that take a branch up to two times."""
        cells = routing.annotate_cell(x, (0,), (1, *shape_of(x)[1:]))
        zero, branch = relay.const(0, self._dtype), self._branch(depth + 1, 1)

        def goes_on(rows: relay.Expr) -> relay.Expr:
            return relay.greater(relay.sum(self._flat(rows), axis=1), zero)

        sizes = self._random.choice((None, *self._shapes.sizes))
        return routing.loop(cells, goes_on, branch, 2, sizes)

    def _part(self, x: relay.Expr, depth: int) -> relay.Expr:
        """A router with its branches; of its results the first."""
        random = self._random
        cells = routing.annotate_cell(x, (0,), (1, *shape_of(x)[1:]))
        num_branches = random.randint(1, 4)
        decision = self._decision(x, num_branches, depth)
        flows = [cells]
        if random.random() < 0.2:
            other = relay.multiply(x, self._weights(1))
            if depth == 0:
                other = self._input((self._cells, *self._cell()))
            flows.append(routing.annotate_cell(other, (0,), (1, *self._cell())))
        gate = None if decision.gates is None else random.choice((None, "dispatch", "combine"))
        policy = random.choice(("rounds", "rounds", "drop", "error"))
        sizes, overflow = self._sizes(num_branches, decision, policy)
        num_results = random.choice((1, 1, 1, 2))
        results = routing.route(
            flows if len(flows) > 1 else cells,
            decision,
            [self._branch(depth, num_results) for _ in range(num_branches)],
            gate,
            x if random.random() < 0.3 else None,
            sizes,
            overflow,
        )
        return results if num_results == 1 else relay.add(*results)

    def _sizes(
        self, num_branches: int, decision: routing.Decision, overflow: str
    ) -> tuple[list[list[int]] | None, str | None]:
        random, cells = self._random, self._cells
        if decision.capacity is not None:
            return None, None
        if random.random() < 0.3:
            return None, overflow
        sizes = [random.choice(self._shapes.sizes) for _ in range(num_branches)]
        if overflow == "error" and self._number:  # an overflow ends the run of all
            sizes = [sorted({*each, cells}) for each in sizes]
        return (sizes if random.random() < 0.5 else sizes[:1] * num_branches), overflow

    def _decision(self, x: relay.Expr, num_branches: int, depth: int) -> routing.Decision:
        """By a mask that is an input, or by scores of the cells themselves."""
        random = self._random
        if depth == 0 and random.random() < 0.6:
            return self._by_mask(num_branches)
        if (depth == 0 or self._cells == 1) and random.random() < 0.15:
            return routing.host(HOST_ROUTER, [x], self._cells, num_branches)
        total = relay.sum(self._flat(x), axis=1)
        if self._dtype != "float32":
            if random.random() < 0.5:
                return routing.hashed(total, num_branches)
            places = relay.floor_mod(total, relay.const(num_branches + 1))
            return routing.label(relay.subtract(places, relay.const(1)), num_branches)
        most = random.randint(1, num_branches)
        scores = self._scores(x, num_branches)
        factor = random.choice((0.5, 1.0, 1.5, 2.0))
        makes: list[Callable[[], routing.Decision]] = [
            lambda: routing.top_k(scores, most),
            lambda: routing.threshold(scores, 0.2, random.choice((None, 0))),
        ]
        if num_branches == 2:
            makes.append(lambda: routing.early_exit(relay.max(scores, axis=1), 0.7))
        if num_branches > 1:
            is_high = relay.cast(relay.greater(total, relay.const(0.0)), "int32")
            first = relay.const(random.choice((0, -1)))
            makes.append(lambda: routing.label(relay.add(is_high, first), num_branches))
        if depth == 0 and most * int(factor * -(-self._cells // num_branches)) >= 1:
            makes.append(lambda: routing.capacity_factor(scores, most, factor))
            makes.append(lambda: routing.batch_prioritised(scores, most, factor))
        return random.choice(makes)()

    def _by_mask(self, num_branches: int) -> routing.Decision:
        random = self._random
        most = random.randint(1, num_branches)
        mask = self._input((self._cells, num_branches), "int32")
        weights = tuple(random.choice((0, 1, 1, 5)) for _ in range(num_branches))
        self.masks[mask.name_hint] = (most, weights)
        gates = None
        if self._dtype == "float32" and random.random() < 0.5:
            gates = self._input((self._cells, num_branches), "float32")
        return routing.from_mask(mask, gates, most)

    def _scores(self, x: relay.Expr, num_branches: int) -> relay.Expr:
        flat = self._flat(x)
        width = shape_of(flat)[1]
        return relay.nn.softmax(relay.nn.dense(flat, self._weights(num_branches, width)))

    def _flat(self, x: relay.Expr) -> relay.Expr:
        return relay.reshape(x, [self._cells, -1])

    def _weights(self, *shape: int) -> relay.Constant:
        generator = np.random.default_rng(self._random.randrange(2**31))
        if self._dtype == "float32":
            return relay.const(generator.standard_normal(shape).astype("float32"))
        return relay.const(generator.integers(-3, 4, shape).astype(self._dtype))

    def _branch(self, depth: int, num_results: int) -> Callable[..., list[relay.Expr]]:
        """A function of rows; of several flows it adds up what they give."""
        random = self._random

        def run(*rows: relay.Expr) -> list[relay.Expr]:
            x = rows[0]
            for other in rows[1:]:
                x = relay.add(x, other)
            return [self._made_of(x, random.choice(kinds), depth) for _ in range(num_results)]

        kinds = ["copy", "scale", "wide", "deep"]
        if depth < MAX_DEPTH:
            kinds.append("nested")
        return run

    def _made_of(self, x: relay.Expr, kind: str, depth: int) -> relay.Expr:
        if kind == "copy":
            return x
        if kind == "scale":
            return relay.add(relay.multiply(x, self._weights(self._width)), self._weights(1))
        if kind == "nested":
            return self._part(x, depth + 1)
        if self._dtype != "float32" or self._is_wide:
            return relay.maximum(relay.add(x, self._weights(*self._cell())), self._weights(1))
        hidden = 2 if kind == "wide" else 5
        grown = relay.nn.relu(relay.nn.dense(x, self._weights(hidden, self._width)))
        for _ in range(2 if kind == "deep" else 0):
            grown = relay.tanh(relay.nn.dense(grown, self._weights(hidden, hidden)))
        return relay.nn.dense(grown, self._weights(self._width, hidden))
