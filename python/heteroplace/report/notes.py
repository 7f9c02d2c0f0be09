"""A solution -> what its reader must know before its figures: nothing falls back in silence.

Requests that a rate needs, devices that get nothing, costs that are guesses, plans that were moved
by hand, bounds that are not known.
"""

from __future__ import annotations

import numpy as np

from heteroplace.model.cost import PREDICTED, CostTable
from heteroplace.model.plan import Plan, Run, devices_of
from heteroplace.model.solution import Solution
from heteroplace.model.units import format_ns
from heteroplace.native.core_arrays import IntArray
from heteroplace.terminal import listed

_GUESS = "roofline"
_CLEAR_SHARE = 0.005


def solution_notes(solution: Solution) -> list[str]:
    """Return whole sentences, the most important first; empty: there is nothing to say."""
    notes = []
    if solution.plan.moved_by_hand:
        notes.append(
            f"The plan was changed by hand ({solution.plan.moved_by_hand}); bound and candidates "
            f"are those of the solver's plan."
        )
    if solution.plan.placed_again:
        notes.append(
            f"The plan was made anew from the annotations of the module, because they split a task "
            f"of the previous plan: {solution.plan.placed_again}."
        )
    notes += _in_flight(solution)
    notes += _idle(solution)
    notes += _guesses(solution)
    if solution.others_cores:
        notes.append(
            f"Other programs used {solution.others_cores:.1f} cores while costs were measured, so "
            f"the fastest runs count, and beside such programs runs are slower than predicted; to "
            f"measure again, see `heteroplace costs forget`."
        )
    if not solution.bound_ns:
        notes.append("No lower bound is known, so nobody can say how far from the best this is.")
    if solution.predictions:
        notes.append(
            "Work is done before routers decide, and is of no use in runs that decide otherwise."
        )
    return notes


def notes_text(solution: Solution) -> str:
    """Return a line for each of the notes; "": there are none."""
    return "\n".join(f"note: {note}" for note in solution_notes(solution))


def _in_flight(solution: Solution) -> list[str]:
    """What the time per item takes to come true."""
    used = [solution.cluster.device_id(name) for name in solution.devices_used]
    if not solution.item_ns or len(used) < 2:
        return []
    # As many as leave while one is on its way (Little's law), and one that comes.
    count = -(-solution.predicted_ns // solution.item_ns) + 1
    notes = [f"An item every {format_ns(solution.item_ns)} needs {count} requests in flight."]
    devices = solution.cluster.devices
    has_gpus = any(devices[device].kind != "cpu" for device in used)
    if has_gpus or len({devices[device].host for device in used}) > 1:
        notes.append(
            f"GPUs, and several hosts, take requests in the plan's order, so that it may be longer "
            f"there: `heteroplace simulate --batch {2 * count}` tells."
        )
    return notes


def _idle(solution: Solution) -> list[str]:
    """What devices run nothing, and why: those of one reason together."""
    costs = solution.costs
    times = np.asarray(costs.ns[0], dtype=np.int64).reshape(costs.num_tasks, costs.num_devices)
    placement = np.array(solution.plan.placement(costs.num_tasks), dtype=np.int64)
    here = times[np.arange(costs.num_tasks), placement]
    here[(placement < 0) | (here < 0)] = np.iinfo(np.int64).max
    names: dict[str, list[str]] = {}
    for name in solution.devices_not_used:
        device = solution.cluster.device_id(name)
        why = _why_idle(costs, device, times[:, device], here)
        names.setdefault(why, []).append(name)
    return [
        f"{listed(idle)} {'gets' if len(idle) == 1 else 'get'} no task: {why}"
        for why, idle in names.items()
    ]


def _why_idle(costs: CostTable, device: int, there: IntArray, here: IntArray) -> str:
    """Parameters: [tasks] of ns on the device, below 0 where it has none, and where they are."""
    can_run = there >= 0
    if len(there) and not can_run.any():
        cells = (costs.cost(task, device) for task in range(costs.num_tasks))
        reason = next((cell.reason for cell in cells if cell.reason), "")
        return f"no task can run there{reason and f': {reason}'}."
    faster = np.count_nonzero(can_run & (there < here))
    if not faster:
        return "none is faster there than where it is."
    return (
        f"{faster} of {len(there)} are faster there than where they are, but what the solver tried "
        f"with them there gained nothing, or not enough."
    )


def _guesses(solution: Solution) -> list[str]:
    """What share of the time that the plan is made of nobody has measured."""
    total, predicted, guessed, given = 0, 0, 0, 0
    for task, device in _placed(solution.plan):
        cost = solution.costs.cost(task, device)
        ns = cost.ns or 0
        total += ns
        predicted += ns if cost.source in PREDICTED else 0
        guessed += ns if cost.source == _GUESS else 0
        given += ns if cost.source == "given" else 0
    notes = []
    if total and guessed / total >= _CLEAR_SHARE:
        notes.append(
            f"{guessed / total:.0%} of the kernel time in this plan is a guess from peak speeds "
            f"(roofline); measure it by `heteroplace profile` before you trust the times."
        )
    elif total and predicted / total >= _CLEAR_SHARE:
        notes.append(
            f"{predicted / total:.0%} of the kernel time in this plan is predicted from other "
            f"measurements, not measured itself."
        )
    if total and given / total >= _CLEAR_SHARE:
        notes.append("Times came with the graph file; they were not measured here.")
    return notes


def _placed(plan: Plan) -> list[tuple[int, int]]:
    pairs = {
        (step.task, device)
        for step in plan.steps
        if isinstance(step, Run)
        for device in devices_of(step)
    }
    return sorted(pairs)
