"""Modules with routers -> what is built of them, each once for all traces of a network."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import tvm

import heteroplace
from benchmarks.peers.stock import build_stock
from heteroplace.lower.executable import Executable
from heteroplace.model.cluster import Cluster

SOLVER_S = 3.0
"""What the solver of each plan may take."""

Params = Mapping[str, tvm.nd.NDArray]


class Builds:
    """What has been built of the modules of one network, which share its parameters.

    What runs it is made anew each time: an executor keeps what it has seen of a trace.
    """

    def __init__(self, cluster: Cluster, params: Params) -> None:
        self.cluster = cluster
        self._params = params
        self._ours: list[tuple[tvm.IRModule, Executable]] = []
        self._stock: list[tuple[tvm.IRModule, Any]] = []

    def ours(
        self, mod: tvm.IRModule, say: Callable[[str], None], routes: Path | None = None
    ) -> Executable:
        """Build a module for the cluster.

        Parameters
        ----------
        routes
            Profile of a trace; None: the same whatever the trace is.
        """

        def build() -> Executable:
            found: Executable = heteroplace.build(
                mod,
                self.cluster,
                params=self._params,
                routes=routes,
                time_limit=SOLVER_S,
                progress=say,
            )
            return found

        return build() if routes is not None else _once(self._ours, mod, build)

    def stock(self, mod: tvm.IRModule) -> Any:
        """Build a module by `relay.build` for the first device."""
        target = self.cluster.devices[0].target
        return _once(self._stock, mod, lambda: build_stock(mod, self._params, target))


def _once(
    known: list[tuple[tvm.IRModule, Any]], mod: tvm.IRModule, build: Callable[[], Any]
) -> Any:
    for other, found in known:
        if tvm.ir.structural_equal(mod, other):
            return found
    known.append((mod, build()))
    return known[-1][1]
