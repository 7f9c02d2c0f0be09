"""Helping: cores that wait do parts of others' kernels; the numbers are those of stock TVM."""

from __future__ import annotations

import threading
from dataclasses import replace

import numpy as np
import pytest
import tvm
from relay_models import (
    cores,
    extraction_of,
    fire_modules,
    random_devices,
    random_inputs,
    shared_network,
    solution_of,
    stock_outputs,
    two_cores,
    written,
)

import heteroplace as hp
from heteroplace.lower.executable import Executable
from heteroplace.lower.lower import lower
from heteroplace.lower.workspace import Workspace
from heteroplace.measure.plan_program import load_programs

pytestmark = [
    pytest.mark.relay,
    pytest.mark.costly,
    pytest.mark.skipif(len(cores()) < 2, reason="two workers need two cores"),
]


def built(seed: int | None = None) -> Executable:
    """The network on random cores; all on the first one without a seed."""
    extraction, cluster = extraction_of(fire_modules()), two_cores()
    devices = [0] * len(extraction.graph.tasks)
    if seed is not None:
        devices = random_devices(extraction, cluster, seed)
    return written(fire_modules(), solution_of(extraction, cluster, devices))


@pytest.fixture(scope="module")
def executable() -> Executable:
    return built(0)


@pytest.fixture(scope="module")
def inputs() -> dict[str, np.ndarray]:
    return random_inputs(fire_modules())


@pytest.fixture(scope="module")
def expected(inputs: dict[str, np.ndarray]) -> np.ndarray:
    return stock_outputs(fire_modules(), inputs)[0]


@pytest.mark.parametrize("helping", [None, True, False])
def test_outputs_equal_stock_tvm_to_the_bit(executable, inputs, expected, helping) -> None:
    executor = hp.Executor(executable, helping=helping)
    for _ in range(30):
        np.testing.assert_array_equal(executor.run(**inputs)[0], expected)
    executor.benchmark(30)
    np.testing.assert_array_equal(executor.get_output(0), expected)
    assert executor.timeline(3).makespan_ns > 0
    np.testing.assert_array_equal(executor.get_output(0), expected)


def test_callers_at_once_get_their_own_answers(executable, inputs, expected) -> None:
    executor = hp.Executor(executable, max_in_flight=2, helping=True)
    wrong = []

    def call(factor: int) -> None:
        scaled = {name: array * factor for name, array in inputs.items()}
        (alone,) = hp.Executor(executable, helping=False).run(scaled)
        for _ in range(10):
            (output,) = executor.run(scaled)
            if not np.array_equal(output, alone):
                wrong.append(factor)

    threads = [threading.Thread(target=call, args=(factor,)) for factor in (1, 2, 3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    np.testing.assert_array_equal(executor.run(inputs)[0], expected)


def test_who_helps_is_as_asked(executable) -> None:
    assert hp.Executor(executable, helping=True).is_helping
    assert not hp.Executor(executable, helping=False).is_helping
    assert not hp.Executor(built(), helping=True).is_helping  # there is one queue


def test_every_core_has_scratch_memory_for_the_kernels_of_the_others() -> None:
    extraction, cluster = extraction_of(fire_modules()), two_cores()
    num_tasks = len(extraction.graph.tasks)
    devices = [0] * (num_tasks - 1) + [1]
    with tvm.transform.PassContext(opt_level=3):
        calls = shared_network(fire_modules()).calls(cluster, [0] * num_tasks)
    last = calls.calls[-1].task
    needs = {False: Workspace(1024, 512), True: Workspace(128, 2048)}
    changed = tuple(replace(call, workspace=needs[call.task == last]) for call in calls.calls)
    plan = solution_of(extraction, cluster, devices).plan
    lowered = lower(replace(calls, calls=changed), extraction.graph, cluster, plan, None)
    assert [queue.workspace_bytes for queue in lowered.program.queues] == [2048, 512]


def test_what_is_measured_has_no_help() -> None:
    extraction, cluster = extraction_of(fire_modules()), two_cores()
    num_tasks = len(extraction.graph.tasks)
    plan = solution_of(extraction, cluster, random_devices(extraction, cluster, 0)).plan
    with tvm.transform.PassContext(opt_level=3):
        kernels = shared_network(fire_modules()).kernels(cluster, [0] * num_tasks)
    (program,) = load_programs(kernels, extraction.graph, cluster, [plan])
    assert len(program.executor.queues) == 2
    assert not program.executor.is_helping
