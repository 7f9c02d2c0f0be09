"""Guards and loads of plans: what is valid, and a mutant for each rule."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given

from heteroplace.errors import PlanError
from heteroplace.model.check import check_plan
from heteroplace.model.checks.check_guards import require_unguarded
from heteroplace.model.cluster import Cluster, Device, Link, Memory
from heteroplace.model.cost import Cost, CostTable, build_table
from heteroplace.model.graph import TaskGraph
from heteroplace.model.plan import Copy, Guard, Load, Plan, Run, Step
from heteroplace.model.text import parse_plan
from heteroplace.model.warnings import plan_warnings
from tests.routed_plans import RoutedCase, layer_graph, routed_plans
from tests.strategies import AMPLE, num_cases

# ruff: noqa: E501  (lines of mutants)
ROWS = layer_graph(capacities=((1, 2, 6), (6,)))
WHOLE = layer_graph(num_cells=1, capacities=((1,), (1,)))
ROWS_PLAN = """\
run r.route @ cpu
run r.send @ cpu
copy r.x.1 ram => gpu via up if r 1
copy r.loads ram => gpu via up
load r.1.0 ram => gpu via up if r 1
load r.0.0 gpu => ram via down
run r.0.0 @ cpu if r 0
run r.0.1 @ cpu if r 0
run r.1.0 @ gpu if r 1
run r.1.1 @ gpu if r 1
copy r.1.1.0 gpu => ram via down if r 1
run r.join @ cpu
"""
WHOLE_PLAN = """\
copy x ram => gpu via up
run r.0.0 @ cpu if r 0 predicted
load r.1.0 ram => gpu via up if r 1 predicted
run r.1.0 @ gpu if r 1 predicted
run r.route @ cpu
run r.0.0 @ cpu if r 0 missed
run r.0.1 @ cpu if r 0
copy r.loads ram => gpu via up
load r.1.0 ram => gpu via up if r 1 missed
run r.1.0 @ gpu if r 1 missed
run r.1.1 @ gpu if r 1
copy r.1.1.0 gpu => ram via down if r 1
run r.join @ cpu
"""


def cluster(capacity: int = AMPLE) -> Cluster:
    return Cluster(
        "box",
        (Memory("ram", AMPLE), Memory("gpu", capacity)),
        (Device("cpu", "cpu", "", 0, 0, (0,)), Device("gpu", "cuda", "", 0, 1)),
        (Link("up", 0, 1, 10**9, 0, "pcie"), Link("down", 1, 0, 10**9, 0, "pcie")),
        host=0,
    )


def costs(graph: TaskGraph, of: Callable[..., Cost] = lambda *_: Cost.given(3)) -> CostTable:
    return build_table(graph, cluster(), of, batches=(1, 2, 6))


def plan_of(graph: TaskGraph, text: str) -> Plan:
    box = cluster()
    head = f'plan layer on box\ndigests {graph.digest()} {box.digest()}\norigin "test"\n'
    return parse_plan(head + text, graph, box)


def faults_of(graph: TaskGraph, plan: Plan, box: Cluster | None = None) -> list[str]:
    """Faults without the names of their steps."""
    try:
        check_plan(graph, box or cluster(), costs(graph), plan)
    except PlanError as fault:
        lines = str(fault).splitlines()[1:-1]
        return [line.split(": ", 1)[1] if line.startswith("  - step") else line for line in lines]
    return []


@pytest.mark.costly
@given(routed_plans())
@num_cases(200)
def test_random_routed_plans_are_valid(case: RoutedCase) -> None:
    found = case.instance
    check_plan(found.graph, found.cluster, found.costs, case.plan)
    assert isinstance(plan_warnings(found.graph, found.cluster, case.plan), list)


def test_plans_with_guards_loads_and_predictions_are_valid() -> None:
    for graph, text in ((ROWS, ROWS_PLAN), (WHOLE, WHOLE_PLAN)):
        assert not faults_of(graph, plan_of(graph, text))


# (what is wrong, lines in place of others, fault)
ROWS_MUTANTS = [
    ("unguarded", {"run r.0.0 @ cpu if r 0": "run r.0.0 @ cpu"}, "in branch 0 of router 'r' and the step is guarded by no branch"),
    ("another branch", {"run r.0.0 @ cpu if r 0": "run r.0.0 @ cpu if r 1"}, "is in branch 0 of router 'r' and the step is guarded by branch 1"),
    ("guarded in no branch", {"run r.join @ cpu": "run r.join @ cpu if r 0"}, "is in no branch and the step is guarded by branch 0"),
    ("predicted rows", {"run r.0.0 @ cpu if r 0": "run r.0.0 @ cpu if r 0 predicted\nrun r.0.0 @ cpu if r 0 missed"}, "is predicted to take branches, not with how many cells"),
    ("predicted copy of rows", {"copy r.x.1 ram => gpu via up if r 1": "copy r.x.1 ram => gpu via up if r 1 predicted\ncopy r.x.1 ram => gpu via up if r 1 missed"}, "is predicted to take branches, not with how many cells"),
    ("twice", {"run r.0.0 @ cpu if r 0": "run r.0.0 @ cpu if r 0\nrun r.0.0 @ cpu if r 0"}, "the task has run before where it has cells"),
    ("no loads", {"copy r.loads ram => gpu via up\n": ""}, "tensor 'r.loads' is not in memory 'gpu' by then"),
    ("result copied always", {"copy r.1.1.0 gpu => ram via down if r 1": "copy r.1.1.0 gpu => ram via down"}, "tensor 'r.1.1.0' is there only where branch 1 of router 'r' has cells"),
    ("result copied for another", {"copy r.1.1.0 gpu => ram via down if r 1": "copy r.1.1.0 gpu => ram via down if r 0"}, "tensor 'r.1.1.0' is there only where branch 1 of router 'r' has cells"),
    ("input copied for another", {"copy r.x.1 ram => gpu via up if r 1": "copy r.x.1 ram => gpu via up if r 0"}, "tensor 'r.x.1' is there only where branch 0 of router 'r' has cells"),
    ("copied twice", {"copy r.x.1 ram => gpu via up if r 1": "copy r.x.1 ram => gpu via up if r 1\ncopy r.x.1 ram => gpu via up if r 1"}, "the tensor is in memory 'gpu' already"),
    ("loaded too late", {"load r.0.0 gpu => ram via down\nrun r.0.0 @ cpu if r 0": "run r.0.0 @ cpu if r 0\nload r.0.0 gpu => ram via down"}, "its weights are loaded into memory 'ram' only after it"),
    ("loaded after use", {"load r.0.0 gpu => ram via down\nrun r.0.0 @ cpu if r 0": "run r.0.0 @ cpu if r 0\nload r.0.0 gpu => ram via down"}, "task 'r.0.0' has run there before"),
    ("loaded for nobody", {"load r.0.0 gpu": "load r.0.0,r.join gpu", "run r.join @ cpu\n": "copy r.0.1.0 ram => gpu via up if r 0\nrun r.join @ gpu\ncopy r.y gpu => ram via down\n"}, "task 'r.join' does not run there"),
    ("loaded twice", {"load r.0.0 gpu => ram via down": "load r.0.0 gpu => ram via down\nload r.0.0 gpu => ram via down"}, "the weights of task 'r.0.0' are there already"),
    ("loaded for another", {"load r.1.0 ram => gpu via up if r 1": "load r.1.0 ram => gpu via up if r 0"}, "its weights are there only where branch 0 of router 'r' has cells"),
    ("loaded where predicted", {"load r.1.0 ram => gpu via up if r 1": "load r.1.0 ram => gpu via up if r 1 predicted"}, "its weights are there only where it is predicted that branch 1"),
    ("load before the loads", {"copy r.loads ram => gpu via up\nload r.1.0 ram => gpu via up if r 1": "load r.1.0 ram => gpu via up if r 1\ncopy r.loads ram => gpu via up"}, "tensor 'r.loads' is not in memory 'gpu' by then"),
    ("load of nothing", {"load r.1.0 ram": "load () ram"}, "its tasks are (); expected some"),
    ("load in no order", {"load r.0.0 gpu": "load r.0.1,r.0.0 gpu"}, "expected some, ascending"),
    ("load on no way", {"load r.1.0 ram => gpu via up": "load r.1.0 ram => gpu via down"}, "its route breaks at link 'down'"),
    ("load to itself", {"load r.1.0 ram => gpu via up": "load r.1.0 gpu => gpu via ()"}, "its route ends in memory 'gpu'"),
    ("output there sometimes", {"run r.join @ cpu\n": "copy r.0.1.0 ram => gpu via up if r 0\nrun r.join @ gpu\ncopy r.y gpu => ram via down if r 1\n"}, "output 'r.y' in the host memory 'ram': tensor 'r.y' is there only where branch 1"),
]  # fmt: skip
WHOLE_MUTANTS = [
    ("predicted alone", {"run r.0.0 @ cpu if r 0 missed\n": ""}, "task 'r.0.0' is run only where it is predicted; expected a run where it is not predicted, too"),
    ("missed alone", {"run r.0.0 @ cpu if r 0 predicted\n": ""}, "task 'r.0.0' is run only where it is not predicted; expected a run where it is predicted, too"),
    ("two devices", {"run r.0.0 @ cpu if r 0 predicted": "run r.0.0 @ gpu if r 0 predicted"}, "the task runs on cpu; where it is predicted it has run on gpu"),
    ("predicted twice", {"run r.0.0 @ cpu if r 0 missed": "run r.0.0 @ cpu if r 0 predicted\nrun r.0.0 @ cpu if r 0 missed"}, "the task has run before where it is predicted"),
    ("copied where predicted", {"copy r.1.1.0 gpu => ram via down if r 1": "copy r.1.1.0 gpu => ram via down if r 1 predicted"}, "tensor 'r.1.1.0' is there only where it is predicted that branch 1 of router 'r' has cells; expected the same where it is not predicted"),
    ("loaded where missed", {"load r.1.0 ram => gpu via up if r 1 predicted\n": ""}, "its weights are loaded into memory 'gpu' only after it"),
    ("predicted before its input", {"run r.0.0 @ cpu if r 0 missed": "run r.0.0 @ cpu if r 0 missed", "run r.0.1 @ cpu if r 0\n": "", "run r.0.0 @ cpu if r 0 predicted\n": "run r.0.1 @ cpu if r 0 predicted\nrun r.0.0 @ cpu if r 0 predicted\n"}, "tensor 'r.0.0.0' is not in memory 'ram' by then"),
]  # fmt: skip
MUTANTS = [(ROWS, ROWS_PLAN, *mutant) for mutant in ROWS_MUTANTS]
MUTANTS += [(WHOLE, WHOLE_PLAN, *mutant) for mutant in WHOLE_MUTANTS]


@pytest.mark.parametrize(
    ("graph", "text", "what", "changes", "fault"), MUTANTS, ids=[one[2] for one in MUTANTS]
)
def test_each_rule_refuses_its_mutant(
    graph: TaskGraph, text: str, what: str, changes: dict[str, str], fault: str
) -> None:
    for old, new in changes.items():
        assert text.count(old) == 1, what
        text = text.replace(old, new)
    assert any(fault in found for found in faults_of(graph, plan_of(graph, text)))


def with_step(plan: Plan, index: int, step: Step) -> Plan:
    return replace(plan, steps=(*plan.steps[:index], step, *plan.steps[index + 1 :]))


@pytest.mark.parametrize(
    ("step", "fault"),
    [
        (Run(0, 0, guard=Guard(7, 0)), "no router has id 7; ids are below 1"),
        (Run(0, 0, guard=Guard(0, 9)), "no branch has id 9; ids are below 2"),
        (Load((99,), 0, 1, (0,)), "no task has id 99"),
        (Load((0,), 0, 5, (0,)), "no memory has id 5"),
        (Load((0,), 0, 1, (8,)), "its route has link ids that do not exist: [8]"),
        (Copy(0, 0, 1, (0,), guard=Guard(0, -1)), "no branch has id -1"),
        (Run(0, 0, guard=Guard(0, 0, "later")), "it is guarded by 'later'; expected one of active"),
    ],
)
def test_ids_in_guards_and_loads_exist(step: Step, fault: str) -> None:
    plan = plan_of(ROWS, ROWS_PLAN)
    assert any(fault in found for found in faults_of(ROWS, with_step(plan, 0, step)))


def test_guarded_steps_and_loads_are_for_one_item() -> None:
    plan = replace(plan_of(ROWS, ROWS_PLAN), items=2)
    found = faults_of(ROWS, plan)
    assert sum("guarded steps and loads are for one item" in fault for fault in found) == 8


def test_a_capacity_without_a_cost_is_refused() -> None:
    def of(task: int, device: int, rows: int) -> Cost:
        is_missing = ROWS.tasks[task].name == "r.0.0" and rows == 2
        return Cost.unsupported("too few") if is_missing else Cost.given(1)

    with pytest.raises(PlanError, match=r"its cost there is unsupported .too few."):
        check_plan(ROWS, cluster(), costs(ROWS, of), plan_of(ROWS, ROWS_PLAN))


def test_weights_that_are_loaded_count_while_they_are_needed() -> None:
    plan = plan_of(ROWS, ROWS_PLAN)
    # x.1, loads, h.1 and y.1 lie in three buffers of 104 bytes; weights 6 and 6; workspace 1.
    need = 3 * 104 + 8 + 6 + 6 + 1
    small = replace(plan, cluster_digest=cluster(need).digest())
    assert not faults_of(ROWS, small, cluster(need))
    tight = cluster(need - 105)
    found = faults_of(ROWS, replace(plan, cluster_digest=tight.digest()), tight)
    assert ["memory 'gpu' needs" in fault for fault in found] == [True]


def test_who_knows_nothing_of_guards_refuses_them_by_name() -> None:
    with pytest.raises(PlanError, match=r"step 2 .* is guarded by a router, and replays"):
        require_unguarded(plan_of(ROWS, ROWS_PLAN), "replays")
    loads = replace(plan_of(ROWS, ROWS_PLAN), steps=(Load((0,), 0, 1, (0,)),))
    with pytest.raises(PlanError, match=r"step 0 .* loads weights"):
        require_unguarded(loads, "replays")
