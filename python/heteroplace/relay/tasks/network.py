"""Relay module -> Network: the module cut into tasks, without regard to devices."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import tvm
from tvm import relay

from heteroplace.entries import load_entry
from heteroplace.errors import ExecutionError, LoweringError, UnsupportedRelayError
from heteroplace.model.cluster import Cluster
from heteroplace.model.graph import TaskGraph
from heteroplace.registry import load_plugin
from heteroplace.relay.annotate.annotation_reader import (
    is_annotated,
    read_model_digest,
    strip_annotations,
)
from heteroplace.relay.annotate.tunings_attribute import read_tunings
from heteroplace.relay.expressions import post_order, static_shape, tensor_types
from heteroplace.relay.limits import check_sizes
from heteroplace.relay.output_names import read_graph_name, read_output_names
from heteroplace.relay.parameters import bound_main
from heteroplace.relay.router_ops import has_routers
from heteroplace.relay.tasks.extract import Extraction, extract, neutral_module
from heteroplace.relay.tasks.prepare import prepare
from heteroplace.relay.types_once import types_once

_EXTRACT_ANNOTATED = "heteroplace.relay.annotate.foreign:extract_annotated"
"""Loaded for a module that is annotated by hand."""


@dataclass(frozen=True)
class Network:
    """A model cut into tasks. Made once, and handed from stage to stage."""

    graph: TaskGraph
    mod: tvm.IRModule
    """The neutral module: ops not fused, the span of each call naming its task."""
    extraction: Extraction | None = None
    """The fused function of each task; None: read back from an annotated module."""
    examples: Mapping[str, np.ndarray] = field(default_factory=dict)
    """Of inputs by name, what they are when kernels are measured; others are made up."""
    state: Mapping[str, np.ndarray] = field(default_factory=dict)
    """Of inputs by name that the program replaces, what they are at first; others are to be set."""
    tunings: Mapping[str, str] = field(default_factory=dict)
    """Results of searches for kernel variants, by key (`lower/kernel_provider.py`): traces of tuned
    kernels, symbols of library kernels with their algorithms."""
    held_bytes: Mapping[str, tuple[int, int]] | None = None
    """By task whose weights are of half precision: their bytes in their types, and as kernels of
    CPUs hold them (`KernelProvider.with_held_weights`). None: not known."""
    model_digest: str = ""
    """Of a module with routers, what their profiles name it by; "": it has none."""
    output_names: tuple[str, ...] = ()
    """Those of the imported model's outputs, in order; empty: there are none."""

    @cached_property
    def digest(self) -> str:
        """What equal neutral modules have in common, in hex; names do not count."""
        return module_digest(self.mod)

    def with_graph(self, graph: TaskGraph) -> Network:
        """Return the same network with more known of its tasks (scratch memory, pins, state)."""
        extraction = self.extraction and self.extraction.with_graph(graph)
        return replace(self, graph=graph, extraction=extraction)

    def with_examples(self, examples: Mapping[str, np.ndarray]) -> Network:
        """Return the same network with what some inputs are when kernels are measured.

        Raises
        ------
        ExecutionError
            There is no such input, or it has another shape or type.
        """
        types = {parameter.name_hint: parameter for parameter in self.mod["main"].params}
        faults = []
        for name, array in examples.items():
            if name not in types:
                faults.append(f"{name!r} is no input of the model")
                continue
            (type_,) = tensor_types(types[name].checked_type)
            expected = f"{type_.dtype}{list(static_shape(type_))}"
            got = f"{array.dtype.name}{list(array.shape)}"
            if got != expected:
                faults.append(f"{name!r} is {got}, the model takes {expected}")
        if faults:
            raise ExecutionError(
                f"example inputs: {'; '.join(faults)}; the inputs are {', '.join(types)}"
            )
        return replace(self, examples=dict(examples))


def bound_module(mod: tvm.IRModule, params: Mapping[str, tvm.nd.NDArray] | None) -> tvm.IRModule:
    """Return a module with its weights bound; the very module if none are given."""
    if params is None or (isinstance(params, Mapping) and not params):
        return mod
    main = bound_main(mod, params)
    return tvm.IRModule({**dict(mod.functions.items()), mod.get_global_var("main"): main})


@types_once()
def cut_network(
    mod: tvm.IRModule,
    params: Mapping[str, tvm.nd.NDArray] | None = None,
    name: str = "",
    cluster: Cluster | None = None,
    digest: str = "",
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
        Name of the task graph; "": that of the module.
    cluster
        Whose devices a module names that somebody has annotated; its tasks may then be nowhere
        else. None: it is not annotated.
    digest
        `Network.model_digest` where it is known; "": it is computed, if there are routers.

    Raises
    ------
    UnsupportedRelayError
        The module has loops, references or dynamic shapes; or values too large or of no size, or a
        constant index outside of its tensor (`relay/limits.py`). An `If` becomes a router.
    LoweringError
        Its annotations contradict each other, or name devices that the cluster does not have.
    """
    names = read_output_names(mod)
    network = _cut(mod, params, name or read_graph_name(mod), cluster, digest)
    return replace(network, output_names=names)


def _cut(
    mod: tvm.IRModule,
    params: Mapping[str, tvm.nd.NDArray] | None,
    name: str,
    cluster: Cluster | None,
    digest: str,
) -> Network:
    """Cut a module; parameters as of `cut_network`."""
    mod = bound_module(mod, params)
    if any(isinstance(node, relay.If) for node in post_order(mod["main"].body)):
        mod = load_plugin("routers", "without-ifs")(mod)
    if has_routers(mod):
        mod, digest = load_plugin("routers", "name")(mod, digest)
    mod = relay.transform.InferType()(mod)
    check_sizes(mod["main"], f"Relay module {name!r}", UnsupportedRelayError)
    if digest:
        network = network_of(load_plugin("routers", "extract")(prepare(mod), name))
        return replace(network, model_digest=digest)
    if not is_annotated(mod):
        return network_of(extract(prepare(mod), name))
    if cluster is None:
        raise LoweringError("the module is annotated with devices; say of which cluster they are")
    return network_of(load_entry(_EXTRACT_ANNOTATED)(mod, cluster, name))


def network_of(extraction: Extraction) -> Network:
    """Return a network that is cut already, with its neutral module."""
    return Network(extraction.graph, neutral_module(extraction), extraction)


def network_under(mod: tvm.IRModule, graph: TaskGraph) -> Network:
    """Return the network that a placed module was made of, cut as its solution says."""
    digest, tunings = read_model_digest(mod), read_tunings(mod)
    names = read_output_names(mod)
    neutral = strip_annotations(mod)
    return Network(graph, neutral, tunings=tunings, model_digest=digest, output_names=names)


def sharded_network(
    mod: tvm.IRModule, graph: TaskGraph, state: Mapping[str, np.ndarray]
) -> Network:
    """Return the network that a sharded module holds; `state` as of `Network`."""
    return Network(graph, strip_annotations(mod), state=state, output_names=read_output_names(mod))


def module_digest(mod: tvm.IRModule) -> str:
    """Return the structural hash of a module in hex; names of variables do not count."""
    return f"{int(tvm.ir.structural_hash(mod, map_free_vars=True)) % 2**64:016x}"
