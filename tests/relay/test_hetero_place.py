"""HeteroPlace and build: the whole line, as an ordinary Relay pass."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tvm
from relay_models import (
    cpu_cluster,
    fire_modules,
    mixed_cluster,
    random_costs,
    random_inputs,
    stock_outputs,
    two_branches,
)
from tvm import relay

import heteroplace as hp
from heteroplace.demo.networks import small_cnn
from heteroplace.errors import LoweringError, PlanError, SolverError
from heteroplace.files.costs_file import save_costs
from heteroplace.model.check import check_plan
from heteroplace.model.cluster import Cluster, Device
from heteroplace.relay.annotate.annotation_reader import read_solution

FAST = {"costs": random_costs, "solver": "heft"}


@pytest.fixture(scope="module")
def placed() -> tvm.IRModule:
    with tvm.transform.PassContext(opt_level=3):
        return relay.transform.HeteroPlace(cpu_cluster(), **FAST)(fire_modules())


def test_it_is_a_pass_beside_tvms_own(placed: tvm.IRModule) -> None:
    made = relay.transform.HeteroPlace(cpu_cluster())
    assert isinstance(made, tvm.transform.ModulePass)
    assert made.info.name == "HeteroPlace"
    solution = read_solution(placed)
    check_plan(solution.graph, solution.cluster, solution.costs, solution.plan)
    assert 0 < solution.bound_ns <= solution.predicted_ns


@pytest.mark.costly
def test_it_runs_in_a_sequence_of_passes() -> None:
    with tvm.transform.PassContext(opt_level=3):
        sequence = tvm.transform.Sequential(
            [
                relay.transform.SimplifyInference(),
                relay.transform.HeteroPlace(cpu_cluster(), kernels="tvm", **FAST),
                relay.transform.InferType(),
            ]
        )
        executable = hp.build(sequence(two_branches()))
    inputs = random_inputs(two_branches())
    (actual,) = hp.Executor(executable).run(**inputs)
    np.testing.assert_array_equal(actual, stock_outputs(two_branches(), inputs)[0])


def test_on_its_own_output_it_changes_nothing(placed: tvm.IRModule) -> None:
    with tvm.transform.PassContext(opt_level=3):
        for options in (FAST, {}):
            again = relay.transform.HeteroPlace(cpu_cluster(), **options)(placed)
            tvm.ir.assert_structural_equal(again, placed)
            assert again.astext() == placed.astext()


def test_other_options_on_a_placed_module_are_refused(placed: tvm.IRModule) -> None:
    """They would change nothing."""
    options = FAST | {"solver": "single", "pin": {"nn.conv2d": "cpu.0"}}
    with pytest.raises(PlanError, match="placed already, and not by this pin, solver; to place"):
        relay.transform.HeteroPlace(cpu_cluster(), **options)(placed)


def test_equal_options_give_equal_modules(placed: tvm.IRModule) -> None:
    with tvm.transform.PassContext(opt_level=3):
        again = relay.transform.HeteroPlace(cpu_cluster(), **FAST)(fire_modules())
    tvm.ir.assert_structural_equal(again, placed)


def test_another_cluster_is_refused(placed: tvm.IRModule) -> None:
    with pytest.raises(PlanError, match="placed on cluster 'cpu' already; to place it on 'mixed'"):
        relay.transform.HeteroPlace(mixed_cluster(), **FAST)(placed)
    with pytest.raises(PlanError, match="placed on cluster 'cpu' already"):
        hp.build(placed, mixed_cluster())


@pytest.mark.costly
def test_measured_placed_built_exported_loaded_run(tmp_path: Path) -> None:
    mod, params, shapes = small_cnn()
    inputs = {name: np.ones(shape, "float32") for name, shape in shapes.items()}
    lines: list[str] = []
    with tvm.transform.PassContext(opt_level=3):
        executable = hp.build(mod, cpu_cluster(), params, time_limit=1.0, progress=lines.append)
    executable.export_library(tmp_path / "model.so")
    executor = hp.load(tmp_path / "model.so")
    bound = relay.build_module.bind_params_by_name(mod["main"], params)
    expected = stock_outputs(tvm.IRModule.from_expr(bound), inputs)
    first = executor.run(**inputs)[0]
    np.testing.assert_allclose(first, expected[0], rtol=1e-5, atol=1e-6)
    for _ in range(10):
        np.testing.assert_array_equal(executor.run(**inputs)[0], first)
    begun = [line.split()[0] for line in lines if ": " not in line]
    # Of a plan on several devices, also how they disturb each other.
    assert set(begun[5:]) <= {"Measuring"}
    assert begun[:5] == ["Optimising", "Compiling", "Compiling", "Measuring", "Placing"]
    done = [line.partition(":")[0] for line in lines if ": " in line]
    # A plan on several devices adds its interference, a busy machine a line on other programs.
    done = [name for name in done if name != "interference" and "other programs" not in name]
    assert done == ["prepare", "compile", "cost", "solve"]
    assert lines[1].startswith(f"prepare: tasks {len(executor.solution.graph.tasks)}; ")
    solution = executor.solution
    assert solution.bound_ns <= solution.predicted_ns
    # By costs alone another device may be faster: how long runs last is measured a second time.
    assert solution.expected_ns <= min(ns for _, ns in solution.predicted_singles)


def test_a_task_is_pinned_by_name_or_op() -> None:
    pin = {"conv2d.*": "cpu.1", "nn.softmax": "cpu.all"}
    with tvm.transform.PassContext(opt_level=3):
        mod = relay.transform.HeteroPlace(cpu_cluster(), pin=pin, **FAST)(two_branches())
    solution = read_solution(mod)
    devices = solution.plan.placement(len(solution.graph.tasks))
    names = {
        task.name: solution.cluster.devices[device].name
        for task, device in zip(solution.graph.tasks, devices, strict=True)
    }
    assert names["conv2d.1"] == names["conv2d.2"] == "cpu.1"
    assert names["softmax.1"] == "cpu.all"


def test_an_excluded_device_is_not_used() -> None:
    with tvm.transform.PassContext(opt_level=3):
        mod = relay.transform.HeteroPlace(cpu_cluster(), exclude=["cpu.0", "cpu.all"], **FAST)(
            two_branches()
        )
    assert read_solution(mod).devices_used == ("cpu.1",)


@pytest.mark.costly
def test_an_excluded_gpu_need_not_be_here() -> None:
    with tvm.transform.PassContext(opt_level=3):
        executable = hp.build(
            two_branches(), mixed_cluster(), exclude=["gpu0"], kernels="tvm", time_limit=1.0
        )
    inputs = random_inputs(two_branches())
    (actual,) = hp.Executor(executable).run(**inputs)
    np.testing.assert_array_equal(actual, stock_outputs(two_branches(), inputs)[0])


@pytest.mark.costly
def test_costs_from_a_table_a_file_and_a_function_give_one_placement(
    placed: tvm.IRModule, tmp_path: Path
) -> None:
    solution = read_solution(placed)
    save_costs(solution.costs, solution.graph, solution.cluster, tmp_path / "costs.json")
    for costs in (solution.costs, tmp_path / "costs.json", str(tmp_path / "costs.json")):
        with tvm.transform.PassContext(opt_level=3):
            made = relay.transform.HeteroPlace(cpu_cluster(), costs=costs, solver="heft")
            found = read_solution(made(fire_modules()))
        assert found.plan.steps == solution.plan.steps


def known_cluster() -> Cluster:
    """The cores of this machine, as if each computed a flop per ns."""
    base = cpu_cluster()
    devices = tuple(
        Device(d.name, "cpu", d.target, 0, 0, d.cores, "", 10**9 * len(d.cores), 10**10)
        for d in base.devices
    )
    return Cluster("known", base.memories, devices, (), 0)


def test_costs_are_estimated_from_peak_speeds() -> None:
    cluster = known_cluster()
    with tvm.transform.PassContext(opt_level=3):
        made = relay.transform.HeteroPlace(cluster, costs="estimate", time_limit=1.0)
        solution = read_solution(made(two_branches()))
    sources = {cost.source for row in solution.costs.rows for cost in row}
    assert sources == {"roofline"}
    first = solution.graph.tasks[0]
    assert solution.costs.rows[0][0].ns == first.flops  # 1 flop per ns, and compute-bound


def test_a_least_gain_of_costs_that_nobody_measured_is_refused() -> None:
    def asked(ratio: float) -> hp.HeteroPlace:
        limits = {"time_limit": 1.0, "min_gain_ratio": ratio}
        return relay.transform.HeteroPlace(known_cluster(), costs="estimate", **limits)

    with tvm.transform.PassContext(opt_level=3):
        with pytest.raises(SolverError, match=r"none of these is measured \(they are roofline\)"):
            asked(0.1)(two_branches())
        assert read_solution(asked(0.0)(two_branches())).graph.tasks


def test_building_an_unplaced_module_needs_a_cluster() -> None:
    with pytest.raises(LoweringError, match="not placed; give build"):
        hp.build(two_branches())


def test_a_module_changed_after_the_pass_is_refused(placed: tvm.IRModule) -> None:
    fused = relay.transform.FuseOps()(placed)
    with pytest.raises(LoweringError, match=r"belongs to no task.*run HeteroPlace as the last"):
        hp.build(fused)


def test_weights_that_come_after_the_pass_are_refused() -> None:
    mod, params, _ = small_cnn()
    with tvm.transform.PassContext(opt_level=3):
        unbound = relay.transform.HeteroPlace(cpu_cluster(), **FAST)(mod)
    with pytest.raises(LoweringError, match="pass params= to HeteroPlace, or bind them before"):
        hp.build(unbound, params=params)
    with tvm.transform.PassContext(opt_level=3):
        bound = relay.transform.HeteroPlace(cpu_cluster(), params=params, **FAST)(mod)
    for given in ((), (cpu_cluster(),)):
        with pytest.raises(LoweringError, match="has its weights since it was placed"):
            hp.build(bound, *given, params=params)


@pytest.mark.costly
def test_unbound_weights_are_inputs() -> None:
    mod, params, shapes = small_cnn()
    with tvm.transform.PassContext(opt_level=3):
        executor = hp.Executor(hp.build(mod, cpu_cluster(), **FAST))
    assert {name for name, _, _ in executor.inputs} == {*shapes, *params}
    inputs = {name: np.ones(shape, "float32") for name, shape in shapes.items()}
    (actual,) = executor.run(**inputs, **params)
    bound = relay.build_module.bind_params_by_name(mod["main"], params)
    (expected,) = stock_outputs(tvm.IRModule.from_expr(bound), inputs)
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-5)
