"""A solution -> its first line: how much faster than one device, where, and what is possible."""

from __future__ import annotations

from heteroplace.model.cluster import Cluster
from heteroplace.model.implementations import implementation_gains
from heteroplace.model.plan import Plan, devices_of
from heteroplace.model.solution import Solution
from heteroplace.model.units import format_gap, format_ns
from heteroplace.terminal import listed


def solution_headline(solution: Solution) -> str:
    """Return the `headline` of a solution: what its run is expected to take comes first.

    Where kernels were chosen, a line for each device that has others says what they gain.
    """
    return "".join(headline_parts(solution))


def headline_parts(solution: Solution) -> tuple[str, str]:
    """Return the headline in two parts: its claim, to be set large, and the rest.

    Joined, they are `solution_headline`. The rest may be empty.
    """
    claim, rest = _parts(
        solution.cluster,
        solution.plan,
        solution.predicted_ns,
        min(solution.predicted_singles, key=lambda single: single[1], default=None),
        solution.bound_ns or None,
        solution.expected_ns,
        solution.item_ns,
        is_compared=not solution.singles or bool(solution.predicted_singles),
    )
    gains = implementation_gains(solution.cluster, solution.costs, solution.plan)
    lines = [
        f"{name}: {count} tasks with these kernels gain {format_ns(gain_ns)}"
        for name, (count, gain_ns) in gains.items()
    ]
    return claim, "\n".join([rest, *lines])


def headline(
    cluster: Cluster,
    plan: Plan,
    makespan_ns: int,
    best_single: tuple[str, int] | None = None,
    bound_ns: int | None = None,
    expected_ns: int | None = None,
    item_ns: int | None = None,
    *,
    is_compared: bool = True,
) -> str:
    """Return one line: how much faster than the best device alone, where, and what is possible.

    The line has one kind of time: expected run times, simulated ones, or times per item.

    Parameters
    ----------
    makespan_ns : int
        Simulated.
    best_single : (device name, ns), optional
        The best device that runs everything, and its time of the kind that is predicted; None: no
        device can, or it is not known. No other one is said to be best.
    bound_ns : int, optional
        Lower bound of the objective; None: none is known. The gap is 0 % only if it is reached.
    expected_ns : int, optional
        Run time with interference. The line then has the gap alone: bounds are of simulated times.
    item_ns : int, optional
        Time per item in a steady state, if throughput is the objective; None: latency is.
    is_compared : bool
        The devices that can run everything were compared with the plan.
    """
    return "".join(
        _parts(
            cluster,
            plan,
            makespan_ns,
            best_single,
            bound_ns,
            expected_ns,
            item_ns,
            is_compared=is_compared,
        )
    )


def _parts(
    cluster: Cluster,
    plan: Plan,
    makespan_ns: int,
    best_single: tuple[str, int] | None,
    bound_ns: int | None,
    expected_ns: int | None,
    item_ns: int | None,
    *,
    is_compared: bool,
) -> tuple[str, str]:
    """The claim of `headline` and the rest."""
    used = dict.fromkeys(device for step in plan.steps for device in devices_of(step))
    names = [cluster.devices[device].name for device in sorted(used)]
    run_ns = makespan_ns if expected_ns is None else expected_ns
    objective_ns, predicted_ns = (makespan_ns, run_ns) if item_ns is None else (item_ns, item_ns)
    time = _time_text(plan, run_ns, item_ns)
    is_best = len(names) == 1 and best_single is not None and predicted_ns <= best_single[1]
    speedup = best_single[1] / predicted_ns if best_single and predicted_ns else None
    notes = []
    if is_best and not plan.moved_by_hand:
        claim, rest = f"one device is best: everything runs on {names[0]}", f", predicted {time}"
    elif best_single is None or is_best:
        claim, rest = f"predicted {time} on {listed(names, '+') or 'nothing'}", ""
        if is_compared and len(names) > 1 and plan.items == 1 and not plan.collectives:
            # Otherwise nobody has compared with one device.
            notes.append("no device alone can run everything")
    else:
        ratio = "" if speedup is None else f"{speedup:.2f}x "
        single = _time_text(plan, best_single[1], None if item_ns is None else best_single[1])
        claim = f"predicted {ratio}as fast as the best single device"
        rest = f": {time} on {listed(names, '+')}, {single} on {best_single[0]}"
    if item_ns is not None:
        notes.append(f"a run of one item takes {format_ns(run_ns)}")
    if plan.moved_by_hand:
        notes.append(f"moved by hand: {plan.moved_by_hand}")
    if bound_ns is not None:
        notes.append(_limit_text(objective_ns, bound_ns, speedup))
    return claim, f"{rest} ({'; '.join(notes)})" if notes else rest


def _limit_text(objective_ns: int, bound_ns: int, speedup: float | None) -> str:
    """What the lower bound of the objective proves.

    Parameters
    ----------
    speedup
        How often as fast as the best single device the plan is; None: that is not known.
    """
    if bound_ns >= objective_ns:
        return "no plan is faster"
    gap = format_gap((objective_ns - bound_ns) / objective_ns)
    if speedup is None or not bound_ns:
        return f"lower bound {format_ns(bound_ns)}, gap {gap}"
    return f"at most {speedup * objective_ns / bound_ns:.2f}x is possible, gap {gap}"


def _time_text(plan: Plan, run_ns: int, item_ns: int | None) -> str:
    if item_ns is not None:
        return f"one item every {format_ns(item_ns)}"
    items = f" for {plan.items} items" if plan.items > 1 else ""
    return f"{format_ns(run_ns)}{items}"
