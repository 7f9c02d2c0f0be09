"""Predicted memory against what executors really hold: never below, and within 5 %."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tvm
from relay_models import (
    TARGET,
    cores,
    cpu_cluster,
    extraction_of,
    fire_modules,
    random_devices,
    random_inputs,
    shared_network,
    solution_of,
    two_branches,
    written,
)

from heteroplace.demo.networks import small_cnn
from heteroplace.errors import InfeasibleError
from heteroplace.hetero_place import build
from heteroplace.loading import load
from heteroplace.lower.executable import Executable
from heteroplace.lower.kernels import KernelCalls
from heteroplace.lower.lower import lower
from heteroplace.lower.program import in_pages
from heteroplace.lower.segment_calls import lower_segments
from heteroplace.lower.segments import cut_segments
from heteroplace.measure.profile import with_workspaces
from heteroplace.model.cluster import Cluster, Device, Link, Memory
from heteroplace.model.memory_use.memory import MemoryUse
from heteroplace.model.solution import Solution
from heteroplace.native.execute import Executor as NativeExecutor
from heteroplace.relay.annotate.writer import annotate
from heteroplace.relay.targets import cluster_targets
from heteroplace.relay.tasks.extract import Extraction, neutral_module
from heteroplace.report.tables import memory_text
from heteroplace.run.executor import Executor
from heteroplace.simulate.simulator import simulate
from heteroplace.tvm_bridge import library_path
from zoo.models.catalogue import load_model

MAX_ERROR = 0.05

needs_two_cores = pytest.mark.skipif(len(cores()) < 2, reason="two devices need two cores")


def one_memory_each() -> Cluster:
    """Two cores, each with a memory of its own: values are copied."""
    devices = tuple(
        Device(f"cpu.{n}", "cpu", TARGET, 0, n, (core,)) for n, core in enumerate(cores())
    )
    memories = tuple(Memory(f"ram{n}", 2**33) for n in range(len(devices)))
    links = (Link("up", 0, 1, 10**10, 100, "up"), Link("down", 1, 0, 10**10, 100, "down"))
    return Cluster("numa", memories, devices, links[: 2 * (len(devices) - 1)], 0)


def bound_module(name: str) -> tvm.IRModule:
    """A network of the benchmarks with its weights in it."""
    model = load_model(name)
    main = tvm.relay.build_module.bind_params_by_name(model.mod["main"], dict(model.params))
    return tvm.IRModule.from_expr(main)


def small_network() -> tvm.IRModule:
    network = small_cnn(channels=16, size=64)
    main = tvm.relay.build_module.bind_params_by_name(network.mod["main"], dict(network.params))
    return tvm.IRModule.from_expr(main)


def built(extraction: Extraction, solution: Solution) -> Executable:
    with tvm.transform.PassContext(opt_level=3):
        return build(annotate(extraction, solution))


def fill(executor: Executor) -> None:
    random = np.random.default_rng(0)
    for name, shape, dtype in executor.inputs:
        executor.set_input(name, random.standard_normal(shape).astype(dtype))


def check_prediction(executable: Executable) -> None:
    """Run, and compare each memory in all its parts."""
    cluster = executable.solution.cluster
    executor = Executor(executable)
    fill(executor)
    # A core that came too late to help with any chunk has needed nothing, which is luck.
    queues = executable.lowered.program.queues
    unsure_bytes = sum(in_pages(q.workspace_bytes) for q in queues if len(queues) > 1)
    for _ in range(2):
        executor.benchmark(2)
        measured = executor.memory()
        for memory, use in zip(cluster.memories, executable.memory, strict=True):
            if memory.name not in measured:
                assert use.total_bytes == 0
                continue
            real = measured[memory.name]
            assert real.weights_bytes <= use.weights_bytes
            assert real.values_bytes <= use.values_bytes
            assert real.workspace_bytes <= use.workspace_bytes
            assert use.total_bytes <= real.total_bytes * (1 + MAX_ERROR) + unsure_bytes


@pytest.mark.costly(6)
@pytest.mark.parametrize(
    ("make", "make_cluster"),
    [
        (two_branches, cpu_cluster),
        (fire_modules, one_memory_each),
        (small_network, one_memory_each),
        pytest.param(two_branches, one_memory_each, marks=pytest.mark.slow),
        pytest.param(fire_modules, cpu_cluster, marks=pytest.mark.slow),
        pytest.param(small_network, cpu_cluster, marks=pytest.mark.slow),
    ],
)
@needs_two_cores
def test_predicted_memory_is_what_an_executor_holds(make, make_cluster) -> None:
    extraction, cluster = extraction_of(make()), make_cluster()
    num_tasks = len(extraction.graph.tasks)
    plans = [[0] * num_tasks, [len(cluster.devices) - 1] * num_tasks]
    plans.append(random_devices(extraction, cluster, seed=0))
    for devices in plans:
        check_prediction(written(make(), solution_of(extraction, cluster, devices)))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["squeezenet", "resnet50", "inception_v2", "randomly_wired"])
@needs_two_cores
def test_predicted_memory_of_large_networks(name: str) -> None:
    extraction, cluster = extraction_of(bound_module(name)), cpu_cluster()
    num_tasks = len(extraction.graph.tasks)
    plans = [[index] * num_tasks for index in range(len(cluster.devices))]
    plans += [random_devices(extraction, cluster, seed) for seed in range(5)]
    for devices in plans:
        check_prediction(built(extraction, solution_of(extraction, cluster, devices)))


@pytest.mark.costly(5)
@needs_two_cores
def test_scratch_memory_is_measured_also_where_the_program_says_nothing_of_it() -> None:
    """Pools that were not reserved grow as the kernels ask, of a team's helper too."""
    extraction, cluster = extraction_of(small_network()), cpu_cluster()
    every_core = len(cluster.devices) - 1
    solution = solution_of(extraction, cluster, [every_core] * len(extraction.graph.tasks))
    executable = written(small_network(), solution)
    program = executable.lowered.program
    assert len([queue for queue in program.queues if queue.workspace_bytes]) == 2
    silent = [line for line in program.to_text().splitlines() if not line.startswith("workspace ")]
    code = executable.library.sealed()
    executor = NativeExecutor(
        str(library_path()),
        code.path,
        "\n".join([*silent, ""]),
        blob=executable.blob,
    )
    for port in executor.inputs:
        executor.set_input(port.name, np.ones(port.shape, port.dtype))
    assert executor.memory_bytes()["ram"].workspace_bytes == 0
    executor.benchmark(20)
    (use,) = executable.memory
    measured = executor.memory_bytes()["ram"].workspace_bytes
    # A helper that never came in time for a chunk has needed nothing.
    assert program.queues[0].workspace_bytes <= measured <= use.workspace_bytes


@pytest.mark.costly(6)
def test_loading_a_file_again_leaves_the_scratch_memory_of_a_run_alone(tmp_path: Path) -> None:
    """TVM's loading would point running kernels to its own pools, which know nothing of ours."""
    extraction, cluster = extraction_of(small_network()), cpu_cluster()
    solution = solution_of(extraction, cluster, [0] * len(extraction.graph.tasks))
    written(small_network(), solution).export_library(tmp_path / "model.so")
    running = load(tmp_path / "model.so")
    fill(running)
    running.benchmark(1)
    expected = running.get_output(0)
    thread = threading.Thread(target=running.benchmark, args=(300,))
    thread.start()
    num_loads = 0
    while thread.is_alive() or num_loads < 5:
        other = load(tmp_path / "model.so")
        assert other.predicted_memory == running.predicted_memory
        num_loads += 1
    thread.join()
    np.testing.assert_array_equal(running.get_output(0), expected)
    (use,) = running.predicted_memory
    assert running.memory()["ram"].workspace_bytes == use.workspace_bytes


def calls_of(extraction: Extraction, cluster: Cluster) -> KernelCalls:
    """Kernel calls for the one target of a cluster, not compiled."""
    neutral = neutral_module(extraction)
    target_of_task = {task.name: 0 for task in extraction.graph.tasks}
    with tvm.transform.PassContext(opt_level=3):
        segments, outputs = cut_segments(neutral, cluster_targets(cluster)[0], target_of_task)
        return lower_segments(segments, neutral["main"].params, outputs)


def prediction(calls: KernelCalls, solution: Solution, cluster: Cluster | None = None) -> MemoryUse:
    graph, costs, plan = solution.graph, solution.costs, solution.plan
    timeline = simulate(graph, solution.cluster, costs, plan)
    (use,) = lower(calls, graph, cluster or solution.cluster, plan, timeline).memory
    return use


@pytest.mark.costly
def test_prediction_needs_no_machine_code() -> None:
    extraction, cluster = extraction_of(fire_modules()), cpu_cluster()
    solution = solution_of(extraction, cluster, random_devices(extraction, cluster, 0))
    use = prediction(calls_of(extraction, cluster), solution)
    assert (use,) == built(extraction, solution).memory


@pytest.mark.costly
@pytest.mark.parametrize("make", [two_branches, fire_modules, small_network])
def test_simulated_live_peak_is_hardly_above_the_predicted_memory(make) -> None:
    extraction, cluster = extraction_of(make()), cpu_cluster()
    with tvm.transform.PassContext(opt_level=3):
        graph = with_workspaces(shared_network(make()), cluster).graph
        calls = shared_network(make()).calls(cluster, [0] * len(graph.tasks))
    extraction = replace(extraction, graph=graph)
    for seed in range(3):
        devices = random_devices(extraction, cluster, seed)
        solution = solution_of(extraction, cluster, devices)
        timeline = simulate(graph, cluster, solution.costs, solution.plan)
        # The peak is of tensors between tasks, kept until their readers are done in time.
        assert timeline.peak_bytes[0] <= 1.1 * prediction(calls, solution).total_bytes


def test_a_memory_without_room_for_workspace_is_refused() -> None:
    extraction, cluster = extraction_of(small_network()), cpu_cluster()
    placement = [0] * len(extraction.graph.tasks)
    solution = solution_of(extraction, cluster, placement)
    with tvm.transform.PassContext(opt_level=3):
        calls = shared_network(small_network()).calls(cluster, placement)
    use = prediction(calls, solution)
    assert prediction(calls, solution, cpu_cluster(use.total_bytes)) == use
    with pytest.raises(InfeasibleError, match="weights, live values and workspace"):
        prediction(calls, solution, cpu_cluster(use.total_bytes - use.workspace_bytes))


@pytest.mark.costly
def test_the_file_keeps_the_prediction_and_reports_tell_it(tmp_path: Path) -> None:
    mod = two_branches()
    extraction, cluster = extraction_of(mod), cpu_cluster()
    solution = solution_of(extraction, cluster, [0] * len(extraction.graph.tasks))
    executable = built(extraction, solution)
    executable.export_library(tmp_path / "model.so")
    executor = load(tmp_path / "model.so")
    assert executor.predicted_memory == executable.memory
    executor.run(**random_inputs(mod))
    text = memory_text(cluster, executor.predicted_memory, executor.memory())
    assert text.startswith("memory ram: predicted ")
    assert ", measured " in text
    assert memory_text(cluster, executable.memory) in executable.summary()
