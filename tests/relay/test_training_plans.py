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
from kernels_alone import Arrays, KernelsAlone, loaded, with_check
from rank_jobs import python, run_job
from relay_models import cores, extracted_anew
from sharded_plans import far_cluster, near_cluster, solution_of_plan
from test_random_ranks import load_ranks
from training_plans import TrainingPlanner, sgd, training_module, with_shared_values

import heteroplace as hp
from heteroplace.errors import ExecutionError
from heteroplace.lower.compile import CompiledKernels, CompiledNetwork
from heteroplace.lower.executable import Executable, write_programs
from heteroplace.lower.items.items import lower_items
from heteroplace.lower.library import compile_kernels
from heteroplace.lower.lower import lower
from heteroplace.lower.lower_kernel import lower_kernel
from heteroplace.model.graph import TaskGraph
from heteroplace.model.memory_use.live_memory import live_peaks
from heteroplace.model.solution import Solution
from heteroplace.relay.tasks.network import Network, network_of
from heteroplace.simulate.simulator import simulate

NUM_STEPS = 3


@dataclass(frozen=True)
class TrainingCase:
    """A random step, its plan and what it is made of."""

    seed: int
    replicas: int = 2
    micro: int = 2
    num_devices: int = 3
    rows: int = 4
    widths: tuple[int, ...] = (8, 16, 8)
    has_owner: bool = False
    """Whether one replica updates the weights of all."""

    @property
    def batch(self) -> int:
        return self.rows * self.replicas * self.micro

    @cached_property
    def network(self) -> Network:
        mod = training_module(list(self.widths), self.rows, self.batch)
        extraction = extracted_anew(mod)
        state = {name: array for name, array in self.weights.items() if name != "w0"}
        graph = with_shared_values(extraction.graph, has_owner=self.has_owner)
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
    def compiled(self) -> CompiledNetwork:
        return CompiledNetwork.of(self.network)

    @cached_property
    def kernels(self) -> CompiledKernels:
        return self.kernels_of(self.solution)

    def kernels_of(self, solution: Solution) -> CompiledKernels:
        with tvm.transform.PassContext(opt_level=3):
            return self.compiled.kernels_of(solution.cluster, solution.plan)

    @cached_property
    def executable(self) -> Executable:
        return write_programs(self.kernels, [self.solution])[0]


def check_training(case: TrainingCase, folder: Path) -> None:
    executable, calls = case.executable, case.kernels.calls
    alone = KernelsAlone(case.kernels, folder)
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
        (own_loss,), exact = alone.run(case.inputs, exact)
        assert loss.tobytes() == own_loss.tobytes()
        of_numpy, weights = sgd(weights, *(a.astype("float64") for a in case.inputs.values()))
        assert float(loss) == pytest.approx(of_numpy, rel=1e-5)
        for name, array in zip(exact, weights, strict=True):
            np.testing.assert_allclose(executor.state(name), array, rtol=1e-5, atol=1e-6)
    ranks = load_ranks(Random(case.seed), lowered, code, in_flight=1)
    ports = [(rank, port) for rank in ranks.programs for port, _, _ in rank.inputs]
    for rank, port in ports:
        name = port.partition("@")[0]
        if name in before:
            rank.set_input(port, before[name])
    ((far_loss, *_),) = ranks.run([case.inputs])
    assert far_loss.tobytes() == own_loss.tobytes()


@pytest.fixture(scope="module")
def small() -> TrainingCase:
    return TrainingCase(0)


@pytest.mark.costly
def test_training_steps_are_those_of_numpy_and_of_the_kernels(
    small: TrainingCase, tmp_path: Path
) -> None:
    check_training(small, tmp_path)


def check_ranks(case: TrainingCase, seed: int, folder: Path) -> None:
    """Another plan of the step, over hosts whose queues are pinned nowhere."""
    random = Random(seed)
    engines, count = random.choice((None, 0, 1)), case.num_devices
    cluster = far_cluster(count, random.randint(2, count), engines, is_pinned=False)
    plan = TrainingPlanner(random, case.graph, cluster, case.replicas, case.micro).plan()
    solution = solution_of_plan(case.graph, cluster, plan)
    kernels = case.kernels_of(solution)
    known = (case.graph, cluster, solution.costs, plan)
    predicted = simulate(*known) if random.random() < 0.5 else None
    lowered = lower(kernels.calls, case.graph, cluster, plan, predicted)
    ranks = load_ranks(random, lowered, kernels.library.sealed(), in_flight=1)
    alone, state = KernelsAlone(kernels, folder), dict(case.weights)
    ports = [(rank, port) for rank in ranks.programs for port, _, _ in rank.inputs]
    for rank, port in ports:
        if port.partition("@")[0] in state:
            rank.set_input(port, state[port.partition("@")[0]])
    found = ranks.run([case.inputs] * NUM_STEPS)
    for far_loss, *_ in found:
        (loss,), state = alone.run(case.inputs, state)
        assert far_loss.tobytes() == loss.tobytes(), lowered.text


def random_case(seed: int) -> TrainingCase:
    random = Random(seed)
    replicas = random.choice((2, 3))
    return TrainingCase(
        seed,
        replicas,
        random.randint(1, 3),
        random.randint(replicas, 4),
        random.choice((1, 2, 4)),
        tuple(random.choice((8, 16)) for _ in range(random.randint(3, 4))),
    )


@pytest.mark.costly
def test_ranks_of_another_plan_train_alike(small: TrainingCase, tmp_path: Path) -> None:
    check_ranks(small, 1, tmp_path)


@pytest.mark.costly
def test_ranks_train_alike_with_the_weights_that_one_of_them_gives(tmp_path: Path) -> None:
    """Weights come from another host to where some still read the ones before."""
    check_ranks(TrainingCase(0, num_devices=2, has_owner=True), 0, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 25))
def test_more_training_steps(seed: int, tmp_path: Path) -> None:
    case = random_case(seed)
    check_training(case, tmp_path)
    for plan in range(5):
        check_ranks(case, plan, tmp_path)


@pytest.mark.costly
def test_state_is_what_was_set_before_any_run(small: TrainingCase) -> None:
    case = small
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


@pytest.mark.costly
def test_state_has_no_value_after_a_run_that_failed(small: TrainingCase) -> None:
    lowered = small.executable.lowered
    program, state = loaded(with_failing_kernel(small.kernels), lowered)
    for name, array in small.weights.items():
        state.write(name, array)
    with pytest.raises(ExecutionError, match=r"Assert fail: .*it fails"):
        program.run(small.inputs)
    with pytest.raises(ExecutionError, match="has no value"):
        state.read("w0")
    state.write("w0", small.weights["w0"])
    assert state.read("w0").tobytes() == small.weights["w0"].tobytes()


def with_failing_kernel(kernels: CompiledKernels) -> CompiledKernels:
    """The same kernels, but the first fails."""
    first, *others = kernels.calls.kernels.values()
    assert first.function is not None
    lowered = lower_kernel(first.symbol, first.function, first.target)
    failing = replace(lowered, functions=with_check(lowered.functions, False, "it fails"))
    return CompiledKernels(kernels.calls, compile_kernels([failing, *others]))


RANK = """
import sys
import numpy as np
import heteroplace as hp
from heteroplace.errors import ExecutionError
given, steps, folder = np.load(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
executor = hp.load(sys.argv[1])
own = []
for name in given.files:
    if name.startswith("w"):
        try:
            executor.state(name, given[name])
        except ExecutionError as err:
            assert "is in no memory of this rank's host" in str(err)
        else:
            own.append(name)
if executor.is_feeding:
    for _ in range(steps):
        (loss,) = executor.run(x=given["x"], y=given["y"])
    print(loss.tobytes().hex())
    executor.close()
else:
    executor.serve()
name = "feeding" if executor.is_feeding else "serving"
np.savez(f"{folder}/{name}.npz", **{name: executor.state(name) for name in own})
"""


@pytest.mark.slow
@pytest.mark.skipif(len(cores()) < 2, reason="a rank is a core of its own")
def test_ranks_under_mpi_train_to_the_bit(tmp_path: Path) -> None:
    """Each rank sets and reads the state of its host; the second one feeds the model."""
    case = TrainingCase(3, num_devices=2)
    cluster = replace(far_cluster(2, 2), host=1)
    plan = TrainingPlanner(Random(3), case.graph, cluster, case.replicas, case.micro).plan()
    solution = solution_of_plan(case.graph, cluster, plan)
    with tvm.transform.PassContext(opt_level=3):
        kernels = CompiledNetwork.of(case.network).kernels_of(cluster, plan)
    write_programs(kernels, [solution])[0].export_library(tmp_path / "model.so")
    np.savez(tmp_path / "given.npz", **case.weights, **case.inputs)
    arguments = (tmp_path / "model.so", tmp_path / "given.npz", NUM_STEPS, tmp_path)
    done = run_job(2, *python(RANK, *arguments))
    assert done.returncode == 0, done.stderr
    alone, state = KernelsAlone(kernels, tmp_path), dict(case.weights)
    for _ in range(NUM_STEPS):
        (loss,), state = alone.run(case.inputs, state)
    assert done.stdout.split() == [loss.tobytes().hex()]
    for side in ("feeding", "serving"):
        with np.load(tmp_path / f"{side}.npz") as found:
            assert found.files
            for name in found.files:
                assert found[name].tobytes() == state[name].tobytes()


@pytest.mark.costly
def test_the_arena_is_what_is_predicted_to_be_live() -> None:
    """Of a step whose values are large beside the alignment of each."""
    case = TrainingCase(0, num_devices=2, rows=64, widths=(256, 512, 256, 512))
    graph, solution = case.graph, case.solution
    cluster, plan = solution.cluster, solution.plan
    with tvm.transform.PassContext(opt_level=3):
        calls = lower_items(case.network.mod, graph, cluster, plan)
    peaks = live_peaks(graph, cluster, solution.costs, plan)
    for peak, use in zip(peaks, lower(calls, graph, cluster, plan, None).memory, strict=True):
        assert use.weights_bytes + use.values_bytes <= 1.05 * peak.num_bytes
