"""State of sessions in a task graph: it becomes a weight of the task that replaces it."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from heteroplace.errors import SolverError
from heteroplace.files.graph_file import graph_from_json, graph_to_json
from heteroplace.model.cluster import Cluster, Device, Link, Memory
from heteroplace.model.graph import TaskGraph, TaskGraphBuilder
from heteroplace.model.graphs.resident_state import with_resident_state
from heteroplace.model.op_traits.op_record import WRITE_ROWS_OP
from heteroplace.model.plan import Plan, Run
from heteroplace.model.tasks import Task
from heteroplace.model.warnings import plan_warnings
from tests.routed_plans import layer_graph

STATE_BYTES = 4 * 64


def apart(kind: str = "cuda") -> Cluster:
    """Two devices, each with a memory of its own."""
    return Cluster(
        "apart",
        (Memory("ram", 2**30), Memory("other", 2**30)),
        (Device("cpu", "cpu", "llvm", 0, 0, (0,)), Device("far", kind, "llvm", 1, 1, (1,))),
        (Link("up", 0, 1, 10**9, 0, "up"), Link("down", 1, 0, 10**9, 0, "down")),
        0,
    )


def together() -> Cluster:
    """Two devices of one memory."""
    devices = tuple(Device(f"cpu.{n}", "cpu", "llvm", 0, 0, (n,)) for n in range(2))
    return Cluster("together", (Memory("ram", 2**30),), devices, (), 0)


def cell(op: str = "add", second_reader: bool = True) -> TaskGraph:
    """hn = cell(x, h); y = out(hn); z = look(x, h): returns y, hn, z."""
    builder = TaskGraphBuilder("cell")
    h = builder.add_input("h", (64,), "float32")
    x = builder.add_input("x", (64,), "float32")
    builder.add_task(Task("cell", op, weight_bytes=10), [x, h])
    hn = builder.add_tensor("cell", (64,), "float32")
    builder.add_task(Task("out", "relu"), [hn])
    y = builder.add_tensor("out", (64,), "float32")
    builder.add_task(Task("look", "add"), [x, h] if second_reader else [x])
    z = builder.add_tensor("look", (64,), "float32")
    return builder.finalize([y, hn, z])


def pair(graph: TaskGraph) -> list[tuple[int, int]]:
    names = [tensor.name for tensor in graph.tensors]
    return [(names.index("h"), 1)]


def test_state_is_no_input_and_no_output() -> None:
    graph = cell()
    resident = with_resident_state(graph, apart(), pair(graph))
    names = [tensor.name for tensor in resident.tensors]
    assert [names[tensor] for tensor in resident.inputs] == ["x"]
    assert [names[tensor] for tensor in resident.outputs] == ["out.0", "look.0"]
    assert [task.name for task in resident.tasks] == [task.name for task in graph.tasks]
    groups = {task.name: task.together for task in resident.tasks}
    assert groups == {"cell": "state h", "look": "state h", "out": None}


@pytest.mark.parametrize("sessions", [1, 5])
def test_the_task_that_replaces_state_holds_it(sessions: int) -> None:
    graph = cell()
    resident = with_resident_state(graph, apart(), pair(graph), sessions)
    held = {task.name: task.weight_bytes for task in resident.tasks}
    assert held == {"cell": 10 + (sessions + 1) * STATE_BYTES, "look": 0, "out": 0}


def test_what_is_written_in_place_has_no_bytes_of_its_own() -> None:
    graph = cell(WRITE_ROWS_OP, second_reader=False)
    for kind, copies, num_bytes in (("cpu", 3, 0), ("cuda", 4, STATE_BYTES)):
        resident = with_resident_state(graph, apart(kind), pair(graph), 3)
        sizes = {tensor.name: tensor.bytes for tensor in resident.tensors}
        assert sizes["cell.0"] == num_bytes
        assert resident.tasks[0].weight_bytes == 10 + copies * STATE_BYTES
    groups = {task.name: task.together for task in with_resident_state(
        graph, apart("cpu"), pair(graph)).tasks}  # fmt: skip
    assert groups == {"cell": "state h", "out": "state h", "look": None}


def test_groups_are_joined() -> None:
    graph = cell()
    labels = {"look": "a", "out": "a"}
    tasks = tuple(replace(task, together=labels.get(task.name)) for task in graph.tasks)
    resident = with_resident_state(replace(graph, tasks=tasks), apart(), pair(graph))
    assert {task.together for task in resident.tasks} == {"state h"}


def test_pins_of_one_state_must_agree() -> None:
    graph = cell()
    places = {"look": ("cpu",), "cell": ("far",)}
    tasks = tuple(replace(task, devices=places.get(task.name)) for task in graph.tasks)
    with pytest.raises(SolverError, match=r"state 'h' is kept .* on far, look on cpu"):
        with_resident_state(replace(graph, tasks=tasks), apart(), pair(graph))


def test_in_one_memory_tasks_stay_free() -> None:
    graph = cell()
    assert with_resident_state(graph, together(), pair(graph)) == graph
    three = with_resident_state(graph, together(), pair(graph), 3)
    assert three.outputs == graph.outputs
    assert [task.together for task in three.tasks] == [None] * 3
    assert three.tasks[0].weight_bytes == 10 + 2 * STATE_BYTES


def test_state_that_is_handed_on_as_it_is_stays_an_input() -> None:
    graph = cell()
    h, _ = pair(graph)[0]
    handed_on = replace(graph, outputs=(*graph.outputs, h))
    assert with_resident_state(handed_on, apart(), [(h, 1)]) == handed_on
    assert with_resident_state(handed_on, apart(), [(graph.inputs[1], 3)]) == handed_on


def test_new_state_that_no_task_reads_is_not_lost() -> None:
    graph = cell()
    unread = replace(graph, outputs=graph.outputs[1:])
    cluster, names = apart(), [tensor.name for tensor in graph.tensors]
    for resident, lost in (
        (with_resident_state(unread, cluster, [(names.index("h"), 0)]), ["out.0"]),
        (replace(unread, outputs=()), ["look.0", "out.0"]),
    ):
        steps = tuple(Run(task, 0) for task in range(3))
        plan = Plan(resident.digest(), cluster.digest(), steps, "test")
        warned = " ".join(plan_warnings(resident, cluster, plan))
        assert sorted(re.findall(r"reads tensor '(.*?)'", warned)) == lost


def test_files_keep_the_graph() -> None:
    graph = cell(WRITE_ROWS_OP, second_reader=False)
    resident = with_resident_state(graph, apart("cpu"), pair(graph), 2)
    assert graph_from_json(graph_to_json(resident)).graph == resident


def test_routers_go_on_from_the_same_loads() -> None:
    graph = layer_graph()
    resident = with_resident_state(graph, apart(), [(graph.inputs[0], 0)])
    assert resident.inputs == ()
    (router,) = resident.routers
    assert resident.tensors[router.loads].name == graph.tensors[graph.routers[0].loads].name


def test_state_that_a_branch_uses_stays_an_input_and_an_output() -> None:
    graph = layer_graph()
    task = next(index for index, each in enumerate(graph.tasks) if each.branch is not None)
    inside = replace(graph, outputs=graph.task_outputs[task])
    assert with_resident_state(inside, apart(), [(graph.inputs[0], 0)]) == inside
