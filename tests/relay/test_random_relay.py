"""Random Relay programs x random plans x requests in flight, on cores and fake devices: the numbers
of stock TVM, bit for bit."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from random import Random

import numpy as np
import pytest
import tvm
from host_clusters import FAR_CORE
from random_relay import Batch, random_batch
from relay_models import STOCK_TARGET, TARGET, cores, random_costs, stock_executor

from heteroplace import pipeline
from heteroplace.lower.compile import CompiledNetwork
from heteroplace.lower.kernels import KernelCalls
from heteroplace.lower.lower import lower
from heteroplace.lower.program import Program
from heteroplace.model.check import check_plan
from heteroplace.model.cluster import Cluster, Device, Link, Memory
from heteroplace.model.graph import TaskGraph, TaskGraphBuilder
from heteroplace.native.compiled_file import SealedCode
from heteroplace.native.execute import Executor as NativeExecutor
from heteroplace.run.loaded_program import LoadedProgram
from heteroplace.simulate.simulator import simulate
from heteroplace.tvm_bridge import library_path
from tests.strategies import random_plan

Arrays = dict[str, np.ndarray]

NUM_BATCHES, BATCH_SIZE = 50, 40
FEW = 4
NUM_PLANS = 2
NUM_SAMPLES = 3
FUSE_DEPTHS = (1, 2, 256)
"""Ops that TVM fuses at most: small kernels, which programs share, and large ones."""
DELAYS_NS = (0, 2_000, 20_000)
SIMPLIFIERS = ["SimplifyExpr", "SimplifyExprPostAlterOp"]
"""Of TVM: they leave out casts that change numbers (see `kept_casts`); references have none."""


@dataclass(frozen=True)
class Part:
    """One program of a batch, compiled with the others."""

    calls: KernelCalls
    graph: TaskGraph
    samples: list[tuple[Arrays, list[np.ndarray]]]
    """Inputs, and what stock TVM makes of them."""
    own: dict[tuple[int, int], bytes] = field(default_factory=dict)
    """By sample and output, what our kernels made of it first: the same by every plan."""


def parts_of(
    batch: Batch, graph: TaskGraph, calls: KernelCalls, samples: list[tuple[Arrays, list]]
) -> list[Part]:
    parts = []
    first = 0
    for inputs, count in zip(batch.inputs, batch.num_outputs, strict=True):
        outputs = slice(first, first + count)
        first += count
        part = part_of(graph, inputs, graph.outputs[outputs])
        names = {task.name for task in part.tasks}
        values = [
            value if value.input_name in inputs else replace(value, input_name=None)
            for value in calls.values
        ]
        kept = tuple(call for call in calls.calls if call.task in names)
        own = KernelCalls(tuple(values), kept, calls.outputs[outputs], calls.kernels)
        known = [({name: given[name] for name in inputs}, made[outputs]) for given, made in samples]
        parts.append(Part(own, part, known))
    return parts


def part_of(graph: TaskGraph, inputs: Sequence[str], outputs: Sequence[int]) -> TaskGraph:
    """The tasks that make some outputs, and what they read."""
    tensors = graph.tensors
    wanted: set[int] = set()
    waiting = [tensors[tensor].producer for tensor in outputs]
    while waiting:
        task = waiting.pop()
        if task is not None and task not in wanted:
            wanted.add(task)
            waiting += [tensors[tensor].producer for tensor in graph.task_inputs[task]]
    builder = TaskGraphBuilder("part")
    for tensor in (tensors[tensor] for tensor in graph.inputs):
        if tensor.name in inputs:
            builder.add_input(tensor.name, tensor.shape, tensor.dtype)
    for task in sorted(wanted):
        builder.add_task(graph.tasks[task], [tensors[t].name for t in graph.task_inputs[task]])
        for tensor in (tensors[tensor] for tensor in graph.task_outputs[task]):
            builder.add_tensor(graph.tasks[task].name, tensor.shape, tensor.dtype, name=tensor.name)
    return builder.finalize([tensors[tensor].name for tensor in outputs])


def random_machine(random: Random) -> Cluster:
    """2 to 8 devices of a core each, maybe one of two cores, over 1 to 3 memories."""
    near = cores()
    num_memories = random.randint(1, 3)
    devices = []
    for index in range(random.randint(2, 8)):
        is_near = index < len(near)
        core = near[index] if is_near else FAR_CORE + index
        memory = 0 if is_near else random.randrange(num_memories)
        devices.append(Device(f"cpu.{index}", "cpu", TARGET, 0, memory, (core,)))
    if len(near) == 2 and random.random() < 0.5:
        devices.append(Device("cpu.all", "cpu", TARGET, 0, 0, near))
    links = tuple(
        Link(f"{src}-{dst}", src, dst, 10**10, 100, f"{src}-{dst}")
        for src in range(num_memories)
        for dst in range(num_memories)
        if src != dst
    )
    memories = tuple(Memory(f"ram{index}", 2**33) for index in range(num_memories))
    return Cluster("random", memories, tuple(devices), links, 0)


def with_fakes(random: Random, program: Program) -> Program:
    """The program with a fake device in place of each core that is not here."""
    queues = [
        queue
        if queue.core is None or queue.core < FAR_CORE
        else replace(queue, kind="fake", core=random.choice(DELAYS_NS), workspace_bytes=0)
        for queue in program.queues
    ]
    return replace(program, queues=tuple(queues))


def bits_of(array: np.ndarray) -> bytes:
    """The array's bytes, zero without its sign: of max(-0, 0) a compiler may take either."""
    return (array + array.dtype.type(0)).tobytes()


def check_part(random: Random, part: Part, code_path: str) -> None:
    """Callers of a random plan, all at once, get the answers of stock TVM, and those of ours by any
    other plan with the sign of zeros too."""
    cluster = random_machine(random)
    plan = random_plan(random, part.graph, cluster)
    costs = random_costs(part.graph, cluster, random.randrange(1000))
    check_plan(part.graph, cluster, costs, plan)
    predicted = simulate(part.graph, cluster, costs, plan) if random.random() < 0.5 else None
    lowered = lower(part.calls, part.graph, cluster, plan, predicted)
    text = with_fakes(random, lowered.program).to_text()
    in_flight = random.randint(1, 4)
    native = NativeExecutor(
        str(library_path()), code_path, text, blob=lowered.make_blob(), max_in_flight=in_flight
    )
    program = LoadedProgram(native)
    faults: list[str] = []

    def check(sample: int, outputs: list[np.ndarray]) -> None:
        for index, (found, expected) in enumerate(
            zip(outputs, part.samples[sample][1], strict=True)
        ):
            is_same = (found.dtype, found.shape) == (expected.dtype, expected.shape)
            is_same &= part.own.setdefault((sample, index), found.tobytes()) == found.tobytes()
            if not is_same or bits_of(found) != bits_of(expected):
                faults.append(f"output {index} of sample {sample}: {found}, expected {expected}")

    def caller(number: int) -> None:
        order = [(number + call) % NUM_SAMPLES for call in range(NUM_SAMPLES)]
        try:
            if number % 2:
                stream = program.run_many(part.samples[sample][0] for sample in order)
                for sample, outputs in zip(order, stream, strict=True):
                    check(sample, outputs)
            else:
                futures = [program.run_async(part.samples[sample][0]) for sample in order]
                for sample, future in zip(order, futures, strict=True):
                    check(sample, future.result())
        except BaseException as fault:  # of any kind: it is told below, with the program
            faults.append(repr(fault))

    threads = [threading.Thread(target=caller, args=(n,)) for n in range(random.randint(2, 3))]
    for thread in threads:
        thread.start()
    check(0, program.run(part.samples[0][0]))
    for thread in threads:
        thread.join()
    assert not faults, "\n".join([*faults, text])


def compiled_batch(seed: str, num_programs: int) -> tuple[list[Part], SealedCode]:
    """Compile programs together, by stock TVM and as tasks."""
    random = Random(seed)
    batch = random_batch(random, num_programs)
    config = {"relay.FuseOps.max_depth": random.choice(FUSE_DEPTHS)}
    run = stock_executor(batch.mod, config=config, disabled_pass=SIMPLIFIERS)
    samples = []
    for _ in range(NUM_SAMPLES):
        numbers = np.random.default_rng(random.randrange(2**32))
        given = {}
        for parameter in batch.mod["main"].params:
            type_ = parameter.type_annotation
            shape = tuple(int(extent) for extent in type_.shape)
            is_float = type_.dtype.startswith("float")
            array = numbers.standard_normal(shape) if is_float else numbers.integers(0, 9, shape)
            given[parameter.name_hint] = array.astype(type_.dtype)
        samples.append((given, run(given)))
    for _, outputs in samples:
        assert all(np.isfinite(output.astype("float64")).all() for output in outputs)
    with tvm.transform.PassContext(opt_level=3, config=config):
        compiled = CompiledNetwork.of(pipeline.prepare(batch.mod))
        device = Device("cpu", "cpu", STOCK_TARGET, 0, 0, cores()[:1])
        one = Cluster("one", (Memory("ram", 2**33),), (device,), (), 0)
        kernels = compiled.kernels(one, [0] * len(compiled.graph.tasks))
    parts = parts_of(batch, compiled.graph, kernels.calls, samples)
    return parts, kernels.library.sealed()


def check_batch(seed: str, num_programs: int) -> None:
    """Run each program of a batch by some plans."""
    parts, code = compiled_batch(seed, num_programs)
    for number, part in enumerate(parts):
        for plan in range(NUM_PLANS):
            check_part(Random(f"{seed} {number} {plan}"), part, code.path)


@pytest.mark.costly(4)
def test_random_programs_equal_stock_tvm_to_the_bit(pytestconfig: pytest.Config) -> None:
    check_batch(f"commit {pytestconfig.getoption('hypothesis_seed')}", FEW)


@pytest.mark.slow
@pytest.mark.parametrize("batch", range(NUM_BATCHES))
def test_two_thousand_random_programs_equal_stock_tvm_to_the_bit(batch: int) -> None:
    check_batch(f"batch {batch}", BATCH_SIZE)
