"""Random routed networks: any protocol, gates, residuals, flows, overflow and nesting.

A network is made of its seed alone; to make one takes longer than to run it by numpy. Each routed
part reads tensors of the same shape as the next, so that they follow one another; branches are
unlike (widths, depths, identity, nested routers).
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
from heteroplace.relay.routing.cells import shape_of
from heteroplace.relay.routing.rewrite import named_routers

Array = np.ndarray
MAX_DEPTH = 2


@dataclass(frozen=True)
class RoutedCase:
    """A routed network and what it may read."""

    mod: tvm.IRModule
    masks: Mapping[str, tuple[int, tuple[int, ...]]]
    """For each input that is a mask the branches of a cell at most, and weights of its branches."""
    seed: int
    """Of its inputs."""

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


def random_routed(random: Random, dtype: str | None = None, max_parts: int = 3) -> RoutedCase:
    """One to `max_parts` routed parts, one after another or side by side."""
    return _Network(random, dtype or random.choice(("float32", "float32", "int32")), max_parts).case


class _Network:
    def __init__(self, random: Random, dtype: str, max_parts: int) -> None:
        self._random, self._dtype = random, dtype
        self._inputs: list[relay.Var] = []
        self._masks: dict[str, tuple[int, tuple[int, ...]]] = {}
        self._width = random.choice((1, 3, 4, 16))
        self._cells = random.choice((1, 2, 5, 6, 9))
        self._is_wide = random.random() < 0.25
        """Cells are [2, width] rather than [width]."""
        values = [self._input((self._cells, *self._cell()))]
        for _ in range(random.randint(1, max_parts)):
            values.append(self._part(random.choice(values), 0))
        outputs = values[1:] if random.random() < 0.5 else values[-1:]
        mod = module(self._inputs, relay.Tuple(outputs) if len(outputs) > 1 else outputs[0])
        self.case = RoutedCase(named_routers(mod), self._masks, random.randrange(2**31))

    def _cell(self) -> tuple[int, ...]:
        return (2, self._width) if self._is_wide else (self._width,)

    def _input(self, shape: tuple[int, ...], dtype: str | None = None) -> relay.Var:
        self._inputs.append(var(f"x{len(self._inputs)}", shape, dtype or self._dtype))
        return self._inputs[-1]

    def _part(self, x: relay.Expr, depth: int) -> relay.Expr:
        """A router with its branches; of its results the first."""
        random = self._random
        cells = routing.annotate_cell(x, (0,), (1, *shape_of(x)[1:]))
        num_branches = random.randint(1, 4)
        decision = self._decision(x, num_branches, depth)
        flows = [cells]
        if depth == 0 and random.random() < 0.2:
            other = self._input((self._cells, *self._cell()))
            flows.append(routing.annotate_cell(other, (0,), (1, *self._cell())))
        gate = None if decision.gates is None else random.choice((None, "dispatch", "combine"))
        overflow = random.choice(("rounds", "rounds", "drop", "error"))
        sizes, overflow = self._sizes(num_branches, decision, overflow)
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
    ) -> tuple[list[list[int]] | None, str]:
        random, cells = self._random, self._cells
        if decision.capacity is not None or random.random() < 0.3:
            return None, overflow
        pool = range(1, cells + 3)
        sizes = [
            sorted(random.sample(pool, random.randint(1, min(3, len(pool)))))
            for _ in range(num_branches)
        ]
        return (sizes if random.random() < 0.5 else sizes[:1] * num_branches), overflow

    def _decision(self, x: relay.Expr, num_branches: int, depth: int) -> routing.Decision:
        """By a mask that is an input, or by scores of the cells themselves."""
        random = self._random
        if depth == 0 and random.random() < 0.6:
            return self._by_mask(num_branches)
        if self._dtype != "float32":
            ids = relay.sum(relay.reshape(x, [self._cells, -1]), axis=1)
            return routing.hashed(ids, num_branches)
        most = random.randint(1, num_branches)
        scores = self._scores(x, num_branches)
        factor = random.choice((0.5, 1.0, 1.5, 2.0))
        makes: list[Callable[[], routing.Decision]] = [
            lambda: routing.top_k(scores, most),
            lambda: routing.threshold(scores, 0.2, random.choice((None, 0))),
        ]
        if depth == 0 and most * int(factor * -(-self._cells // num_branches)) >= 1:
            makes.append(lambda: routing.capacity_factor(scores, most, factor))
            makes.append(lambda: routing.batch_prioritised(scores, most, factor))
        return random.choice(makes)()

    def _by_mask(self, num_branches: int) -> routing.Decision:
        random = self._random
        most = random.randint(1, num_branches)
        mask = self._input((self._cells, num_branches), "int32")
        weights = tuple(random.choice((0, 1, 1, 5)) for _ in range(num_branches))
        self._masks[mask.name_hint] = (most, weights)
        gates = None
        if self._dtype == "float32" and random.random() < 0.5:
            gates = self._input((self._cells, num_branches), "float32")
        return routing.from_mask(mask, gates, most)

    def _scores(self, x: relay.Expr, num_branches: int) -> relay.Expr:
        flat = relay.reshape(x, [self._cells, -1])
        width = shape_of(flat)[1]
        return relay.nn.softmax(relay.nn.dense(flat, self._weights(num_branches, width)))

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
