"""What a user can get wrong in the pass is a typed error that says what to do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import tvm
from relay_models import TARGET, cpu_cluster, mixed_cluster, random_costs, two_branches
from tvm import relay

import heteroplace
from heteroplace.errors import (
    ClusterError,
    CostMismatchError,
    HeteroPlaceError,
    InfeasibleError,
    MissingCostError,
    PlanError,
    SolverError,
    UnsupportedRelayError,
)
from heteroplace.model.cluster import Cluster, Device, Memory
from heteroplace.model.cost import Cost, build_table
from heteroplace.model.graph import TaskGraphBuilder


def place(cluster: object, **options: object) -> tvm.IRModule:
    with tvm.transform.PassContext(opt_level=3):
        return relay.transform.HeteroPlace(cluster, **({"costs": random_costs} | options))(
            two_branches()
        )


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"pin": {"conv9*": "cpu.0"}}, SolverError, "no task matches conv9.*called like: conv2d.1"),
        ({"pin": {"*": "gpu7"}}, ClusterError, "no device 'gpu7'; it has: cpu.0"),
        ({"exclude": ["gpu7"]}, ClusterError, "no device 'gpu7'"),
        ({"exclude": "cpu.0"}, SolverError, r"exclude is 'cpu.0'; expected \['cpu.0'\]"),
        ({"exclude": ["cpu.0", "cpu.1", "cpu.all"]}, SolverError, "every device is excluded"),
        (
            {"pin": {"*": "cpu.0"}, "exclude": ["cpu.0"]},
            SolverError,
            r"pin: '\*' goes to 'cpu.0', which is excluded",
        ),
        ({"solver": "magic"}, SolverError, "no solver is called 'magic'; there are: auto"),
        ({"objective": "beauty"}, SolverError, "objective 'beauty' is not offered"),
        ({"time_limit": 0}, SolverError, "time_limit_s must be > 0"),
        ({"seed": -1}, SolverError, "seed must be in"),
        (
            {"sovler": "heft"},
            SolverError,
            "no option sovler; did you mean .solver.. It has: solver, effort, costs",
        ),
        (
            {"costs": 3},
            SolverError,
            r"costs is 3; expected a CostTable .*\(measure\|.*FILE\)",
        ),
        ({"threads": "2"}, SolverError, "HeteroPlace: threads is '2'; expected a whole number"),
        ({"pin": 1.5}, SolverError, "pin is 1.5; expected a dict, each value a text"),
        (
            {"costs": lambda graph, cluster: None},
            SolverError,
            "must return a CostTable; it returned None",
        ),
        ({"costs": "/none/costs.json"}, HeteroPlaceError, "cannot be read: No such file"),
    ],
)
def test_a_wrong_option(options: dict, error: type, message: str) -> None:
    with pytest.raises(error, match=message):
        place(cpu_cluster(), **options)


def test_wrong_options_are_told_before_anything_is_measured() -> None:
    lines: list[str] = []
    with pytest.raises(SolverError):
        place(cpu_cluster(), costs="measure", time_limit=-1, progress=lines.append)
    assert lines == []


@pytest.mark.parametrize(
    ("cluster", "message"),
    [
        ("no-such-cluster", "no-such-cluster"),
        ("/none/cluster.json", "cannot be read|no cluster"),
    ],
)
def test_a_cluster_that_is_not_there(cluster: str, message: str) -> None:
    with pytest.raises(ClusterError, match=message):
        place(cluster)


def test_costs_of_another_graph() -> None:
    builder = TaskGraphBuilder("other")
    graph = builder.finalize([builder.add_input("x", (1,), "float32")])
    table = build_table(graph, cpu_cluster(), lambda task, device: Cost.given(1))
    with pytest.raises(CostMismatchError, match="knows none of the tasks of graph"):
        place(cpu_cluster(), costs=table)


def test_an_unknown_cost_is_not_taken_for_zero() -> None:
    def unknown(graph, cluster):
        return build_table(graph, cluster, lambda task, device: Cost.unknown())

    with pytest.raises(MissingCostError):
        place(cpu_cluster(), costs=unknown)


def test_a_task_that_no_device_can_run() -> None:
    def unsupported(graph, cluster):
        return build_table(graph, cluster, lambda task, device: Cost.unsupported("no kernel"))

    with pytest.raises(InfeasibleError, match=r"conv2d\.1"):
        place(cpu_cluster(), costs=unsupported)


@pytest.mark.parametrize("solver", ["auto", "single", "heft", "search", "cpsat"])
def test_too_little_memory_for_any_placement(solver: str) -> None:
    with pytest.raises(InfeasibleError, match="1000 B"):
        place(cpu_cluster(1000), solver=solver, time_limit=1.0)


def test_a_device_without_a_link() -> None:
    cluster = replace(mixed_cluster(), links=())
    with pytest.raises(ClusterError, match="no links lead from the host memory to device 'gpu0'"):
        place(cluster, time_limit=1.0)


def test_a_cluster_without_a_host_memory() -> None:
    with pytest.raises(ClusterError, match=r"names no host memory.*add"):
        place(replace(cpu_cluster(), host=None), time_limit=1.0)


def test_a_host_memory_without_a_device() -> None:
    cluster = replace(mixed_cluster(), devices=mixed_cluster().devices[1:])
    with pytest.raises(PlanError, match="no device in a host memory"):
        place(cluster, time_limit=1.0)


def test_a_kind_of_device_that_cannot_be_compiled_for() -> None:
    devices = (*cpu_cluster().devices, Device("npu0", "npu", "npu", 0, 0))
    cluster = Cluster("npu", (Memory("ram", 2**33),), devices, (), 0)
    with pytest.raises(PlanError, match=r"device 'npu0' .* is of kind 'npu'"):
        place(cluster, time_limit=1.0)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (
            lambda x: relay.nn.avg_pool2d(relay.reshape(x, (1, 1, 2, 4)), (7, 7)),
            r"nn.avg_pool2d: a value has the shape \(1, 1, -4, -2\)",
        ),
        (
            lambda x: relay.add(x, relay.sum(relay.zeros((2**62,), "float32"))),
            r"zeros: a value has 4611686018427387904 elements",
        ),
        (
            lambda x: relay.add(x, relay.gather(relay.const([[1.0]]), 1, relay.const([[5]]))),
            r"gather has the constant index 5, outside of its data of the shape \(1, 1\)",
        ),
    ],
)
def test_a_module_with_a_value_that_cannot_be(value: Callable, message: str) -> None:
    x = relay.var("x", shape=(1, 8))
    mod = tvm.IRModule.from_expr(relay.Function([x], value(x)))
    with pytest.raises(UnsupportedRelayError, match=f"Relay module 'model' .*{message}"):
        heteroplace.build(mod, cpu_cluster())


def test_a_module_without_main() -> None:
    with pytest.raises(UnsupportedRelayError, match="no function 'main'"):
        relay.transform.HeteroPlace(cpu_cluster())(tvm.IRModule())


def test_a_target_that_tvm_does_not_know() -> None:
    device = Device("c", "cpu", f"{TARGET} -nonsense=1", 0, 0, (0,))
    cluster = Cluster("odd", (Memory("ram", 2**33),), (device,), (), 0)
    with pytest.raises(HeteroPlaceError, match="does not accept its target"):
        place(cluster, costs="measure")
