"""`tune`: time spent on a model's kernels, and what it finds kept for every later placement."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping

import numpy as np
import tvm

from heteroplace import pipeline
from heteroplace.argument_checks import check_path
from heteroplace.costs.store import CostStore
from heteroplace.errors import SolverError
from heteroplace.interrupts import interruptible
from heteroplace.machine.local import open_cluster
from heteroplace.model.cluster import Cluster
from heteroplace.options import duration
from heteroplace.parts.kernels.tuned.schedule_search import TuneStep
from heteroplace.parts.kernels.tuned.tune import TuneOptions, tune_network
from heteroplace.parts.kernels.tuned.tuning_report import Outlook, TuneReport
from heteroplace.place_options import STORE_OFF, STORE_ON
from heteroplace.relay.opt_level import default_opt_level
from heteroplace.relay.parameters import check_module
from heteroplace.stage_log import StageLog


@interruptible
@default_opt_level()
def tune(
    mod: tvm.IRModule,
    cluster: Cluster | str | os.PathLike[str],
    params: Mapping[str, tvm.nd.NDArray | np.ndarray] | None = None,
    *,
    budget: float | str = "10m",
    store: str | os.PathLike[str] = STORE_ON,
    on_outlook: Callable[[Outlook], None] | None = None,
    on_step: Callable[[TuneStep], None] | None = None,
    progress: Callable[[str], None] | None = None,
) -> TuneReport:
    """Search faster kernels for a model, and keep those that are faster in place.

    A later `HeteroPlace` or `build` for the same processor finds them in the store by itself
    (`tuned="off"`: it does not), and takes each where it makes the plan quicker. The opt level is
    that of the PassContext around the call, or 3; it is part of what a kernel is.

    Parameters
    ----------
    mod
        A Relay module that is not placed.
    cluster
        As of `HeteroPlace`. Its CPUs in this machine are tuned for.
    params
        Weights, if they are not bound into the module.
    budget
        Seconds of search, or a text such as "10m"; measuring the network before and after comes on
        top. What earlier calls found is where this one goes on.
    store
        "on": the user's; or the path of one.
    on_outlook, on_step, progress
        Called with what is left to gain, before each round of trials, and with lines of text.

    Returns
    -------
    report
        Before and after of each kernel; `report.text()` is a table.

    Raises
    ------
    SolverError
        `budget` is no time, there is no store, or the network has routers.
    MissingCostError
        No CPU of the cluster is in this machine.
    UnsupportedRelayError, LoweringError, ExecutionError, InfeasibleError, CostStoreError
        As of `HeteroPlace`.

    Examples
    --------
    >>> report = heteroplace.tune(mod, "local", params, budget="30s")  # doctest: +SKIP
    """
    check_module(mod)
    check_path("store", store, "'on', or the path of a store", SolverError)
    try:
        budget_s = duration(str(budget))
    except ValueError as err:
        raise SolverError(f"budget={budget!r}: {err}") from err
    if store == STORE_OFF:
        raise SolverError("store='off': what is found is kept in a store; give a path, or 'on'")
    if not isinstance(cluster, Cluster):
        cluster = open_cluster(cluster)
    network = pipeline.prepare(mod, params, StageLog.of(progress), cluster)
    with CostStore(None if store == STORE_ON else store) as opened:
        options = TuneOptions(opened, budget_s, on_outlook, on_step, progress)
        return tune_network(network, cluster, options)
