"""Interference measured on this machine: shapes, ranges, and where there is nothing to measure."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tvm
from relay_models import compiled_of, conv, cores, cpu_cluster, extraction_of, module, var
from routed_models import switch_layer

from heteroplace.costs.store import CostStore
from heteroplace.lower.compile import CompiledNetwork
from heteroplace.machine.usage import Usage
from heteroplace.measure import measured_interference
from heteroplace.measure.measured_interference import (
    _Found,
    _Measuring,
    fetch_ns_per_byte,
    find_interference,
    measure_interference,
)
from heteroplace.model.cluster import Cluster, Link, Memory
from heteroplace.model.cost import Cost, build_table
from heteroplace.relay.tasks.extract import Extraction
from heteroplace.relay.tasks.network import cut_network
from heteroplace.simulate.interference import Interference

two_cores = pytest.mark.skipif(len(cores()) < 2, reason="needs two cores")


@pytest.fixture(scope="module")
def extraction() -> Extraction:
    # Kernels long enough that two medians are hardly ever the same tick of the clock.
    data = var("data", (1, 16, 64, 64))
    return extraction_of(module([data], conv(conv(data, 16, 16), 16, 16)))


def measured(extraction: Extraction, cluster: Cluster) -> Interference:
    with tvm.transform.PassContext(opt_level=3):
        found = measure_interference(compiled_of(extraction), cluster)
    found.check(extraction.graph, cluster)
    shape = (len(extraction.graph.tasks), len(cluster.devices))
    assert found.slowdown.shape == found.copy_slowdown.shape == shape
    for scatter in found.scatter:
        assert scatter.shape[1] == shape[0]
        assert (scatter > 0).all()
    return found


@pytest.mark.costly
@two_cores
def test_cores_of_one_memory_disturb_each_other(extraction: Extraction) -> None:
    cluster = cpu_cluster()
    found = measured(extraction, cluster)
    singles = [i for i, device in enumerate(cluster.devices) if len(device.cores) == 1]
    assert (found.slowdown[:, singles] != 1).any()
    assert (found.copy_slowdown == 1).all()
    assert found.core_to_core_ns > 0
    assert found.fetch_ns_per_byte >= 0


@pytest.mark.costly
def test_a_device_alone_is_not_disturbed(extraction: Extraction) -> None:
    cluster = cpu_cluster()
    cluster = replace(cluster, devices=cluster.devices[:1])
    found = measured(extraction, cluster)
    assert (found.slowdown == 1).all()
    assert (found.core_to_core_ns, found.fetch_ns_per_byte) == (0, 0)


@pytest.mark.costly
@two_cores
@pytest.mark.parametrize("model", ["big", "little"])
def test_fetching_is_measured_between_devices_that_are_alike(
    extraction: Extraction, monkeypatch: pytest.MonkeyPatch, model: str
) -> None:
    """On another kind of core tasks take another time, whatever they fetch."""
    monkeypatch.setattr(measured_interference, "line_fit", lambda *_args, **_others: (7.0,))
    cluster = cpu_cluster()
    first = replace(cluster.devices[0], cores=cores()[:1], model="big")
    second = replace(first, name="second", cores=cores()[1:2], model=model)
    found = measured(extraction, replace(cluster, devices=(first, second)))
    assert found.fetch_ns_per_byte == (7.0 if model == "big" else 0.0)
    assert found.core_to_core_ns > 0


@pytest.mark.costly
@two_cores
def test_what_is_found_in_a_store_is_at_the_pace_of_costs(
    extraction: Extraction, tmp_path: Path
) -> None:
    """Costs may have been measured since, when the machine was quicker or slower."""
    cluster = cpu_cluster()
    cluster = replace(cluster, devices=cluster.devices[:2])
    with CostStore(tmp_path / "costs.sqlite") as store, tvm.transform.PassContext(opt_level=3):
        compiled = compiled_of(extraction)
        first = measure_interference(compiled, cluster, store=store)
        for later in (
            measure_interference(compiled, cluster, store=store),
            find_interference(compiled, cluster, store),
        ):
            assert later is not None
            np.testing.assert_array_equal(later.slowdown, first.slowdown)
            assert later.core_to_core_ns == first.core_to_core_ns
            costs = build_table(
                extraction.graph, cluster, lambda task, device: Cost.measured(10**9)
            )
            assert (first.pace(costs) < 1).all()
            assert (later.pace(costs) == 1).all()


@pytest.mark.costly
@two_cores
def test_copies_disturb_where_there_are_links(extraction: Extraction) -> None:
    cluster = cpu_cluster()
    first = cluster.devices[0]
    cluster = replace(
        cluster,
        memories=(*cluster.memories, Memory("far", 2**32)),
        devices=(first, replace(first, name="far", memory=1, cores=(cores()[1],))),
        links=(Link("there", 0, 1, 10**9, 0, "a"), Link("back", 1, 0, 10**9, 0, "b")),
    )
    found = measured(extraction, cluster)
    assert (found.copy_slowdown != 1).any()
    # Devices of different memories are not beside each other.
    assert (found.slowdown == 1).all()


@pytest.mark.costly
def test_a_part_of_the_devices_keeps_its_figures(extraction: Extraction) -> None:
    cluster = cpu_cluster()
    found = measured(extraction, cluster)
    last = len(cluster.devices) - 1
    part = replace(cluster, devices=cluster.devices[last:])
    of_part = found.on([last], part)
    of_part.check(extraction.graph, part)
    np.testing.assert_array_equal(of_part.slowdown, found.slowdown[:, last:])


@pytest.mark.costly
@two_cores
def test_of_a_routed_network_all_branches_are_beside_each_other() -> None:
    cluster = cpu_cluster()
    with tvm.transform.PassContext(opt_level=3):
        compiled = CompiledNetwork.of(cut_network(switch_layer()))
        found = measure_interference(compiled.at_capacity(4), cluster)
    found.check(compiled.graph, cluster)
    singles = [i for i, device in enumerate(cluster.devices) if len(device.cores) == 1]
    branches = [i for i, task in enumerate(compiled.graph.tasks) if task.branch is not None]
    assert (found.alone_ns[np.ix_(branches, singles)] > 0).all()
    assert (found.slowdown[np.ix_(branches, singles)] != 1).any()


@pytest.mark.costly
def test_runs_that_are_rounds_scatter_around_their_common_median(
    extraction: Extraction, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measured_interference, "_ROUND_NS", 1)
    monkeypatch.setattr(measured_interference, "_MIN_LONG_ROUNDS", 3)
    cluster = cpu_cluster()
    (scatter,) = measured(extraction, replace(cluster, devices=cluster.devices[:1])).scatter
    assert len(scatter) >= 3
    assert (scatter != 1).any()
    np.testing.assert_allclose(np.median(scatter, axis=0), 1)


@pytest.mark.parametrize(
    ("num_runs", "times", "num_rounds"),
    [
        (9, [100.0, 100.0, 101.0], 3),
        (1, [100.0, 101.0], 2),
        (1, [100.0, 103.0] * 4, 7),
    ],
    ids=["runs", "long runs", "apart"],
)
def test_rounds_end_once_they_agree(
    num_runs: int, times: list[float], num_rounds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rounds = [_round_of(time, num_runs) for time in times]
    measuring = _Measuring.__new__(_Measuring)
    measuring._num_runs, measuring._is_own = num_runs, np.array([True])
    monkeypatch.setattr(measuring, "_round", lambda: rounds.pop(0))
    monkeypatch.setattr(Usage, "others_since", lambda *_: 0.0)
    counted = list[int]()
    result = measuring.measure(lambda done, _: counted.append(done))
    assert len(counted) == num_rounds
    assert result.alone_ns == np.median(times[:num_rounds])


def _round_of(alone_ns: float, num_runs: int) -> _Found:
    one = np.array([alone_ns])
    return _Found(one, np.ones(1), np.ones(1), np.ones((num_runs, 1)), 0.0, 0)


def test_time_for_each_fetched_byte() -> None:
    sizes, times = np.array([0.0, 1.0, 2.0]), np.array([5.0, 2.0, 4.0])
    assert fetch_ns_per_byte(sizes, times) == pytest.approx(2.0)
    assert fetch_ns_per_byte(np.zeros(2), np.ones(2)) == 0.0
