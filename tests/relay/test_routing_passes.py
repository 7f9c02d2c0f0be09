"""Passes that specialise routers to a profile: what they change, and that numbers stay."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import tvm
from relay_models import mixed_cluster, module, var
from routed_passes import (
    check_pass,
    early_exit,
    options_of,
    pairs,
    profile_of,
    skewed,
    two_layers,
)
from tvm import relay

from heteroplace.errors import InfeasibleError, RoutingError, SolverError
from heteroplace.files.route_profile_file import save_route_profile
from heteroplace.model.cluster import Cluster
from heteroplace.model.routed.route_profile import RouteProfile
from heteroplace.parts.routing.dynamic.speculated_routes import SpeculationTimes
from heteroplace.parts.routing.relay.branches.branch_uses import branch_uses

pytestmark = pytest.mark.costly


def test_branches_are_alike_but_for_their_weights() -> None:
    uses = branch_uses(two_layers())
    for branches in uses.values():
        assert [use.kind for use in branches] == [0, 0, 0, 1]
        # The last one has two weights of 96 bytes, which kernels take at multiples of 64.
        assert [use.weight_bytes for use in branches] == [64, 64, 64, 256]
        assert [use.row_multiple for use in branches] == [4, 4, 4, 8]
        assert not any(use.holds_router for use in branches)


def test_an_input_that_enters_a_branch_is_no_weight_of_it() -> None:
    (uses,) = branch_uses(early_exit()).values()
    assert [use.weight_bytes for use in uses] == [64, 64]


def test_capacities_are_those_of_the_loads_of_each_kind() -> None:
    mod = two_layers()
    found = check_pass(relay.transform.ChooseCapacities(profile_of(mod, skewed), 3), mod)
    # Loads 5 and 2, pooled; the largest at a multiple of four rows. The wide one had 1 cell.
    assert [each.capacities for each in options_of(found)] == [((2, 5, 8),) * 3 + ((1, 8),)] * 2


def test_percentiles_can_be_asked_for() -> None:
    mod = two_layers()
    made = relay.transform.ChooseCapacities(profile_of(mod, skewed), 1, mode="percentile")
    assert options_of(made(mod))[0].capacities == ((5, 8),) * 3 + ((1, 8),)


def test_few_runs_keep_the_capacities() -> None:
    mod = two_layers()
    made = relay.transform.ChooseCapacities(profile_of(mod, skewed, runs=29))
    assert tvm.ir.structural_equal(made(mod), mod)


def test_the_largest_capacity_stays_where_cells_are_dropped() -> None:
    mod = two_layers(capacities=(1, 2, 3), overflow="drop")
    found = check_pass(relay.transform.ChooseCapacities(profile_of(mod, skewed), 2), mod)
    assert [each.capacities[0] for each in options_of(found)] == [(2, 3)] * 2


def test_branches_of_the_same_cells_share_a_memory() -> None:
    mod, cluster = two_layers(), mixed_cluster()
    found = check_pass(
        relay.transform.PlaceBranches(profile_of(mod, pairs), cluster, by="coactivation"), mod
    )
    first, second = (each.memories.split(",") for each in options_of(found))
    names = {cluster.memories[device.memory].name for device in cluster.devices}
    assert set(first) == set(second) == names
    assert [first[0], first[2], first[1], first[3]] == [second[1], second[3], second[0], second[2]]


def heavy(run: int, router: int) -> tuple[int, ...]:
    return (1, 1, 1, 3, 3, 3, 0, 2)


def test_branches_of_the_same_cells_are_apart_where_devices_are_slow() -> None:
    """Branches 1 and 3 have six of eight cells, some of which go from one to the other: together
    nothing would cross, and one device would do nearly all."""
    mod, cluster = two_layers(), mixed_cluster()

    def mixed(run: int, router: int) -> tuple[int, ...]:
        return (1, 1, 1, 3, 3, 3, 0, 2) if router == 0 else (1, 3, 1, 3, 1, 3, 2, 0)

    def apart(cluster: Cluster) -> list[bool]:
        profile = profile_of(mod, mixed)
        found = relay.transform.PlaceBranches(profile, cluster, by="coactivation")(mod)
        memories = [each.memories.split(",") for each in options_of(found)]
        return [one[1] != one[3] for one in memories]

    assert apart(cluster) == [False, False]
    slow = {"flops_per_second": 10**6, "memory_bytes_per_second": 10**9}
    devices = tuple(replace(device, **slow) for device in cluster.devices)
    assert apart(replace(cluster, devices=devices)) == [True, True]


def test_branches_with_many_cells_lie_where_the_cells_are() -> None:
    """Of 8 cells 2 leave home, for each router, 16 bytes there and as many back."""
    mod, cluster = two_layers(), mixed_cluster()
    found = check_pass(relay.transform.PlaceBranches(profile_of(mod, heavy), cluster), mod)
    for each in options_of(found):
        first, second, third, last = each.memories.split(",")
        assert (first, second) == (third, last)  # the heavy ones are together
        assert first != second


def test_branches_with_many_cells_are_apart_where_devices_are_slow() -> None:
    mod, cluster = two_layers(), mixed_cluster()
    slow = {"flops_per_second": 10**6, "memory_bytes_per_second": 10**9}
    devices = tuple(replace(device, **slow) for device in cluster.devices)
    cluster = replace(cluster, devices=devices)
    found = relay.transform.PlaceBranches(profile_of(mod, heavy), cluster)(mod)
    for each in options_of(found):
        memories = each.memories.split(",")
        assert memories[1] != memories[3]


@pytest.mark.parametrize("by", ["homes", "coactivation"])
def test_memories_that_no_link_joins_are_told(by: str) -> None:
    mod, cluster = two_layers(), mixed_cluster()
    apart = replace(cluster, links=cluster.links[:1])
    with pytest.raises(RoutingError, match="no link leads from the first to the second"):
        relay.transform.PlaceBranches(profile_of(mod, heavy), apart, by=by)(mod)


def test_loads_can_be_balanced_without_decisions_cell_by_cell() -> None:
    """Loads 4, 4, 0 and 1 in the mean: the two heavy branches are apart."""
    mod, cluster = two_layers(), mixed_cluster()
    made = relay.transform.PlaceBranches(profile_of(mod, skewed), cluster, by="balance")
    for each in options_of(made(mod)):
        assert each.memories.split(",")[0] != each.memories.split(",")[1]
    with pytest.raises(
        RoutingError, match="by is 'luck', expected one of homes, coactivation, balance"
    ):
        relay.transform.PlaceBranches(profile_of(mod, skewed), cluster, by="luck")


def test_options_of_the_search_are_those_of_heteroplace() -> None:
    mod, cluster = two_layers(), mixed_cluster()
    make = partial(relay.transform.PlaceBranches, profile_of(mod, heavy), cluster)
    assert all(each.memories for each in options_of(make(time_limit=5, seed=1)(mod)))
    with pytest.raises(SolverError, match="has no option items; it has: time_limit, seed, engine"):
        make(items=2)
    with pytest.raises(SolverError, match="time_limit is '5'; expected a number"):
        make(time_limit="5")


def test_a_small_memory_gets_fewer_branches_where_equal_shares_do_not_fit() -> None:
    mod, cluster = two_layers(), mixed_cluster()
    made = relay.transform.PlaceBranches(profile_of(mod, pairs), cluster)
    assert {each.memories.count(cluster.memories[0].name) for each in options_of(made(mod))} == {2}
    small = replace(cluster.memories[0], bytes=60)
    cluster = replace(cluster, memories=(small, *cluster.memories[1:]))
    made = relay.transform.PlaceBranches(profile_of(mod, pairs), cluster)
    assert {each.memories.count(small.name) for each in options_of(made(mod))} == {0}


def test_weights_that_fit_nowhere_are_told() -> None:
    mod, cluster = two_layers(), mixed_cluster()
    small = tuple(replace(memory, bytes=300) for memory in cluster.memories)
    cluster = replace(cluster, memories=small)
    with pytest.raises(InfeasibleError, match="no placement of"):
        relay.transform.PlaceBranches(profile_of(mod, pairs), cluster)(mod)


def test_a_router_of_whole_tensors_is_predicted_where_that_pays() -> None:
    mod = early_exit()
    often = profile_of(mod, lambda run, _: (0,) if run % 10 else (1,))
    made = relay.transform.SpeculateRoutes
    assert options_of(check_pass(made(often), mod))[0].predict == "0@0.9"
    (name,) = (each.name for each in options_of(mod))
    dear = {name: SpeculationTimes(10, 20, 100)}
    assert options_of(made(often, dear)(mod))[0].predict == ""


def test_a_router_of_rows_is_not_predicted() -> None:
    mod = two_layers()
    made = relay.transform.SpeculateRoutes(profile_of(mod, skewed))
    assert tvm.ir.structural_equal(made(mod), mod)


def test_likely_weights_that_do_not_stay_are_loaded_ahead() -> None:
    """Of 464 bytes 256 are for the largest branch, and three small ones stay in the others; of 528
    as many are for two of them, and all likely ones are loaded ahead, which is worth more."""
    mod = two_layers()
    profile = profile_of(mod, skewed)
    found = check_pass(relay.transform.PreloadWeights(profile, 464, ahead=False), mod)
    assert [each.preload for each in options_of(found)] == [
        "budget 464; keep 0:1000,1:1000; ahead -",
        "budget 464; keep 0:1000; ahead -",
    ]
    found = check_pass(relay.transform.PreloadWeights(profile, 528), mod)
    ahead = "budget 528; keep -; ahead 0:1000,1:1000,3:1000"
    assert [each.preload for each in options_of(found)] == [ahead, ahead]


def test_all_weights_that_fit_stay() -> None:
    mod = two_layers()
    profile = profile_of(mod, skewed)
    assert tvm.ir.structural_equal(relay.transform.PreloadWeights(profile, 896)(mod), mod)
    # Their numbers alone are 768 bytes.
    assert all(
        each.preload for each in options_of(relay.transform.PreloadWeights(profile, 895)(mod))
    )
    with pytest.raises(InfeasibleError, match="a budget of 100 B"):
        relay.transform.PreloadWeights(profile, 100)(mod)


def test_a_profile_of_another_model_is_refused(tmp_path: Path) -> None:
    mod = two_layers()
    path = tmp_path / "routes.json"
    save_route_profile(profile_of(early_exit(), lambda run, _: (0,)), path)
    with pytest.raises(RoutingError, match="the profile is of a model with digest"):
        relay.transform.ChooseCapacities(path)(mod)


def test_a_module_without_routers_is_refused() -> None:
    x = var("x", (1, 2))
    with pytest.raises(RoutingError, match="has no routers"):
        relay.transform.ChooseCapacities(RouteProfile("", ()))(module([x], relay.nn.relu(x)))
