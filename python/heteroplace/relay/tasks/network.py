"""Relay module -> Network: the module cut into tasks, without regard to devices."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import tvm
from tvm import relay

from heteroplace.model.graph import TaskGraph
from heteroplace.relay.tasks.extract import Extraction, extract, neutral_module
from heteroplace.relay.tasks.prepare import prepare


@dataclass(frozen=True)
class Network:
    """A model cut into tasks. Made once, and handed from stage to stage."""

    graph: TaskGraph
    mod: tvm.IRModule
    """The neutral module: ops not fused, the span of each call naming its task."""
    extraction: Extraction | None = None
    """The fused function of each task; None: read back from an annotated module."""

    @cached_property
    def digest(self) -> str:
        """What equal neutral modules have in common, in hex; names do not count."""
        return module_digest(self.mod)

    def with_graph(self, graph: TaskGraph) -> Network:
        """Return the same network with more known of its tasks (scratch memory, pins)."""
        extraction = self.extraction and replace(self.extraction, graph=graph)
        return Network(graph, self.mod, extraction)


def cut_network(
    mod: tvm.IRModule, params: Mapping[str, tvm.nd.NDArray] | None = None, name: str = "model"
) -> Network:
    """Bind the weights, optimise the module and cut it into tasks.

    The opt level is that of the current PassContext.

    Parameters
    ----------
    mod
        A Relay module; its `main` is cut.
    params
        Weights to bind first, by the name of the parameter; None: they are bound already.
    name
        Name of the task graph.

    Raises
    ------
    UnsupportedRelayError
        The module has control flow or dynamic shapes.
    """
    if params:
        main = relay.build_module.bind_params_by_name(mod["main"], dict(params))
        mod = tvm.IRModule({**dict(mod.functions.items()), mod.get_global_var("main"): main})
    return network_of(extract(prepare(mod), name))


def network_of(extraction: Extraction) -> Network:
    """Return a network that is cut already, with its neutral module."""
    return Network(extraction.graph, neutral_module(extraction), extraction)


def module_digest(mod: tvm.IRModule) -> str:
    """Return the structural hash of a module in hex; names of variables do not count."""
    return f"{int(tvm.ir.structural_hash(mod, map_free_vars=True)) % 2**64:016x}"
