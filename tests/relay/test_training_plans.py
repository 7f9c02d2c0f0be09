"""Training steps over replicas, stages and microbatches: those of numpy's SGD, and to the bit what
their kernels give one after the other."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from random import Random

import numpy as np
import pytest
import tvm
from host_clusters import FAR_CORE
from relay_models import extracted_anew
from sharded_plans import apart_cluster, far_cluster, near_cluster, solution_of_plan
from test_random_ranks import load_ranks
from training_plans import TrainingPlanner, sgd, training_module, with_shared_values

import heteroplace as hp
from heteroplace.codegen.artifact import weights_blob
from heteroplace.codegen.compile import CompiledKernels, CompiledNetwork
from heteroplace.codegen.executable import Executable, write_programs
from heteroplace.codegen.kernels import KernelCalls
from heteroplace.codegen.lower import lower
from heteroplace.errors import ExecutionError
from heteroplace.files.manifest import State
from heteroplace.model.graph import TaskGraph
from heteroplace.model.live_memory import live_peaks
from heteroplace.model.solution import Solution
from heteroplace.native.execute import Executor as NativeExecutor
from heteroplace.relay.tasks.network import Network, network_of
from heteroplace.run.loaded_program import LoadedProgram
from heteroplace.run.state import ProgramState
from heteroplace.tvm_bridge import library_path

Arrays = dict[str, np.ndarray]
NUM_STEPS = 3
SECOND_NS = 10**9


@dataclass(frozen=True)
class TrainingCase:
    """A random step, its plan and what it is made of."""

    seed: int
    replicas: int = 2
    micro: int = 2
    num_devices: int = 3
    rows: int = 4
    widths: tuple[int, ...] = (8, 16, 8)

    @property
    def batch(self) -> int:
        return self.rows * self.replicas * self.micro

    @cached_property
    def network(self) -> Network:
        mod = training_module(list(self.widths), self.rows, self.batch)
        extraction = extracted_anew(mod)
        state = {name: array for name, array in self.weights.items() if name != "w0"}
        graph = with_shared_values(extraction.graph)
        return Network(graph, network_of(extraction).mod, state=state)

    @property
    def graph(self) -> TaskGraph:
        return self.network.graph

    @cached_property
    def weights(self) -> Arrays:
        rng = np.random.default_rng(self.seed)
        pairs = zip(self.widths, self.widths[1:], strict=False)
        shapes = [(out, into) for into, out in pairs]
        return {
            f"w{n}": 0.3 * rng.standard_normal(shape).astype("float32")
            for n, shape in enumerate(shapes)
        }

    @cached_property
    def inputs(self) -> Arrays:
        rng = np.random.default_rng(self.seed + 1)
        shapes = {"x": (self.batch, self.widths[0]), "y": (self.batch, self.widths[-1])}
        return {
            name: rng.standard_normal(shape).astype("float32") for name, shape in shapes.items()
        }

    @cached_property
    def solution(self) -> Solution:
        random = Random(self.seed)
        cluster = near_cluster(self.num_devices, random.choice((None, 0)))
        planner = TrainingPlanner(random, self.graph, cluster, self.replicas, self.micro)
        return solution_of_plan(self.graph, cluster, planner.plan())

    @cached_property
    def kernels(self) -> CompiledKernels:
        compiled = CompiledNetwork.of(self.network)
        with tvm.transform.PassContext(opt_level=3):
            return compiled.kernels_of(self.solution.cluster, self.solution.plan)

    @cached_property
    def executable(self) -> Executable:
        return write_programs(self.kernels, [self.solution])[0]


def one_after_the_other(
    case: TrainingCase, calls: KernelCalls, folder: Path, state: Arrays
) -> tuple[list[np.ndarray], Arrays]:
    """Outputs and new state by the kernels alone: every value has bytes of its own."""
    path = folder / "kernels.so"
    path.write_bytes(case.executable.library.image)
    library = tvm.runtime.load_module(str(path))
    values: dict[int, np.ndarray] = {}

    def value(index: int) -> np.ndarray:
        found = calls.values[index]
        if index in values:
            return values[index]
        if found.alias_of is not None:
            return value(found.alias_of).reshape(found.shape)
        if found.constant is not None:
            return found.constant
        if found.input_name is not None:
            given = case.inputs.get(found.input_name)
            return state[found.input_name] if given is None else given
        assert found.joined is not None
        parts = []
        for item, part in zip(found.items, found.joined.parts, strict=True):
            whole = calls.values[part]
            parts.append(np.split(value(part), len(whole.items))[whole.items.index(item)])
        return np.concatenate(parts)

    def is_ready(index: int) -> bool:
        found = calls.values[index]
        if found.alias_of is not None:
            return is_ready(found.alias_of)
        parts = () if found.joined is None else found.joined.parts
        is_given = found.constant is not None or found.input_name is not None
        return index in values or is_given or bool(parts and all(map(is_ready, parts)))

    waiting = list(calls.calls)
    while waiting:
        call = next(each for each in waiting if all(map(is_ready, each.reads)))
        waiting.remove(call)
        reads = [np.asarray(value(index), order="C") for index in call.reads]
        if not call.kernel:
            (values[call.writes[0]],) = reads
            continue
        made = [calls.values[index] for index in call.writes]
        arrays = [tvm.nd.empty(each.shape, each.dtype) for each in made]
        library[call.kernel](*map(tvm.nd.array, reads), *arrays)
        values.update(
            (index, array.numpy()) for index, array in zip(call.writes, arrays, strict=True)
        )
    new = {}
    for index, found in enumerate(calls.values):
        before = None if found.in_place_of is None else calls.values[found.in_place_of]
        if before is not None and before.input_name is not None:
            new[before.input_name] = value(index)
    return [value(index) for index in calls.outputs], new


def check_training(case: TrainingCase, folder: Path) -> None:
    executable, calls = case.executable, case.kernels.calls
    lowered = lower(calls, case.graph, far_cluster(case.num_devices, 2), case.solution.plan, None)
    code = executable.library.sealed()
    executable.export_library(folder / "model.so")
    executor = hp.load(folder / "model.so")
    assert [name for name, _, _ in executor.inputs] == ["x", "y"]
    assert len(executor.outputs) == 1
    executor.state("w0", case.weights["w0"])
    weights = [array.astype("float64") for array in case.weights.values()]
    exact = dict(case.weights)
    for _ in range(NUM_STEPS):
        for name, array in exact.items():
            assert executor.state(name).tobytes() == array.tobytes()
        before = dict(exact)
        (loss,) = executor.run(case.inputs)
        (own_loss,), exact = one_after_the_other(case, calls, folder, exact)
        assert loss.tobytes() == own_loss.tobytes()
        of_numpy, weights = sgd(weights, *(a.astype("float64") for a in case.inputs.values()))
        assert float(loss) == pytest.approx(of_numpy, rel=1e-5)
        for name, array in zip(exact, weights, strict=True):
            np.testing.assert_allclose(executor.state(name), array, rtol=1e-5, atol=1e-6)
    ranks = load_ranks(Random(case.seed), lowered, code.path, in_flight=1)
    ports = [(rank, port) for rank in ranks.programs for port, _, _ in rank.inputs]
    for rank, port in ports:
        name = port.partition("@")[0]
        if name in before:
            rank.set_input(port, before[name])
    ((far_loss, *_),) = ranks.run([case.inputs])
    assert far_loss.tobytes() == own_loss.tobytes()


@pytest.mark.parametrize("seed", [0])
def test_training_steps_are_those_of_numpy_and_of_the_kernels(seed: int, tmp_path: Path) -> None:
    check_training(TrainingCase(seed), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 25))
def test_more_training_steps(seed: int, tmp_path: Path) -> None:
    random = Random(seed)
    replicas = random.choice((2, 3))
    case = TrainingCase(
        seed,
        replicas,
        random.randint(1, 3),
        random.randint(replicas, 4),
        random.choice((1, 2, 4)),
        tuple(random.choice((8, 16)) for _ in range(random.randint(3, 4))),
    )
    check_training(case, tmp_path)


def test_state_is_what_was_set_before_any_run() -> None:
    case = TrainingCase(0)
    executor = hp.Executor(case.executable)
    assert executor.state("w1").tobytes() == case.weights["w1"].tobytes()
    with pytest.raises(ExecutionError, match=r"no state 'w9'; it has 'w0', 'w1'"):
        executor.state("w9")
    with pytest.raises(ExecutionError, match="inputs without a value: 'w0@ram"):
        executor.run(case.inputs)
    with pytest.raises(ExecutionError, match=r"expected float32 \(16, 8\)"):
        executor.state("w0", np.zeros((2, 2), "float32"))
    with pytest.raises(ExecutionError, match="max_in_flight is 2, and every run of the program"):
        hp.Executor(case.executable, max_in_flight=2)


def test_state_has_no_value_after_a_run_that_failed() -> None:
    """A device that takes a second for each instruction does not end in time."""
    case = TrainingCase(0)
    cluster = apart_cluster(case.num_devices, lambda number: FAR_CORE + number)
    lowered = lower(case.kernels.calls, case.graph, cluster, case.solution.plan, None)
    queues = tuple(
        replace(queue, kind="fake", core=0 if number else SECOND_NS, workspace_bytes=0)
        if queue.kind == "cpu"
        else queue
        for number, queue in enumerate(lowered.program.queues)
    )
    text = replace(lowered.program, queues=queues).to_text()
    code, blob = case.executable.library.sealed(), weights_blob(lowered)
    native = NativeExecutor(str(library_path()), code.path, text, blob=blob)
    states = [State(name, ports) for name, ports in lowered.state.items()]
    state = ProgramState(native, states)
    for name, array in case.weights.items():
        state.write(name, array)
    program = LoadedProgram(native, state.ports)
    with pytest.raises(ExecutionError, match="did not end within its limit"):
        program.run(case.inputs, timeout_s=0.01)
    with pytest.raises(ExecutionError, match="has no value"):
        state.read("w0")
    state.write("w0", case.weights["w0"])
    assert state.read("w0").tobytes() == case.weights["w0"].tobytes()


def test_the_arena_is_what_is_predicted_to_be_live() -> None:
    """Of a step whose values are large beside the alignment of each."""
    case = TrainingCase(0, num_devices=2, rows=64, widths=(256, 512, 256, 512))
    solution = case.solution
    peaks = live_peaks(case.graph, solution.cluster, solution.costs, solution.plan)
    memory = lower(case.kernels.calls, case.graph, solution.cluster, solution.plan, None).memory
    for peak, use in zip(peaks, memory, strict=True):
        assert use.weights_bytes + use.values_bytes <= 1.05 * peak.num_bytes
