"""Kernels are chosen with the place: a device's twin has TVM's own."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import tvm
from relay_models import conv, cpu_cluster, module, random_inputs, stock_outputs, var
from tvm import relay

import heteroplace as hp
from heteroplace.errors import SolverError
from heteroplace.files.solution_file import solution_from_json, solution_to_json
from heteroplace.lower.executable import Executable
from heteroplace.model.cluster import Cluster
from heteroplace.model.cost import Cost, CostTable, allowed_devices, build_table
from heteroplace.model.graph import TaskGraph
from heteroplace.model.implementations import implementation_gains, twin_name
from heteroplace.relay.targets import sharing_layouts
from heteroplace.report.headline import solution_headline

pytestmark = pytest.mark.relay

ALL = twin_name("cpu.all", "tvm")
QUICK_NS, SLOW_NS = 1_000, 1_000_000


def two_math_ops() -> tvm.IRModule:
    """A sigmoid, a pool that is TVM's in any case, and an exp."""
    x = var("x", (1, 4, 16, 16))
    pooled = relay.nn.max_pool2d(relay.sigmoid(x), (2, 2), strides=(2, 2))
    return module([x], relay.exp(relay.nn.softmax(pooled)))


def planted(quick_on: Callable[[str, str], bool]) -> Callable[[TaskGraph, Cluster], CostTable]:
    """Costs by (name of a task, of a device): whether it is quick there."""

    def costs(graph: TaskGraph, cluster: Cluster) -> CostTable:
        allowed = allowed_devices(graph, cluster)

        def cost(task: int, device: int) -> Cost:
            if device not in allowed[task]:
                return Cost.excluded("by the graph")
            quick = quick_on(graph.tasks[task].name, cluster.devices[device].name)
            return Cost.given(QUICK_NS if quick else SLOW_NS)

        return build_table(graph, cluster, cost)

    return costs


def built(mod: tvm.IRModule, kernels: str, quick_on: Callable[[str, str], bool]) -> Executable:
    with tvm.transform.PassContext(opt_level=3):
        return hp.build(mod, cpu_cluster(), costs=planted(quick_on), kernels=kernels, solver="heft")


@pytest.mark.costly
def test_a_planted_slow_implementation_is_not_chosen() -> None:
    mod = two_math_ops()
    inputs = random_inputs(mod)
    outputs = {}
    for kernels in ("auto", "tvm"):
        outputs[kernels] = run(
            built(mod, kernels, lambda task, device: device == "cpu.all"), inputs
        )
    assert outputs["tvm"] == stock_outputs(mod, inputs)[0].tobytes() != outputs["auto"]

    own = built(mod, "best", lambda task, device: device == "cpu.all")
    assert run(own, inputs) == outputs["auto"]
    assert [device.name for device in own.solution.cluster.devices] == [
        device.name for device in cpu_cluster().devices
    ]  # no twin is left
    assert gains_of(own) == {}

    theirs = built(mod, "best", lambda task, device: device in (ALL, "cpu.all") and device == (
        "cpu.all" if "pool" in task else ALL))  # fmt: skip
    assert run(theirs, inputs) == outputs["tvm"]
    placed = placement(theirs)
    assert {device for task, device in placed.items() if "pool" not in task} == {ALL}
    assert {device for task, device in placed.items() if "pool" in task} == {"cpu.all"}
    gains = gains_of(theirs)
    count = sum(device == ALL for device in placed.values())
    assert gains == {ALL: (count, count * (SLOW_NS - QUICK_NS))}
    last = solution_headline(theirs.solution).splitlines()[-1]
    assert last.startswith(f"{ALL}: {count} tasks with these kernels gain ")


@pytest.mark.costly
def test_a_plan_with_both_implementations_is_kept_as_it_is(tmp_path) -> None:
    mod = two_math_ops()
    inputs = random_inputs(mod)
    mixed = built(
        mod, "best", lambda task, device: device == (ALL if "sigmoid" in task else "cpu.all")
    )
    used = mixed.solution.devices_used
    assert used == ("cpu.all", ALL)
    path = tmp_path / "model.so"
    mixed.export_library(path)
    found = run(mixed, inputs)
    (loaded,) = hp.load(path).run(**inputs)
    assert loaded.tobytes() == found
    (expected,) = stock_outputs(mod, inputs)
    np.testing.assert_allclose(loaded, expected, rtol=1e-6)
    again = solution_from_json(solution_to_json(mixed.solution))
    assert again == mixed.solution


@pytest.mark.costly
def test_convolutions_are_by_fewer_products_or_by_plain_sums_as_planned() -> None:
    x = var("x", (1, 32, 20, 22))
    mod = module([x], relay.nn.relu(conv(relay.nn.relu(conv(x, 32, 32)), 32, 32)))
    inputs, outputs = random_inputs(mod), {}
    for own in (0, 1):
        tasks = [f"conv2d.{index + 1}" for index in range(own)]
        best = built(
            mod, "best", lambda task, device, t=tasks: device == ("cpu.all" if task in t else ALL)
        )
        assert placement(best) == {
            task: "cpu.all" if task in tasks else ALL for task in ("conv2d.1", "conv2d.2")
        }
        outputs[own] = run(best, inputs)
    (expected,) = stock_outputs(mod, inputs)
    assert outputs[0] == expected.tobytes()
    assert len(set(outputs.values())) == len(outputs)
    for found in outputs.values():
        array = np.frombuffer(found, "float32").reshape(expected.shape)
        np.testing.assert_allclose(array, expected, rtol=0, atol=2e-6 * np.abs(expected).max())


def test_without_another_implementation_nothing_changes() -> None:
    x = var("x", (1, 4, 16, 16))
    mod = module([x], relay.nn.relu(relay.nn.max_pool2d(x, (2, 2), strides=(2, 2))))
    auto, best = (
        built(mod, kernels, lambda task, device: True).solution for kernels in ("auto", "best")
    )
    assert auto == best


@pytest.mark.costly
def test_measured_implementations_are_those_of_vectors() -> None:
    x = var("x", (1, 64, 64, 64))
    mod = module([x], relay.erf(relay.tanh(relay.sigmoid(x))))
    with tvm.transform.PassContext(opt_level=3):
        found = hp.build(mod, cpu_cluster(), kernels="best", store="off", time_limit=1)
    # TVM's call the C library for each element, and take several times as long.
    assert gains_of(found) == {}


def test_several_items_have_one_implementation() -> None:
    with pytest.raises(SolverError, match="kernels='best' chooses for each task of one item"):
        hp.build(two_math_ops(), cpu_cluster(), kernels="best", items=2)


def test_targets_share_layouts_but_for_the_key_of_tvm_kernels() -> None:
    texts = ["llvm -keys=tvm_kernels,cpu", "llvm", "llvm -mcpu=haswell", "cuda -arch=sm_80"]
    targets = [tvm.target.Target(text) for text in texts]
    assert sharing_layouts(targets) == [1, 1, 2, 3]
    assert sharing_layouts(targets[:1]) == [0]


def gains_of(executable: Executable) -> dict[str, tuple[int, int]]:
    solution = executable.solution
    return implementation_gains(solution.cluster, solution.costs, solution.plan)


def run(executable: Executable, inputs: dict[str, np.ndarray]) -> bytes:
    (found,) = hp.Executor(executable).run(**inputs)
    return found.tobytes()


def placement(executable: Executable) -> dict[str, str]:
    solution = executable.solution
    devices = solution.plan.placement(len(solution.graph.tasks))
    return {
        task.name: solution.cluster.devices[device].name
        for task, device in zip(solution.graph.tasks, devices, strict=True)
    }
