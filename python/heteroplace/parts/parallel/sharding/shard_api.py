"""`heteroplace.shard` and the pass `Shard`: a Relay module -> the same, shared by devices.

The result is the module of one microbatch of one replica, cut into lanes, with its plan; stock TVM
runs it on one device, and `heteroplace.build` on all of them.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import tvm

from heteroplace.errors import ShardingError
from heteroplace.interrupts import interruptible
from heteroplace.machine.local import open_cluster
from heteroplace.model.cluster import Cluster
from heteroplace.model.demands import check_reachable
from heteroplace.model.digests import is_same_but_batches
from heteroplace.parts.parallel.sharding.degree_search import search_degrees
from heteroplace.parts.parallel.sharding.model_source import ModelSource
from heteroplace.parts.parallel.sharding.shard_options import ShardOptions, read_shard_options
from heteroplace.parts.parallel.sharding.sharded_plan import ShardedModel
from heteroplace.relay.annotate.annotation_reader import read_solution
from heteroplace.relay.annotate.requested_options import other_options, with_requested_options
from heteroplace.relay.annotate.sharded_attribute import read_sharded
from heteroplace.relay.opt_level import default_opt_level, warn_of_low_level
from heteroplace.relay.parameters import check_module

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from heteroplace.parts.parallel.sharding.shard_keywords import ShardKeywords


@default_opt_level()
def shard(
    mod: tvm.IRModule,
    cluster: Cluster | str | os.PathLike[str],
    *,
    params: Mapping[str, tvm.nd.NDArray | np.ndarray] | None = None,
    **options: Unpack[ShardKeywords],
) -> tvm.IRModule:
    """Share a module by the devices of a cluster: data, tensor and pipeline parallelism.

    Parameters
    ----------
    mod
        A Relay module whose inputs hold one row of a batch along axis 0, or the rows of a
        microbatch.
    cluster
        As of `HeteroPlace`.
    params
        Weights, if they are not bound into the module. To train, they must be given.
    options
        Those of `ShardOptions`, e.g. `batch=64` (always needed), `degrees="auto"`, or
        `data=2, tensor=2, pipeline=2, micro_batches=4`, `schedule="1f1b"`; to train,
        `optimizer="sgd:0.1"`, `zero=2`.

    Returns
    -------
    mod
        What `heteroplace.build` compiles. Its inputs and outputs hold the whole batch then.

    Raises
    ------
    ShardingError
        An option is wrong, degrees do not divide the batch, or need too many devices.
    InfeasibleError
        Nothing fits into memory; or these degrees do not.
    ClusterError, UnsupportedRelayError, TrainingError, MissingCostError
        See `plan_model` and `search_degrees`.

    Examples
    --------
    >>> sharded = shard(mod, "local", batch=64, params=params, data=2)  # doctest: +SKIP
    """
    chosen = read_shard_options(options)
    return with_requested_options(
        shard_model(mod, cluster, params, chosen).to_module(), vars(chosen)
    )


def shard_model(
    mod: tvm.IRModule,
    cluster: Cluster | str | os.PathLike[str],
    params: Mapping[str, tvm.nd.NDArray | np.ndarray] | None,
    options: ShardOptions,
) -> ShardedModel:
    """Plan a module as the options say; parameters and errors as of `shard`."""
    check_module(mod)
    if read_solution(mod) is not None or read_sharded(mod) is not None:
        raise ShardingError(
            "the module is placed or shared already; start from the module before that"
        )
    if not isinstance(cluster, Cluster):
        cluster = open_cluster(cluster)
    check_reachable(cluster)
    warn_of_low_level(tvm.transform.PassContext.current())
    source = ModelSource(mod, params, options)
    return search_degrees(source, cluster, options).best


class _ShardPass:
    """Implementation of the pass for TVM's decorator; one object for one set of options."""

    def __init__(
        self, cluster: Cluster, params: Mapping[str, Any] | None, options: ShardOptions
    ) -> None:
        self._cluster, self._params, self._options = cluster, params, options

    @interruptible
    @default_opt_level()
    def transform_module(
        self, mod: tvm.IRModule, context: tvm.transform.PassContext
    ) -> tvm.IRModule:
        """Share `mod`, unless it is shared by this cluster already."""
        sharded = read_sharded(mod)
        if sharded is None or not is_same_but_batches(sharded[0].solution.cluster, self._cluster):
            shared = shard_model(mod, self._cluster, self._params, self._options).to_module()
            return with_requested_options(shared, vars(self._options))
        if others := other_options(mod, vars(self._options)):
            raise ShardingError(
                f"the module is shared already, and not by this {', '.join(others)}; to share it "
                f"anew, start from the module before the first Shard"
            )
        return mod


def Shard(  # noqa: N802  (TVM's passes are factories named like classes)
    cluster: Cluster | str | os.PathLike[str],
    *,
    params: Mapping[str, tvm.nd.NDArray | np.ndarray] | None = None,
    **options: Unpack[ShardKeywords],
) -> tvm.transform.ModulePass:
    """Return the pass that does what `shard` does; the same parameters, but the module.

    Running it on its own output changes nothing; with other options it is a ShardingError.

    Raises
    ------
    ShardingError, ClusterError
        An option or the cluster is wrong; see `shard`.
    """
    chosen = read_shard_options(options)  # wrong ones are told now, not when the pass runs
    if not isinstance(cluster, Cluster):
        cluster = open_cluster(cluster)
    make = tvm.transform.module_pass(_ShardPass, opt_level=0, name="Shard")
    return make(cluster, params, chosen)
