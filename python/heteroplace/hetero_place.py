"""The pass `HeteroPlace(cluster)`: a Relay module in, the same module placed over a cluster out.

The stages are those of `pipeline`. Options come as keywords, or as `relay.HeteroPlace.NAME` in
the configuration of a PassContext; a keyword goes first.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import tvm

from heteroplace import pipeline
from heteroplace.entries import load_entry
from heteroplace.errors import LoweringError, PlanError
from heteroplace.interrupts import interruptible
from heteroplace.lower.executable import Executable
from heteroplace.machine.local import open_cluster
from heteroplace.model.cluster import Cluster
from heteroplace.model.demands import with_max_memory
from heteroplace.model.digests import is_same_but_batches
from heteroplace.model.implementations import without_twins
from heteroplace.pipeline.module_contents import READ_SHARDED
from heteroplace.place_options import CONFIG_PREFIX, read_options
from heteroplace.precision_option import check_verify
from heteroplace.relay.annotate.annotation_reader import is_sharded, read_solution
from heteroplace.relay.annotate.requested_options import other_options
from heteroplace.relay.opt_level import default_opt_level
from heteroplace.relay.parameters import check_module, check_params
from heteroplace.tvm_bridge import pass_config

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from heteroplace.option_keywords import PlaceKeywords

_WITH_VERIFY_INPUTS = "heteroplace.pipeline.verify_inputs:with_verify_inputs"
"""Loaded for a placed module that is to be compared on given inputs."""


class _HeteroPlacePass:
    """Implementation of the pass for TVM's decorator; one object for one set of options."""

    def __init__(self, cluster: Cluster, keywords: Mapping[str, Any]) -> None:
        self._cluster = cluster
        self._keywords = keywords

    @interruptible
    def transform_module(
        self, mod: tvm.IRModule, context: tvm.transform.PassContext
    ) -> tvm.IRModule:
        """Place `mod`, unless it is placed on this cluster already."""
        placed = read_solution(mod)
        if is_sharded(mod):
            raise PlanError(
                "the module is shared by devices already (Shard); to place it, start from the "
                "module before that"
            )
        if placed is None:
            return pipeline.annotate_network(mod, self._cluster, self._keywords)
        given = pass_config(context, CONFIG_PREFIX) | dict(self._keywords)
        options, _ = read_options(given)
        cluster = with_max_memory(self._cluster, options.max_memory)
        if without_twins(placed.cluster).digest() != cluster.digest():
            raise PlanError(
                f"the module is placed on cluster {placed.cluster.name!r} already; to place it on "
                f"{self._cluster.name!r}, start from the module before the first HeteroPlace"
            )
        if others := other_options(mod, given):
            raise PlanError(
                f"the module is placed already, and not by this {', '.join(others)}; to place it "
                f"anew, start from the module before the first HeteroPlace"
            )
        if options.verify_inputs:
            mod = load_entry(_WITH_VERIFY_INPUTS)(mod, options.verify_inputs)
        return mod


def HeteroPlace(  # noqa: N802  (TVM's passes are factories named like classes)
    cluster: Cluster | str | os.PathLike[str],
    *,
    params: Mapping[str, tvm.nd.NDArray | np.ndarray] | None = None,
    **options: Unpack[PlaceKeywords],
) -> tvm.transform.ModulePass:
    """Place every op of a module on a device of `cluster`, to run as fast as can be.

    Parameters
    ----------
    cluster
        A cluster, the path of a cluster file, the name of a ready-made one, or "local": the CPU
        and the GPUs of this machine.
    params
        Weights, if they are not bound into the module.
    options
        Those of `PlaceOptions` and `SolveOptions`, e.g. `solver`, `time_limit`, `pin`.

    Returns
    -------
    pass
        A Relay module pass. Its result is an ordinary Relay module with `on_device` and
        `device_copy`; the plan, and the kernels that were compiled to measure it, travel along as
        attributes of `main`. Running the pass on its own output changes nothing; another cluster
        or other options are a PlanError then.

        Of a plan for several items (`items`) they name for each op one of its devices: batches are
        in the plan alone, and what is built takes all items at once, along their batch axis.

    Raises
    ------
    ClusterError
        The cluster file is wrong.
    SolverError
        There is no such option, or a value is wrong.

    Examples
    --------
    >>> seq = tvm.transform.Sequential([relay.transform.HeteroPlace(cluster)])  # doctest: +SKIP
    """
    keywords = {"params": params, **options}
    read_options(keywords)  # wrong ones are refused now, not when the pass runs
    if not isinstance(cluster, Cluster):
        cluster = open_cluster(cluster)
    make = tvm.transform.module_pass(_HeteroPlacePass, opt_level=0, name="HeteroPlace")
    return make(cluster, keywords)


@interruptible
@default_opt_level()
def build(
    mod: tvm.IRModule,
    cluster: Cluster | str | os.PathLike[str] | None = None,
    params: Mapping[str, tvm.nd.NDArray | np.ndarray] | None = None,
    **options: Unpack[PlaceKeywords],
) -> Executable:
    """Place a module, unless it is placed already, and compile it into one executable.

    Kernels are optimised at the level of the PassContext around the call; without one it is 3.

    Parameters
    ----------
    mod
        A Relay module, placed by `HeteroPlace`, shared by `shard`, or neither.
    cluster
        Where to place it; may be left out if the module is placed.
    params
        Weights, if they are not bound into the module.
    options
        Options of `HeteroPlace`; of a module that is placed only `verify` and `verify_inputs` can
        still be said.

    Raises
    ------
    LoweringError
        No cluster for a module that is not placed; weights, or options of placing, for one that is
        placed.
    PlanError
        The module is placed on, or shared by, another cluster.
    VerificationError
        The module was imported, and its outputs are not those of its source; or `verify="on"`
        cannot be done.
    """
    check_module(mod)
    verify = options.get("verify")
    if verify is not None:
        check_verify(verify)
    shared = load_entry(READ_SHARDED)(mod) if is_sharded(mod) else None
    is_placed = read_solution(mod) is not None
    if is_placed or shared is not None:
        comparing = ("verify", "verify_inputs") if is_placed else ("verify",)
        late = [name for name in options if name not in comparing]
        if late:
            raise LoweringError(
                f"the module is placed already, and {', '.join(late)} would change nothing: give "
                f"them to HeteroPlace"
            )
        names = [parameter.name_hint for parameter in mod["main"].params]
        if params is not None:
            check_params(mod, params)
        unbound = [name for name in names if params is not None and name in params]
        if unbound:
            raise LoweringError(
                f"the module was placed before its weights ({', '.join(unbound[:4])}, ...) were "
                f"bound: pass params= to HeteroPlace, or bind them before"
            )
        if params:
            raise LoweringError(
                "the module has its weights since it was placed, and params= would change nothing: "
                "leave them out, or give them to HeteroPlace"
            )
    elif cluster is None:
        raise LoweringError("the module is not placed; give build() a cluster, or run HeteroPlace")
    if cluster is not None and not isinstance(cluster, Cluster):
        cluster = open_cluster(cluster)
    if cluster is not None and shared is not None:
        by = shared[0].solution.cluster
        if not is_same_but_batches(by, cluster):
            raise PlanError(
                f"the module is shared by cluster {by.name!r} already; to share it by "
                f"{cluster.name!r}, start from the module before that"
            )
    elif cluster is not None and is_placed:
        mod = HeteroPlace(cluster, params=params, **options)(mod)
    elif cluster is not None:
        return pipeline.compile_network(mod, cluster, {"params": params, **options})
    elif options.get("verify_inputs"):
        read_options(options if verify else {"verify_inputs": options["verify_inputs"]})
        mod = load_entry(_WITH_VERIFY_INPUTS)(mod, options["verify_inputs"])
    return pipeline.build_module(mod, verify)
