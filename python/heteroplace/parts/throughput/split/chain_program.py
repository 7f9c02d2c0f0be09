"""Times of modules for each pair of ends -> shortest paths through the chain, and prices of ends.

DiviML, section IV-D: the dynamic program over the ends of modules. `value` is the program with
whatever times are given: with proven bounds it is a bound of the whole, with times of plans it is
the time of a plan.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from heteroplace.parts.throughput.split.module_problem import NO_END, Pair

Times = Sequence[Mapping[Pair, int]]
"""For each module a time in ns for each pair of ends that has one."""


def forward(times: Times) -> list[dict[int, int]]:
    """For each boundary, from the begin to the end of the chain, the least time to each memory."""
    states: list[dict[int, int]] = [{NO_END: 0}]
    for module in times:
        ends: dict[int, int] = {}
        for (entry, exit_), time_ns in module.items():
            if entry in states[-1]:
                reached = states[-1][entry] + time_ns
                ends[exit_] = min(reached, ends.get(exit_, reached))
        states.append(ends)
    return states


def backward(times: Times) -> list[dict[int, int]]:
    """For each boundary the least time from each memory to the end of the chain."""
    mirrored = [{(b, a): time for (a, b), time in module.items()} for module in reversed(times)]
    return forward(mirrored)[::-1]


def value(times: Times) -> int | None:
    """Return the least time of the whole chain; None: there is no path."""
    return forward(times)[-1].get(NO_END)


def shortest_path(times: Times) -> list[Pair]:
    """Return the pair of each module on a shortest path; ties: the lowest memories."""
    ahead = backward(times)
    path: list[Pair] = []
    entry = NO_END
    for index, module in enumerate(times):
        rest = ahead[index + 1]
        candidates = [
            (time_ns + rest[b], b) for (a, b), time_ns in module.items() if a == entry and b in rest
        ]
        exit_ = min(candidates)[1]
        path.append((entry, exit_))
        entry = exit_
    return path


def end_prices(times: Times) -> list[dict[int, int]]:
    """Return a price in ns for each boundary and memory.

    The mean of the time to an end and of what the whole takes beside the time from it. With prices
    p, no plan of the whole is shorter than the sum over modules of

        least over pairs (a, b) of [p(a) + time(a, b) - p(b)]

    and at these prices the sum is the length of a shortest path, with room on all other pairs.
    Ends that are on no path from begin to end have no price.
    """
    to, rest = forward(times), backward(times)
    whole = to[-1][NO_END]
    prices = []
    for ends, ahead in zip(to, rest, strict=True):
        shared = {end: ns for end, ns in ends.items() if end in ahead}
        prices.append({end: (ns + whole - ahead[end]) // 2 for end, ns in shared.items()})
    return prices
