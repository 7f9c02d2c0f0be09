"""Executor: random plans over cores give the numbers of stock TVM, every time."""

from __future__ import annotations

import itertools
import threading
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import tvm
from relay_models import (
    STOCK_TARGET,
    TARGET,
    cores,
    cpu_cluster,
    extraction_of,
    fire_modules,
    mixed_cluster,
    module,
    placed_randomly,
    random_inputs,
    solution_of,
    stock_cluster,
    stock_outputs,
    two_branches,
    var,
    written,
    written_randomly,
)
from tvm import relay

import heteroplace as hp
from heteroplace.errors import ExecutionError
from heteroplace.hetero_place import build
from heteroplace.lower.executable import Executable
from heteroplace.model.cluster import Cluster, Device, Link, Memory
from heteroplace.model.plan import Copy, Run
from heteroplace.model.timeline import Span
from heteroplace.relay.targets import with_stock_kernels
from heteroplace.run.measured_timeline import measured_timeline


def build_randomly(mod: tvm.IRModule, seed: int, cluster: Cluster | None = None) -> Executable:
    with tvm.transform.PassContext(opt_level=3):
        return build(placed_randomly(mod, cluster or stock_cluster(), seed))


@cache
def fire_executable(seed: int) -> Executable:
    """Fire modules on the cores, as the seed says: built once."""
    return build_randomly(fire_modules(), seed)


@pytest.fixture(scope="module")
def executable() -> Executable:
    return fire_executable(1)


@pytest.fixture(scope="module")
def inputs() -> dict[str, np.ndarray]:
    return random_inputs(fire_modules())


@pytest.fixture(scope="module")
def expected(inputs: dict[str, np.ndarray]) -> np.ndarray:
    return stock_outputs(fire_modules(), inputs)[0]


@pytest.mark.costly(6)
@pytest.mark.parametrize(
    "seed", [*range(3), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(3, 8))]
)
def test_random_placements_equal_stock_tvm_to_the_bit(seed: int, inputs, expected) -> None:
    executor = hp.Executor(fire_executable(seed))
    for _ in range(50):
        np.testing.assert_array_equal(executor.run(**inputs)[0], expected)


@pytest.mark.parametrize("max_in_flight", [1, 3])
def test_callers_at_once_get_their_own_answers(
    executable: Executable, inputs, max_in_flight: int
) -> None:
    executor = hp.Executor(executable, max_in_flight=max_in_flight)
    questions = [{name: array * (i + 1) for name, array in inputs.items()} for i in range(3)]
    answers = [executor.run(**question)[0] for question in questions]
    assert not np.array_equal(answers[0], answers[1])
    wrong: list[int] = []

    def ask(caller: int) -> None:
        for run in range(50):
            index = (caller + run) % 3
            if not np.array_equal(executor.run(**questions[index])[0], answers[index]):
                wrong.append(index)

    threads = [threading.Thread(target=ask, args=(caller,)) for caller in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.costly
def test_two_targets_equal_stock_tvm_closely(inputs, expected) -> None:
    devices = (
        Device("fast", "cpu", TARGET, 0, 0, cores()[:1]),
        Device("plain", "cpu", "llvm", 0, 0, cores()[-1:]),
    )
    cluster = Cluster("two targets", (Memory("ram", 2**33),), devices, (), 0)
    executor = hp.Executor(build_randomly(fire_modules(), 1, cluster))
    np.testing.assert_allclose(executor.run(**inputs)[0], expected, rtol=1e-5)


@pytest.mark.costly
def test_two_memories_of_one_machine(inputs, expected) -> None:
    devices = tuple(
        Device(f"n{n}", "cpu", STOCK_TARGET, 0, n, cores()[n : n + 1]) for n in range(len(cores()))
    )
    if len(devices) < 2:
        pytest.skip("one core")
    links = (Link("up", 0, 1, 10**10, 100, "up"), Link("down", 1, 0, 10**10, 100, "down"))
    memories = (Memory("ram0", 2**32), Memory("ram1", 2**32))
    executable = written_randomly(fire_modules(), Cluster("numa", memories, devices, links, 0), 1)
    assert {queue.kind for queue in executable.lowered.program.queues} == {"cpu", "copy"}
    executor = hp.Executor(executable)
    for _ in range(20):
        np.testing.assert_array_equal(executor.run(**inputs)[0], expected)


def test_memory_and_file_agree(executable: Executable, inputs, tmp_path: Path) -> None:
    executable.export_library(tmp_path / "model.so")
    from_file, from_memory = hp.load(tmp_path / "model.so"), hp.Executor(executable)
    np.testing.assert_array_equal(from_file.run(**inputs)[0], from_memory.run(**inputs)[0])
    assert from_file.solution == from_memory.solution
    assert from_file.inputs == from_memory.inputs
    assert from_file.outputs == from_memory.outputs


@pytest.mark.costly(4)
def test_an_input_stays_until_it_is_set_again(executable: Executable, inputs, expected) -> None:
    executor = hp.Executor(executable)
    (name,) = inputs
    executor.run(**{name: np.zeros_like(inputs[name])})
    executor.set_input(name, tvm.nd.array(inputs[name]))
    np.testing.assert_array_equal(executor.run()[0], expected)
    np.testing.assert_array_equal(executor.run()[0], expected)


@pytest.mark.parametrize(
    "make", [np.asfortranarray, lambda a: a[::1, ::-1][:, ::-1], np.ndarray.tolist]
)
def test_arrays_of_any_order_are_taken(executable: Executable, inputs, expected, make) -> None:
    (name,) = inputs
    array = make(inputs[name])
    if isinstance(array, list):
        array = np.array(array, "float32")
    np.testing.assert_array_equal(hp.Executor(executable).run(**{name: array})[0], expected)


def test_an_output_is_a_copy(executable: Executable, inputs, expected) -> None:
    executor = hp.Executor(executable)
    (first,) = executor.run(**inputs)
    executor.run(**{name: np.zeros_like(array) for name, array in inputs.items()})
    np.testing.assert_array_equal(first, expected)


@pytest.mark.costly
def test_results_in_all_forms() -> None:
    x, y = var("self"), var("in:0")
    parts = relay.split(relay.nn.softmax(x), 2, axis=1)
    flat = relay.reshape(relay.nn.softmax(y), (-1,))
    mod = module([x, y], relay.Tuple([parts[1], y, flat, parts[1]]))
    inputs = random_inputs(mod)
    expected = stock_outputs(mod, inputs)
    for seed in range(2):
        executor = hp.Executor(build_randomly(mod, seed))
        assert [name for name, _, _ in executor.inputs] == ["self", "in:0"]
        for one, other in zip(executor.run(**inputs), expected, strict=True):
            np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int64", "float16", "float64", "bool"])
def test_types_of_elements(dtype: str) -> None:
    x = var("x", (3, 5), dtype)
    body = relay.logical_not(x) if dtype == "bool" else relay.maximum(x, relay.add(x, x))
    executor = hp.Executor(build_randomly(module([x], body), 0))
    array = np.arange(15).reshape(3, 5).astype(dtype)
    (output,) = executor.run(x=array)
    assert output.dtype == dtype
    np.testing.assert_array_equal(output, ~array if dtype == "bool" else array + array)


def test_bfloat16_is_exchanged_as_bits() -> None:
    x = var("x", (3,), "bfloat16")
    executor = hp.Executor(build_randomly(module([x], relay.add(x, x)), 0))
    (output,) = executor.run(x=np.array([0x3F80, 0x4000, 0], "uint16"))  # 1, 2, 0
    assert output.tolist() == [0x4000, 0x4080, 0]  # 2, 4, 0


def test_a_scalar_and_no_elements() -> None:
    x, y = var("x", ()), var("y", (0, 3))
    executor = hp.Executor(
        build_randomly(module([x, y], relay.Tuple([relay.exp(x), relay.exp(y)])), 0)
    )
    one, none = executor.run(x=np.float32(0), y=np.zeros((0, 3), "float32"))
    assert (one.shape, float(one), none.shape) == ((), 1.0, (0, 3))


def test_an_unused_input_can_be_set() -> None:
    x, y = var("x", (4,)), var("y", (2, 2), "int32")
    executor = hp.Executor(build_randomly(module([y, x], relay.exp(x)), 0))
    executor.run(x=np.zeros(4, "float32"), y=np.zeros((2, 2), "int32"))
    np.testing.assert_array_equal(executor.get_output(0), np.ones(4))


def test_two_executors_of_one_executable_are_independent(executable: Executable, inputs) -> None:
    one, other = hp.Executor(executable), hp.Executor(executable)
    (name,) = inputs
    other.set_input(name, np.zeros_like(inputs[name]))
    before = one.run(**inputs)[0]
    other.run()
    np.testing.assert_array_equal(one.get_output(0), before)


def kernel_steps(executable: Executable) -> set[int]:
    """Steps of the plan that kernels carry out."""
    queues = executable.lowered.program.queues
    return {i.step for queue in queues for i in queue.instructions if i.kind == "call"}


@pytest.mark.costly(5)
@pytest.mark.parametrize("seed", range(3))
def test_the_timeline_covers_every_step_that_has_a_kernel(seed: int, inputs) -> None:
    executable = fire_executable(seed)
    executor = hp.Executor(executable)
    executor.run(**inputs)
    timeline = executor.timeline(5)
    plan, cluster = executor.solution.plan, executor.solution.cluster
    assert timeline.source == "measured"
    assert {span.step for span in timeline.spans} == kernel_steps(executable)
    for span in timeline.spans:
        step = plan.steps[span.step]
        assert isinstance(step, Run)
        assert span.resource == cluster.devices[step.device].name
        assert 0 <= span.start_ns <= span.finish_ns <= timeline.makespan_ns


@pytest.mark.costly
def test_spans_of_devices_led_by_one_core_do_not_overlap(inputs) -> None:
    """(A helper may still be at work elsewhere when the first core of a device begins.)"""
    extraction = extraction_of(fire_modules())
    devices = [index % len(cpu_cluster().devices) for index in range(len(extraction.graph.tasks))]
    solution = solution_of(extraction, cpu_cluster(), devices)
    executor = hp.Executor(written(fire_modules(), solution))
    executor.run(**inputs)
    leader = {device.name: device.cores[0] for device in executor.solution.cluster.devices}
    of_core: dict[int, list[Span]] = {}
    for span in executor.timeline(3).spans:
        of_core.setdefault(leader[span.resource], []).append(span)
    pairs = [pair for spans in of_core.values() for pair in itertools.combinations(spans, 2)]
    assert any(one.resource != other.resource for one, other in pairs)
    for one, other in pairs:
        assert one.finish_ns <= other.start_ns or other.finish_ns <= one.start_ns


def test_a_step_of_several_kernels_is_one_span_and_joins_do_not_count() -> None:
    extraction = extraction_of(two_branches())
    solution = solution_of(extraction, mixed_cluster(), [0, 1, 0, 0])
    steps = solution.plan.steps
    run = next(i for i, step in enumerate(steps) if isinstance(step, Run))
    copy = next(i for i, step in enumerate(steps) if isinstance(step, Copy))
    records = [(run, False, 1, 90), (run, True, 10, 20), (run, True, 30, 40), (copy, False, 15, 70)]
    timeline = measured_timeline(records, solution)
    device = solution.cluster.devices[steps[run].device].name
    channel = solution.cluster.links[steps[copy].route[0]].channel
    assert set(timeline.spans) == {Span(run, device, 0, 30), Span(copy, channel, 5, 60)}
    assert timeline.makespan_ns == 60


def test_benchmark_gives_a_time_for_each_run(executable: Executable, inputs) -> None:
    executor = hp.Executor(executable)
    executor.run(**inputs)
    times = executor.benchmark(7)
    assert len(times) == 7
    assert all(isinstance(ns, int) and ns > 0 for ns in times)


@pytest.mark.parametrize("call", ["benchmark", "timeline"])
def test_no_runs_is_a_typed_error(executable: Executable, inputs, call: str) -> None:
    executor = hp.Executor(executable)
    executor.run(**inputs)
    with pytest.raises(ExecutionError, match="number of runs is 0"):
        getattr(executor, call)(0)


@pytest.mark.parametrize(
    ("name", "array", "message"),
    [
        ("y", np.zeros((1, 8, 16, 16), "float32"), "no input 'y'; it has 'x'"),
        ("x", np.zeros((1, 8, 16, 15), "float32"), r"input 'x': expected float32 \(1, 8, 16, 16\)"),
        ("x", np.zeros(1, "float32"), "input 'x': expected float32"),
        ("x", np.zeros((1, 8, 16, 16)), "input 'x': expected float32.* got float64"),
        ("x", np.zeros((1, 8, 16, 16), "int32"), "got int32"),
        ("x", np.zeros((1, 8, 16, 16), ">f4"), "input 'x' cannot be an array of type >f4"),
        ("x", np.zeros((1, 8, 16, 16), object), "input 'x' cannot be an array of type object"),
        ("x", "text", "input 'x' cannot be an array of type"),
        ("x", None, "input 'x' cannot be an array of type object"),
    ],
)
def test_a_wrong_input_is_named(executable: Executable, name: str, array, message: str) -> None:
    with pytest.raises(ExecutionError, match=message):
        hp.Executor(executable).run(**{name: array})


def test_an_input_without_a_value_is_named(executable: Executable) -> None:
    with pytest.raises(ExecutionError, match="inputs without a value: 'x'; set them first"):
        hp.Executor(executable).run()


def test_an_output_that_is_not_there_is_a_typed_error(executable: Executable, inputs) -> None:
    executor = hp.Executor(executable)
    with pytest.raises(ExecutionError, match="no run has succeeded"):
        executor.get_output(0)
    executor.run(**inputs)
    for index in (1, -1):
        with pytest.raises(ExecutionError, match=f"output {index} does not exist; there are 1"):
            executor.get_output(index)


def only(device: Device, memory: int = 2**33) -> Cluster:
    return Cluster("elsewhere", (Memory("ram", memory),), (device,), (), 0)


@pytest.mark.costly
@pytest.mark.parametrize(
    ("device", "message"),
    [
        (Device("far", "cpu", TARGET, 0, 0, (997,)), "far \\(core 997; allowed are"),
        (Device("box", "cpu", TARGET, 0, 0, (0,), "other"), "box \\(on host 'other'"),
    ],
)
def test_a_missing_device_is_named_from_memory_and_file(
    device: Device, message: str, tmp_path: Path
) -> None:
    executable = written_randomly(two_branches(), only(device), 0)
    executable.export_library(tmp_path / "model.so")
    for source in (executable, tmp_path / "model.so"):
        with pytest.raises(
            ExecutionError, match=f"does not have: {message}.*Place the model again"
        ):
            hp.Executor(source)


@pytest.mark.skipif(tvm.cuda(0).exist, reason="this machine has a GPU")
def test_a_missing_gpu_is_named() -> None:
    executable = build_randomly(two_branches(), 0, mixed_cluster())
    assert "gpu0" in executable.solution.devices_used
    with pytest.raises(ExecutionError, match=r"gpu0 \(cuda:0; no such GPU, or no driver\)"):
        hp.Executor(executable)


@pytest.mark.costly(4)
def test_a_gpu_that_the_plan_does_not_use_is_not_needed() -> None:
    extraction = extraction_of(two_branches())
    cluster = with_stock_kernels(mixed_cluster())
    solution = solution_of(extraction, cluster, [0] * len(extraction.graph.tasks))
    executable = written(two_branches(), solution)
    assert [space.name for space in executable.lowered.program.spaces] == ["ram"]
    inputs = random_inputs(two_branches())
    (actual,) = hp.Executor(executable).run(**inputs)
    np.testing.assert_array_equal(actual, stock_outputs(two_branches(), inputs)[0])
