"""An ONNX file and a cluster -> task graph and measured costs. Loaded late, as it needs TVM."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import tvm

from heteroplace import pipeline
from heteroplace.cli.machine.profile_extras import (
    check_estimated_batch,
    check_over_hosts,
    estimate_batch,
    interference_notes,
)
from heteroplace.cli.models.input_shapes import INPUT_OPTION, as_options
from heteroplace.cli.profile_command import Extras, GivenInputs
from heteroplace.costs.prediction.predict import predict_costs
from heteroplace.errors import ClusterError, MissingCostError
from heteroplace.frontends import frontend_of
from heteroplace.lower.compile import CompiledNetwork
from heteroplace.measure.batches import of_batch
from heteroplace.measure.example_inputs import read_examples
from heteroplace.measure.measure_options import ProfileOptions
from heteroplace.measure.measured_interference import measure_interference
from heteroplace.measure.model_profile import ModelProfile
from heteroplace.measure.profile import Profile, join_batches, profile_network, with_workspaces
from heteroplace.measure.remote_host import RemoteHost
from heteroplace.measure.sequential import measure_sequential
from heteroplace.model.cluster import Cluster
from heteroplace.run.missing_devices import missing_devices
from heteroplace.run.transport import Ranks, check_ranks, host_transport
from heteroplace.stage_log import StageLog

OPT_LEVEL = 3


def profile_model(
    path: Path,
    cluster: Cluster,
    options: ProfileOptions,
    remotes: Sequence[RemoteHost],
    extras: Extras,
    given: GivenInputs,
) -> ModelProfile:
    """Import, optimise and cut a model, and measure its kernels on the devices of a cluster.

    Parameters
    ----------
    path
        Of an ONNX file, whose inputs hold one item.
    cluster
        Whose devices are measured.
    options
        How; what `extras` say is put into them.
    remotes
        Where the devices of other hosts are.
    extras
        What else is found out.
    given
        Inputs of the model.

    Raises
    ------
    FrontendError, UnsupportedRelayError
        The file cannot be read, sizes of its inputs are missing or wrong, or the model cannot be
        placed, or not for several items at once.
    ClusterError
        `remotes` names a host on which no device of the cluster is.
    MissingCostError, LoweringError, ExecutionError, CostStoreError
        See `profile_network`.
    InfeasibleError
        A device is too small for what `extras` ask for.
    SolverError
        The batch that `extras` estimate is small enough to be measured, or is measured.
    """
    batches = sorted({1, *extras.batches})
    _check_hosts(cluster, remotes)
    _check_extras(cluster, batches, extras)
    logging.getLogger("autotvm").setLevel(logging.ERROR)  # that schedules are not tuned, is known
    log = StageLog.of(options.progress)
    options = replace(options, skips_absent=extras.predicts_absent)
    log.say(f"Reading {path}")
    with as_options(INPUT_OPTION):
        imported = frontend_of(path).import_file(path, shapes=given.shapes, values=given.values)
    with tvm.transform.PassContext(opt_level=OPT_LEVEL):
        network = pipeline.prepare(imported.mod, imported.params, log)
        network = network.with_examples(read_examples(given.arrays))
        log.say("Compiling kernels")
        hosts = [remote.host for remote in remotes]
        network_only = CompiledNetwork.of(network)
        single = with_workspaces(
            network_only, cluster, hosts, options.skips_absent, on_kernel=log.count
        )
        graph = single.graph
        profiles: dict[int, Profile] = {}
        for batch in batches:
            compiled = single if batch == 1 else of_batch(single, batch)
            chosen = replace(options, batch=batch, budget_s=_left_s(options, profiles))
            profiles[batch] = profile_network(compiled, cluster, chosen, remotes)
        tables = {batch: each.costs for batch, each in profiles.items()}
        if extras.sequential_order is not None:
            log.say("Measuring over several devices, one after the other")
            sequential = measure_sequential(single, cluster, tables[1], extras.sequential_order)
            tables[1] = sequential.costs
        peaks: dict[str, int] = {}
        if extras.estimated_batch is not None:
            large = extras.estimated_batch
            tables[large], peaks = estimate_batch(imported, graph, cluster, large, options)
        interference = None
        if extras.has_interference:
            interference = measure_interference(single, cluster, log, options.store)
            if options.store is not None:
                options.store.add_many([], interference_notes(graph, cluster, interference))
    costs = join_batches(graph, cluster, tables)
    if extras.predicts_absent:
        costs = predict_costs(graph, cluster, costs)
    return ModelProfile(graph, costs, profiles, interference, peaks)


def profile_over_hosts(
    path: Path,
    cluster: Cluster,
    options: ProfileOptions,
    extras: Extras,
    ranks: Ranks,
    given: GivenInputs,
) -> ModelProfile:
    """Measure a model on all hosts of a cluster, rank i on `cluster.hosts[i]`; all ranks.

    Parameters
    ----------
    path
        Of the same ONNX file on every host.
    options
        Its `store`, of the first rank, has what all measured: of the other hosts at the end.

    Raises
    ------
    HeteroPlaceError
        As `check_over_hosts`, `check_ranks`, `profile_model` and the transport.
    """
    check_over_hosts(extras)
    check_ranks(cluster, ranks)

    def profile(part: Cluster, chosen: ProfileOptions) -> ModelProfile:
        return profile_model(path, part, chosen, (), extras, given)

    joined: ModelProfile = host_transport().profile_hosts(cluster, ranks, options, profile)
    return joined


def _left_s(options: ProfileOptions, profiles: dict[int, Profile]) -> float | None:
    """The budget that earlier batch sizes have left."""
    if options.budget_s is None:
        return None
    return max(0.0, options.budget_s - sum(profile.measure_s for profile in profiles.values()))


def _check_hosts(cluster: Cluster, remotes: Sequence[RemoteHost]) -> None:
    hosts = sorted({device.host for device in cluster.devices if device.host})
    for remote in remotes:
        if remote.host not in hosts:
            raise ClusterError(
                f"--rpc names host {remote.host!r}, on which cluster {cluster.name!r} has no "
                f"device; its hosts: {', '.join(hosts) or 'none, all devices are in this machine'}"
            )


def _check_extras(cluster: Cluster, batches: Sequence[int], extras: Extras) -> None:
    """Raise before anything is measured if what else is asked for would fail after it."""
    if extras.estimated_batch is not None:
        check_estimated_batch(extras.estimated_batch, batches)
    absent = missing_devices(cluster, [device.name for device in cluster.devices])
    if extras.estimated_batch is not None and len(absent) == len(cluster.devices):
        raise MissingCostError(
            f"a batch is estimated from smaller ones that are measured, and no device of cluster "
            f"{cluster.name!r} is in this machine: {'; '.join(absent)}. Use another cluster, or "
            f"leave out --estimate-batch"
        )
    for what, is_asked, advice in (
        ("interference", extras.has_interference, "leave out --interference"),
        (
            "a batch that is estimated",
            extras.estimated_batch is not None and not extras.predicts_absent,
            "give --predict, or leave out --estimate-batch",
        ),
    ):
        if is_asked and absent:
            raise MissingCostError(
                f"{what} cannot be measured on devices that are not in this machine: "
                f"{'; '.join(absent)}. Use another cluster, or {advice}"
            )
