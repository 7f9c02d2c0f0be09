"""Networks with many routers: what an executor counts of its predictions is what the trace says."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.dynamic.placement import spread_cluster
from benchmarks.dynamic.speculation import HabitRuns, replayed_hits, trace_hits
from benchmarks.peers.stock import in_pass_context
from heteroplace import pipeline
from heteroplace.errors import HeteroPlaceError
from heteroplace.lower.executable import Executable
from heteroplace.measure.cost_models.cost_model import CostOptions, choose_cost_model
from heteroplace.model.cost import batches_of
from heteroplace.parts.routing.dynamic.traces import TraceOptions
from heteroplace.parts.routing.relay.passes import SpeculateRoutes
from heteroplace.parts.routing.solve.routed_network import solve_routed
from heteroplace.parts.routing.tasks.branch_options import predictions_of
from heteroplace.run.executor import Executor
from heteroplace.solve.problem import SolveOptions
from zoo.models.routed_vision import dynamic_routing

pytestmark = pytest.mark.relay


def built_with_predictions(runs: HabitRuns) -> Executable:
    """All routers are predicted whose most frequent set is more than half of the trace."""
    cluster = spread_cluster(1)
    model = choose_cost_model("estimate", CostOptions())
    mod = SpeculateRoutes(runs.profile)(runs.network.bound)
    network = pipeline.prepare(mod, runs.network.params, cluster=cluster)
    compiled = pipeline.compile(network, cluster, model)
    batches = batches_of(cluster, 1, compiled.graph)
    costed = pipeline.cost(compiled, cluster, model, batches=batches)
    predictions = [replace(each, probability=None) for each in predictions_of(network)]
    asked = costed.graph, cluster, costed.costs, SolveOptions(), "heft"
    return pipeline.build(compiled, solve_routed(*asked, runs.profile, predictions))


@pytest.mark.parametrize(
    ("layers", "width", "num_routers"),
    [
        pytest.param(3, 1, 5, marks=pytest.mark.costly(10)),
        pytest.param(48, 8, 186, marks=[pytest.mark.slow, pytest.mark.timeout(3600)]),
    ],
)
def test_the_executor_counts_the_hits_of_the_trace(
    layers: int, width: int, num_routers: int
) -> None:
    network = dynamic_routing(layers, 2 if layers < 4 else 4, size=8, width=width)
    assert len(network.routers) == num_routers
    runs = HabitRuns(network, TraceOptions(num_runs=32))
    with in_pass_context():
        built = built_with_predictions(runs)
    expected = trace_hits(built.solution, runs.records)
    assert num_routers // 2 < len(expected) <= num_routers  # others have no habit in so few runs
    assert 0 < sum(expected.values()) < 32 * num_routers
    assert replayed_hits(Executor(built), built.solution, runs) == expected
    used = Executor(built)
    used.run(runs.inputs()[0])
    with pytest.raises(HeteroPlaceError, match=r"of 33, expected \d+ of 32"):
        replayed_hits(used, built.solution, runs)
