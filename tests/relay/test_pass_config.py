"""Options of the pass in the configuration of a PassContext."""

from __future__ import annotations

import pytest
import tvm
from relay_models import cpu_cluster, random_costs, two_branches
from tvm import relay

from heteroplace.errors import SolverError
from heteroplace.lower.compile import CompiledNetwork
from heteroplace.measure.kernels.kernel_identity import describe_kernels
from heteroplace.place_options import CONFIG_PREFIX
from heteroplace.relay.annotate.annotation_reader import read_solution
from heteroplace.relay.tasks.network import cut_network


def placed(config: dict[str, object], **keywords: object) -> list[str]:
    """The names of the devices that the tasks of a small network got."""
    named = {CONFIG_PREFIX + name: value for name, value in config.items()}
    with tvm.transform.PassContext(opt_level=3, config=named):
        mod = relay.transform.HeteroPlace(cpu_cluster(), costs=random_costs, **keywords)(
            two_branches()
        )
    solution = read_solution(mod)
    assert solution is not None
    devices = solution.plan.placement(len(solution.graph.tasks))
    return [solution.cluster.devices[device].name for device in devices]


def test_options_come_from_the_configuration() -> None:
    names = [device.name for device in cpu_cluster().devices]
    config = {"solver": "single", "exclude": names[1:], "time_limit": 1.0, "seed": 3}
    assert set(placed(config)) == {names[0]}


def test_a_keyword_goes_before_the_configuration() -> None:
    first, *_, last = (device.name for device in cpu_cluster().devices)
    config = {"solver": "single", "pin": [f"*={first}"]}
    assert set(placed(config)) == {first}
    assert set(placed(config, pin={"*": last})) == {last}


def test_a_wrong_value_is_an_error_of_ours() -> None:
    with pytest.raises(SolverError, match="no solver is called 'none'"):
        placed({"solver": "none"})


def test_a_wrong_pin_is_an_error_of_ours() -> None:
    with pytest.raises(SolverError, match=r"pin \['conv'\]: expected PATTERN=DEVICE"):
        placed({"pin": ["conv"]})


def test_an_unknown_key_is_refused_by_tvm() -> None:
    with pytest.raises(AttributeError, match="Invalid config option"):
        placed({"sovler": "heft"})


def test_kernels_are_the_same_whatever_the_pass_is_told() -> None:
    compiled = CompiledNetwork.of(cut_network(two_branches()))
    calls = compiled.calls(cpu_cluster(), [0] * len(compiled.graph.tasks))
    seen = []
    for config in ({}, {f"{CONFIG_PREFIX}seed": 3}, {"tir.disable_vectorize": True}):
        with tvm.transform.PassContext(opt_level=3, config=config):
            found = describe_kernels(calls)
        seen.append({kernel.identity for kernel in found.values()})
    assert seen[0] == seen[1] != seen[2]
