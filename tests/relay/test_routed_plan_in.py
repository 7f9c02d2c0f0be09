"""Saved plans of networks with routers, and what they are never placed on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from item_plans import with_second_memory
from relay_models import cpu_cluster
from routed_models import Shape, costs_by_capacity, switch_layer

import heteroplace
from heteroplace import pipeline
from heteroplace.errors import PlanError, UnsupportedRelayError
from heteroplace.files.plan_file import save_plan
from heteroplace.lower.compile import CompiledNetwork
from heteroplace.model.cost import CostTable
from heteroplace.pipeline import CostedNetwork
from heteroplace.relay.tasks.network import cut_network
from heteroplace.solve.plan_in import read_plan_in
from heteroplace.solve.problem import SolveOptions


@pytest.mark.costly
def test_a_saved_plan_is_taken_for_its_own_network_only(tmp_path: Path) -> None:
    cluster, options = with_second_memory(cpu_cluster()), SolveOptions(time_limit_s=1)
    network = cut_network(switch_layer())
    costs = costs_by_capacity(network.graph, cluster)
    costed = CostedNetwork(CompiledNetwork.of(network), cluster, costs, None)
    solution = pipeline.solve(costed, options, "heft")
    path = tmp_path / "plan.json"
    save_plan(solution.plan, network.graph, cluster, path)
    saved = read_plan_in(path)
    again = pipeline.solve(costed, options, plan=saved.plan_for(network.graph, cluster))
    assert again.plan.steps == solution.plan.steps
    assert again.objective_ns == solution.objective_ns
    other = cut_network(switch_layer(Shape(capacities=(2, 16))))
    with pytest.raises(PlanError, match="give a plan of this graph"):
        saved.plan_for(other.graph, cluster)


def test_several_hosts_are_refused_before_anything_is_measured() -> None:
    cluster = with_second_memory(cpu_cluster())
    *near, last = cluster.devices
    hosts = replace(cluster, devices=(*near, replace(last, host="far")))

    def measured(*_: object) -> CostTable:
        raise AssertionError("costs are asked for")

    with pytest.raises(UnsupportedRelayError, match="give a cluster of the devices of one"):
        heteroplace.build(switch_layer(), hosts, costs=measured)
