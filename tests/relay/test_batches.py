"""batches, traffic: small batches measured with the traffic of a large one."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import tvm
from few_rounds import few_rounds
from relay_models import conv, cpu_cluster, module, var
from tvm import relay

from benchmarks import batches as bench
from heteroplace.demo.networks import small_cnn
from heteroplace.errors import InfeasibleError, MissingCostError
from heteroplace.measure import batches
from heteroplace.measure.batches import BatchProgram, compile_batch, measure_batches
from heteroplace.measure.transfers import traffic
from heteroplace.measure.transfers.traffic import CHUNK_BYTES, SPACER, with_traffic
from zoo.models.catalogue import Model


@pytest.fixture(scope="module", autouse=True)
def few_runs() -> Iterator[None]:
    with few_rounds(batches):
        yield


@pytest.fixture(scope="module")
def program() -> BatchProgram:
    """Maps of 1 MiB for each item."""
    data = var("data", (1, 16, 128, 128))
    with tvm.transform.PassContext(opt_level=3):
        pooled = relay.nn.max_pool2d(relay.nn.relu(conv(data, 16, 16)), (2, 2), (2, 2))
        return compile_batch(module([data], pooled), {}, cpu_cluster(), 0, 2)


def test_spacers_touch_what_the_other_items_would(program: BatchProgram) -> None:
    calls = with_traffic(program.compiled.calls, program.compiled.calls.kernels[SPACER], ratio=8)
    owed = 0.0
    for call in calls.calls:
        if call.kernel == SPACER:
            owed -= 2 * CHUNK_BYTES
        else:
            assert 0 <= owed < 2 * CHUNK_BYTES
            values = [calls.values[value] for value in (*call.reads, *call.writes)]
            owed += 7 * sum(value.bytes for value in values if value.constant is None)
    assert sum(call.kernel == SPACER for call in calls.calls) > 0


def test_spacers_never_touch_more_than_the_ring(
    program: BatchProgram, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(traffic, "last_cache_bytes", lambda: 2 * CHUNK_BYTES)
    calls = with_traffic(program.compiled.calls, program.compiled.calls.kernels[SPACER], ratio=1000)
    run, longest = 0, 0
    for call in calls.calls:
        run = run + 1 if call.kernel == SPACER else 0
        longest = max(longest, run)
    assert longest == 2  # four chunks, two in each call


def test_traffic_of_the_same_batch_is_none(program: BatchProgram) -> None:
    calls = with_traffic(program.compiled.calls, program.compiled.calls.kernels[SPACER], ratio=1)
    assert calls.calls == program.compiled.calls.calls


@pytest.mark.costly
def test_spacers_are_run_but_not_counted(program: BatchProgram) -> None:
    busy = program.rounds(large=16)
    busy.sample()
    calls = zip(busy.program.executor.instructions, busy.program.task_of, strict=True)
    spacers = [task for instruction, task in calls if instruction.kernel == SPACER]
    assert spacers and set(spacers) == {None}
    assert all(ns > 0 for ns in busy.task_times())


def test_workspaces_are_those_of_the_kernels(program: BatchProgram) -> None:
    padded = 16 * (128 // 8 + 2) * 130 * 4  # of an eighth of the rows, and around
    assert padded <= max(task.workspace_bytes for task in program.graph.tasks) < padded + 4096


def test_peak_is_what_the_running_program_has(program: BatchProgram) -> None:
    running = program.rounds()
    running.sample()
    (use,) = running.program.executor.memory_bytes().values()
    assert program.peak_bytes() == use.total_bytes


@pytest.mark.costly(12)
def test_large_batch_follows_from_small_ones() -> None:
    network = small_cnn()
    cluster = cpu_cluster()
    with tvm.transform.PassContext(opt_level=3):
        found = measure_batches(network.mod, network.params, cluster, 0, (1, 2, 4), 8)
        large = compile_batch(network.mod, network.params, cluster, 0, 8)
    assert found.large_graph.tensors == large.graph.tensors
    # Scratch memory comes in whole pages, so the line is not exact.
    assert found.large_peak_bytes == pytest.approx(large.peak_bytes(), rel=0.02)
    for batch, table in found.tables.items():
        table.check(found.graphs[batch], cluster)
        assert all(table.run_ns(task, 0) for task in range(table.num_tasks))


@pytest.mark.costly(8)
def test_times_of_unlike_devices_stay_unknown() -> None:
    network = small_cnn()
    cluster = cpu_cluster()
    with tvm.transform.PassContext(opt_level=3):
        found = measure_batches(network.mod, network.params, cluster, 0, (1, 2), 4)
    last = len(cluster.devices) - 1
    if len(cluster.devices[last].cores) == 1:
        pytest.skip("this machine has one core")
    with pytest.raises(MissingCostError):
        found.tables[1].run_ns(0, last)


@pytest.mark.costly
def test_batch_that_does_not_fit_is_refused() -> None:
    network = small_cnn()
    with (
        tvm.transform.PassContext(opt_level=3),
        pytest.raises(InfeasibleError, match="does not fit"),
    ):
        measure_batches(network.mod, network.params, cpu_cluster(100_000), 0, (1, 2), 4)


@pytest.mark.slow
def test_bench_has_time_and_memory_of_the_large_batch() -> None:
    network = small_cnn()
    shape = network.input_shapes["image"]
    model = Model("tiny", network.mod, network.params, {"image": np.zeros(shape, np.float32)})
    with tvm.transform.PassContext(opt_level=3):
        row = bench.row_of(model, num_rounds=2)
    assert row["peak_deviation"] < 0.02 and row["memory_mean"] < 0.02
    assert row["memory_weighted"] < 0.02
    for key in ("line_weighted", "line_mean", "traffic_weighted", "traffic_mean"):
        assert row[key] >= 0
    text = bench.table([row])
    assert "tiny" in text and "from the paper" in text
