"""A plan of several ranks -> the run time to expect, as its tasks disturb each other.

Costs are measured while other devices rest; ranks mostly work at the same time. How tasks slow each
other and scatter is measured in the network whose kernels were measured (`measure.interference`).
"""

from __future__ import annotations

from heteroplace.measure.cost_models.model import CostOptions
from heteroplace.measure.interference import measure_interference
from heteroplace.model.cluster import Cluster
from heteroplace.model.collectives import collective_kind
from heteroplace.model.cost import CostTable
from heteroplace.model.graph import TaskGraph
from heteroplace.model.plan import Plan
from heteroplace.model.solution import RunTime
from heteroplace.sharding.costs import MeasuredNetwork
from heteroplace.sharding.options import ShardOptions
from heteroplace.simulate.expect import expect
from heteroplace.simulate.interference import Interference
from heteroplace.transforms.recompute import plain_name


def interference_of(
    measured: MeasuredNetwork, cluster: Cluster, options: ShardOptions
) -> Interference:
    """Measure how the tasks of a measured network disturb each other.

    Raises
    ------
    HeteroPlaceError
        As `measure_interference`.
    """
    with CostOptions(options.store).open_store() as store:
        return measure_interference(measured.compiled, cluster, options.say, store)


def expected_time(
    graph: TaskGraph,
    cluster: Cluster,
    table: CostTable,
    plan: Plan,
    measured: MeasuredNetwork,
    interference: Interference,
) -> RunTime:
    """Return how long a plan of a rewritten graph is expected to run.

    Parameters
    ----------
    graph, table
        What rewrites have made of the measured network, and its costs.
    interference
        Of the measured network.
    """
    position = {task.name: index for index, task in enumerate(measured.sharded.graph.tasks)}
    rows = [
        None if collective_kind(task.op) is not None else position[plain_name(task.name)]
        for task in graph.tasks
    ]
    found = expect(graph, cluster, table, plan, interference.of_tasks(graph, cluster, rows))
    return RunTime(found.makespan_ns, found.low_ns, found.high_ns)
