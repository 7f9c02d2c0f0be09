"""Commands over hosts: whose machine is which host, what is measured, and how ranks end."""

from __future__ import annotations

import os
from pathlib import Path

import onnx
import pytest
from thread_ranks import on_ranks

from benchmarks.ranks.launch import command_of, run_ranks
from heteroplace.cli.job import ended_together
from heteroplace.cli.machine.profile_extras import check_over_hosts
from heteroplace.cli.profile_command import Extras
from heteroplace.costs.store import CostStore
from heteroplace.errors import ClusterError, ExecutionError, HeteroPlaceError
from heteroplace.files.cluster_file import save_cluster
from heteroplace.files.costs_file import load_costs
from heteroplace.files.graph_file import load_graph
from heteroplace.machine.probe import local_cpu_cluster
from heteroplace.model.cluster import Cluster
from heteroplace.parts.hosts.machines import hosts_of_cores, join_machines
from heteroplace.parts.hosts.mpi import MpiRanks
from heteroplace.parts.hosts.native.core_ranks import Group, launched_ranks, local_transports
from heteroplace.run.transport import Ranks
from zoo.models.catalogue import onnx_model_of

TIMEOUT_S = 300.0


def test_ranks_of_one_machine_become_hosts_that_share_it() -> None:
    cores = tuple(sorted(os.sched_getaffinity(0)))

    def join(ranks: Ranks) -> Cluster:
        return join_machines(ranks, cores, lambda own: local_cpu_cluster("llvm", own))

    if len(cores) < 2:
        with pytest.raises(ClusterError, match=r"2 ranks on .* share the cores"):
            on_ranks(2, join)
        return
    one, other = on_ranks(2, join)
    assert one == other
    assert [host[-2:] for host in one.hosts] == [".0", ".1"]
    of_host = [
        {core for device in one.devices if device.host == host for core in device.cores}
        for host in one.hosts
    ]
    assert not of_host[0] & of_host[1]
    assert of_host[0] | of_host[1] == set(cores)
    whole = local_cpu_cluster("llvm", cores).memories[0].bytes
    assert [memory.bytes for memory in one.memories] == [whole // 2] * 2


@pytest.mark.parametrize(
    ("environment", "num_ranks"),
    [
        ("", 1),
        ("OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=3", 3),
        ("PMI_RANK=0 PMI_SIZE=2", 2),
        ("PMIX_RANK=0 PMIX_SIZE=2", 2),
        ("PMIX_RANK=1 SLURM_STEP_NUM_TASKS=4", 4),
        ("PMI_RANK=0 PMI_SIZE=two SLURM_STEP_NUM_TASKS=2", 2),
        ("SLURM_STEP_NUM_TASKS=4", 1),  # programs that are alone
        ("PMI_RANK=0", 1),
    ],
)
def test_launchers_are_known_by_what_they_write(
    environment: str, num_ranks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in os.environ:
        if name.startswith(("OMPI_", "PMI", "SLURM_")):
            monkeypatch.delenv(name)
    for setting in environment.split():
        monkeypatch.setenv(*setting.split("="))
    assert launched_ranks() == num_ranks


@pytest.mark.parametrize("silence_s", [0.0, 1e-10, 2e9, float("nan")])
def test_a_silence_that_nobody_could_hear_is_refused(silence_s: float) -> None:
    (alone,) = local_transports(1)
    with pytest.raises(ExecutionError, match=f"silence_s is {silence_s}; expected 0.001 to 1e"):
        Group(alone, silence_s)


class _Comm:
    """A communicator that counts how often it ends the job."""

    rank, size = 1, 2
    aborted = 0

    def Abort(self, code: int) -> None:  # noqa: N802  (mpi4py's name)
        self.aborted += code


def test_an_error_on_one_rank_ends_all(capsys: pytest.CaptureFixture[str]) -> None:
    comm = _Comm()
    # The launcher ends this rank a moment later, so the command must not go on.
    with pytest.raises(ClusterError, match="no such core"), ended_together(MpiRanks(comm)):
        raise ClusterError("no such core")
    assert comm.aborted == 1
    assert capsys.readouterr().err == "error on rank 1: no such core\n"


@pytest.mark.parametrize(
    ("extras", "flag"),
    [
        (Extras(has_interference=True), "--interference"),
        (Extras(predicts_absent=True), "--predict"),
        (Extras(remotes=(("b", "box", 9090),)), "--rpc"),
    ],
)
def test_what_one_process_does_over_all_devices_is_refused(extras: Extras, flag: str) -> None:
    with pytest.raises(HeteroPlaceError, match=f"{flag}: one process does it"):
        check_over_hosts(extras)


@pytest.mark.slow
def test_profile_measures_all_hosts_into_one_store(launcher: str, tmp_path: Path) -> None:
    model, hosts, store = (str(tmp_path / name) for name in ("m.onnx", "c.json", "costs.sqlite"))
    costs, graph = str(tmp_path / "costs.json"), str(tmp_path / "graph.json")
    onnx.save(onnx_model_of("t5_encoder"), model)
    cluster = hosts_of_cores(["a", "b"])
    save_cluster(cluster, hosts)
    arguments = ["profile", model, "--cluster", hosts, "--store", store]
    told = run_ranks(2, command_of(*arguments, "-o", costs, "--graph-out", graph), None, TIMEOUT_S)
    assert "0 measurements known" in told
    found = load_graph(graph).graph
    table = load_costs(costs, found, cluster)
    assert all(cost.source == "measured" for row in table.rows for cost in row)
    with CostStore(store) as kept:
        num_kept = len(kept)
    assert num_kept > 0
    # Both hosts are cores of one machine, so that they know the same.
    told = run_ranks(2, command_of(*arguments), None, TIMEOUT_S)
    assert f"{2 * num_kept} measurements known, 0 made" in told


@pytest.mark.slow
def test_a_probe_with_too_few_ranks_ends_with_the_reason(launcher: str, tmp_path: Path) -> None:
    hosts = str(tmp_path / "hosts.json")
    save_cluster(hosts_of_cores(["a", "b", "c"]), hosts)
    with pytest.raises(
        ExecutionError, match=r"there are 2 ranks; start one for each: mpiexec -n 3"
    ):
        run_ranks(2, command_of("probe", "--cluster", hosts, "--quick"), None, TIMEOUT_S)
