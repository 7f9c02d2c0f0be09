"""A router of some time in front of branches of some time: what predictions of it can save.

Cui et al., "Brainstorm" (OSDI 2023), 6: the router and each branch are so many equal convolutions
of the same tensor, so that the ratio of their times is that of the layers, whatever a layer takes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import combinations

import numpy as np
from tvm import relay

from heteroplace import routing
from heteroplace.model.routed.route_profile import RouteRecord, RouterShape
from zoo.models.routed import RoutedNetwork, RoutedParts, steered_top_k

ROUTER = "guess"
"""Name of the router."""
NUM_BRANCHES = 2
HABITS = (0.99, 0.97, 0.95, 0.9, 0.8, 0.6)
"""How often a router of DynamicRouting may take its favourite set of branches."""


def guessing(
    router_layers: int = 8,
    branch_layers: int = 16,
    *,
    is_one_kernel: bool = False,
    width: int = 32,
    size: int = 32,
    seed: int = 0,
) -> RoutedNetwork:
    """Return a network whose router takes as long as so many layers, and each branch as others.

    Parameters
    ----------
    is_one_kernel
        A branch is one layer of about as much work, which cannot be stopped once it runs.
    """
    parts, x = _begun(width, size, seed)
    scores = _scores(parts, x, router_layers, width)
    decision = steered_top_k(scores, parts.steer(ROUTER, 1, NUM_BRANCHES), 1)
    cells = routing.annotate_cell(x, dims=(0,), shape=(1, width, size, size))
    kernels = _kernels(branch_layers, is_one_kernel=is_one_kernel)
    ways = [_branch(parts, index, kernels, width) for index in range(NUM_BRANCHES)]
    return parts.network(routing.route(cells, decision, ways, name=ROUTER), 1)


def router_alone(layers: int, *, width: int = 32, size: int = 32, seed: int = 0) -> RoutedNetwork:
    """Return the router of `guessing` as a network without branches."""
    parts, x = _begun(width, size, seed)
    return parts.network(_scores(parts, x, layers, width), 1)


def guesses(num_runs: int, share: float, seed: int = 0) -> list[RouteRecord]:
    """Return a trace in which just this share of the runs, rounded, takes branch 0, in any order;
    the others take branch 1."""
    hits = np.arange(num_runs) < round(share * num_runs)
    taken = np.where(np.random.default_rng(seed).permutation(hits), 0, 1)
    return [
        RouteRecord(run, ROUTER, (1 - branch, branch), ((branch,),))
        for run, branch in enumerate(taken.tolist())
    ]


def habitual(routers: Sequence[RouterShape], num_runs: int, seed: int = 0) -> Iterator[RouteRecord]:
    """Yield the decisions of routers of whole tensors that mostly take the same set of branches.

    Each takes one or two; its favourite set is taken with one of `HABITS`, the others are alike.
    """
    random = np.random.default_rng(seed)
    sets, shares = [], []
    for router in routers:
        branches = range(router.num_branches)
        found = [each for count in (1, 2) for each in combinations(branches, count)]
        sets.append([found[at] for at in random.permutation(len(found))])
        favourite = random.choice(HABITS) if len(found) > 1 else 1.0
        others = [(1 - favourite) / (len(found) - 1)] * (len(found) - 1) if found[1:] else []
        shares.append([favourite, *others])
    for run in range(num_runs):
        for router, some, likely in zip(routers, sets, shares, strict=True):
            taken = some[random.choice(len(some), p=likely)]
            loads = tuple(int(branch in taken) for branch in range(router.num_branches))
            yield RouteRecord(run, router.name, loads, (taken,))


def _begun(width: int, size: int, seed: int) -> tuple[RoutedParts, relay.Expr]:
    parts = RoutedParts(seed)
    return parts, parts.input("x", 1, width, size, size)


def _scores(parts: RoutedParts, x: relay.Expr, layers: int, width: int) -> relay.Expr:
    for layer in range(layers):
        x = parts.conv(f"{ROUTER}.{layer}", x, (width, width))
    pooled = relay.nn.batch_flatten(relay.nn.global_avg_pool2d(x))
    return parts.linear(f"{ROUTER}.scores", pooled, width, NUM_BRANCHES)


def _kernels(layers: int, *, is_one_kernel: bool) -> list[int]:
    """Windows of the layers: 3 x 3, or one of about the area of all."""
    return [2 * round((3 * layers**0.5 - 1) / 2) + 1] if is_one_kernel else [3] * layers


def _branch(
    parts: RoutedParts, index: int, kernels: Sequence[int], width: int
) -> Callable[[relay.Expr], relay.Expr]:
    def run(rows: relay.Expr) -> relay.Expr:
        for layer, kernel in enumerate(kernels):
            rows = parts.conv(f"branch{index}.{layer}", rows, (width, width), kernel)
        return rows

    return run
