"""A module whose annotations split a task of its plan -> the same module with a new plan.

The plan has one kernel for the ops of a task. Kernels for the parts do not exist, and their costs
are unknown, so the module is placed as one that somebody has annotated: every op stays where its
annotation says, and only the order is solved for.
"""

from __future__ import annotations

from dataclasses import replace

from heteroplace.errors import HeteroPlaceError, LoweringError
from heteroplace.model.implementations import without_twins
from heteroplace.model.plan import PLACED_AGAIN
from heteroplace.pipeline.build_stages import annotate_as
from heteroplace.pipeline.build_state import BuildState
from heteroplace.pipeline.place_stages import place
from heteroplace.place_options import read_options
from heteroplace.relay.annotate.moved import SplitPlan
from heteroplace.relay.annotate.requested_options import read_requested_options
from heteroplace.relay.annotate.unplaced import unplaced

_SETTLED = frozenset(
    {"pin", "layers", "no_split", "plan_in", "routes", "max_memory", "weights_budget"}
)
"""Options that the annotations, or the cluster of the old plan, already answer."""


def place_again(state: BuildState) -> BuildState:
    """Drop the plan, and place the module by its annotations and the options of the old plan.

    Raises
    ------
    LoweringError
        The plan is for several items, or no new plan can be made.
    """
    split = state.plan
    assert isinstance(split, SplitPlan)  # else the stage does not apply
    attached, why = split.attached, "; ".join(split.faults)
    if attached.plan.items > 1:
        raise LoweringError(
            f"{why}, and the plan is for {attached.plan.items} items, whose batches the "
            f"annotations do not say; give the ops of each task the same device"
        )
    try:
        requested = read_requested_options(state.mod)
        given = {name: value for name, value in requested.items() if name not in _SETTLED}
        mod = unplaced(state.mod, attached.graph)
        cluster = without_twins(attached.cluster)
        compiled, solution = place(mod, cluster, *read_options(given), state.log)
    except HeteroPlaceError as err:
        raise LoweringError(
            f"{why}: this needs a new plan, which cannot be made: {err}. Give the ops of each task "
            f"the same device, or annotate the module before HeteroPlace runs on it"
        ) from err
    plan = replace(solution.plan, origin=f"{solution.plan.origin}{PLACED_AGAIN}{why}")
    solution = replace(solution, plan=plan).with_timeline(solution.timeline)
    return replace(state, mod=annotate_as(mod, compiled, solution), plan=solution)
