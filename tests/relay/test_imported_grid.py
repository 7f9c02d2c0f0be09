"""GPT-2 imported with three blocks and repeated is GPT-2 imported with all of them."""

from dataclasses import replace

import pytest

from benchmarks.distir import imported
from benchmarks.distir.imported import ImportedSource, in_half_precision
from benchmarks.distir.machine import MachineFigures, machine_cluster
from benchmarks.distir.published import published_model
from heteroplace.costs.prediction.op_costs import OpCosts
from heteroplace.model.graph import Task, TaskGraphBuilder
from heteroplace.parts.parallel.transforms.degrees import Degrees
from heteroplace.parts.parallel.transforms.search_evaluator import Evaluator, SearchProblem
from heteroplace.parts.parallel.transforms.search_rows import STAGES

SMALL = replace(published_model("GPT-2 1.6B"), layers=5, width=96, heads=4)


def test_half_precision_halves_what_is_single():
    builder = TaskGraphBuilder("one")
    x = builder.add_input("x", (3,), "float32")
    ids = builder.add_input("ids", (3,), "int64")
    builder.add_task(Task("t", "add", weight_bytes=8, weights=(("w", 4),)), [x, ids])
    graph = in_half_precision(builder.finalize([builder.add_tensor("t", (3,), "float32")]))
    assert [tensor.bytes for tensor in graph.tensors] == [6, 24, 6]
    assert [tensor.dtype for tensor in graph.tensors] == ["float16", "int64", "float16"]
    assert (graph.tasks[0].weight_bytes, graph.tasks[0].weights) == (4, (("w", 2),))


@pytest.mark.slow
@pytest.mark.parametrize("degrees", [Degrees(2, 2, 2, 2), Degrees(1, 4, 2, 4), Degrees(2, 1, 4, 2)])
def test_blocks_are_repeated(monkeypatch, degrees):
    cluster = machine_cluster(MachineFigures(10**12, 3 * 10**9, 10**9, 700, 900, 10**9), 8)
    rows = []
    for num_blocks in (3, 5):
        monkeypatch.setattr(imported, "_BLOCKS", num_blocks)
        problem = SearchProblem("gpt2", ImportedSource(SMALL), cluster, OpCosts(cluster, "float16"))
        rows.append(Evaluator(problem).row(16, degrees))
    assert rows[0] == rows[1]
    assert (rows[0].method, rows[0].uncovered) == (STAGES, 0)
    whole = Evaluator(problem).simulated(16, degrees)
    assert (whole.makespan_ns, whole.peak_bytes) == (rows[0].makespan_ns, rows[0].peak_bytes)
