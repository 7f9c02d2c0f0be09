"""Kernels measured on another machine: a server of TVM's RPC, in another process of this one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import tvm
from relay_models import TARGET, compiled_of, cores, cpu_cluster, extraction_of, two_branches
from tvm import rpc

from heteroplace.costs.sampling import SamplingOptions
from heteroplace.costs.store import CostStore
from heteroplace.errors import ClusterError, ExecutionError, MissingCostError
from heteroplace.measure.measure_options import ProfileOptions
from heteroplace.measure.profile import Profile, profile_network
from heteroplace.model.cluster import Cluster, Device, Link, Memory
from heteroplace.parts.hosts.rpc_host import RpcHost

QUICK = ProfileOptions(modes=("hot", "cold"), round_ns=1, sampling=SamplingOptions(max_ns=1))


@pytest.fixture(scope="module")
def remote() -> Iterator[RpcHost]:
    server = rpc.Server("127.0.0.1", silent=True)
    yield RpcHost("far", "127.0.0.1", server.port)
    server.terminate()


def near_and_far() -> Cluster:
    """A core of this machine, and one and two of another."""
    memories = (*cpu_cluster().memories, Memory("far.ram", 2**33))
    links = (Link("out", 0, 1, 10**9, 1000, "eth"), Link("back", 1, 0, 10**9, 1000, "eth"))
    devices = (
        Device("near", "cpu", TARGET, 0, 0, cores()[:1]),
        Device("far.0", "cpu", TARGET, 0, 1, (0,), host="far"),
        Device("far.all", "cpu", TARGET, 0, 1, (0, 1), host="far"),
    )
    return Cluster("two machines", memories, devices, links, 0)


def profile(options: ProfileOptions, remotes: tuple[RpcHost, ...]) -> Profile:
    extraction = extraction_of(two_branches())
    with tvm.transform.PassContext(opt_level=3):
        return profile_network(compiled_of(extraction), near_and_far(), options, remotes)


@pytest.mark.costly
def test_kernels_are_measured_where_their_device_is(remote: RpcHost, tmp_path: Path) -> None:
    with CostStore(tmp_path / "costs.sqlite") as store:
        found = profile(replace(QUICK, store=store), (remote,))
        for row in found.costs.rows:
            assert [cost.reason for cost in row] == ["in place", "alone, hot", "alone, hot"]
            assert all(cost.ns is not None and cost.ns > 0 for cost in row)
        by_device = {key.device for key, _ in store.rows() if key.mode != "in place"}
        assert by_device == {"processor of host far"}
        again = profile(replace(QUICK, store=store), (remote,))
        assert again.num_measured == 0
        assert again.costs == found.costs


def test_a_host_that_is_not_given_is_missed() -> None:
    with pytest.raises(MissingCostError, match=r"far\.0 \(on host 'far'"):
        profile(QUICK, ())


@pytest.mark.costly
def test_a_host_that_does_not_answer_is_named() -> None:
    silent = RpcHost("far", "127.0.0.1", 1)
    with pytest.raises(ExecutionError, match=r"host 'far' \(127.0.0.1:1\).*rpc_server"):
        profile(replace(QUICK, is_in_place=False), (silent,))


@pytest.mark.costly
def test_only_processors_and_gpus_are_measured(remote: RpcHost) -> None:
    with pytest.raises(ClusterError, match="kind 'fpga'"):
        remote.fingerprint(Device("f", "fpga", "llvm", 0, 0, host="far"))
    with pytest.raises(ClusterError, match="has no GPU 7"):
        remote.fingerprint(Device("g", "cuda", "cuda", 7, 0, host="far"))
