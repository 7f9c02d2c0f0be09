"""A Relay module in which routing is written in ordinary ops -> the same with routers.

Exports of routed networks compute every branch for every cell, and throw most of it away by a
`where`, a gate of 0 or an `If`; here these become routers, whose branches are done for the cells
that take them only. A place is rewritten where it is proven that results stay the same (sums may be
added up in another order, and a branch that overflows for a cell that does not take it no longer
makes that cell undefined by 0 * inf); `find_routers` says what was found, and what was not and why.

    relay.transform.FindRouters()(mod)
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import tvm
from tvm import relay

from heteroplace.errors import UnsupportedRelayError
from heteroplace.parts.routing.find.find_baked import baked_routing
from heteroplace.parts.routing.find.find_candidates import Finder, RouterCandidate
from heteroplace.parts.routing.find.find_graph import Graph, Region, parts, shown
from heteroplace.parts.routing.find.find_onehot import one_hot_dispatches
from heteroplace.parts.routing.find.find_rewrite import Rewriter
from heteroplace.parts.routing.relay.router import router_options
from heteroplace.relay.expressions import post_order
from heteroplace.relay.router_ops import routing_kind

_LOG = logging.getLogger("heteroplace")


@dataclass(frozen=True)
class FoundRouters:
    """A module and what was found in it."""

    mod: tvm.IRModule
    """The module with routers; the one that was given, with its types, where none was found."""
    found: tuple[str, ...]
    """A line for each router."""
    left: tuple[str, ...]
    """A line for each place that looks like one and is left as it is, with the reason."""

    @property
    def report(self) -> tuple[str, ...]:
        """All lines."""
        return (*self.found, *self.left)


def find_routers(
    mod: tvm.IRModule, inputs: Collection[str] | None = None, only_if: bool = False
) -> FoundRouters:
    """Return a module with routers where its ordinary ops route.

    Parameters
    ----------
    mod
        Its `main` is searched; types need not be inferred.
    inputs
        Names of the parameters that are inputs; None: all. The others are weights.
    only_if
        Look for `If` alone, which nothing but a router can stand for.

    Returns
    -------
    The module and a report. Linear in the size of the module, but for reading types.

    Raises
    ------
    UnsupportedRelayError
        The module has no such input, or an `If` makes something else than tensors.
    """
    mod = relay.transform.InferType()(mod)
    main = mod["main"]
    names = {parameter.name_hint for parameter in main.params}
    unknown = sorted(set(inputs or ()) - names)
    if unknown:
        raise UnsupportedRelayError(
            f"the model has no input {', '.join(unknown)}; it has {', '.join(sorted(names))}"
        )
    graph = Graph(main)
    finder = Finder(graph)
    candidates = list(finder.candidates(only_if))
    left = list(finder.report)
    if not only_if:
        dispatches, more = one_hot_dispatches(finder)
        candidates = _in_order(graph, [*candidates, *dispatches])
        left += [*more, *baked_routing(graph)]
    candidates, dropped = _nested(graph, candidates)
    left += dropped
    if not candidates:
        return FoundRouters(mod, (), tuple(left))
    weights = [p for p in main.params if inputs is not None and p.name_hint not in inputs]
    rewritten = Rewriter(graph, candidates, weights, _router_names(main)).run()
    functions = {**dict(mod.functions.items()), mod.get_global_var("main"): rewritten}
    new = relay.transform.InferType()(tvm.IRModule(functions))
    return FoundRouters(new, tuple(each.describe() for each in candidates), tuple(left))


def FindRouters(inputs: Collection[str] | None = None) -> tvm.transform.Pass:  # noqa: N802
    """Return the pass that runs `find_routers` and logs its report.

    Parameters
    ----------
    inputs
        Names of the parameters that are inputs; None: all. Bind weights before, or name the inputs.
    """

    def run(mod: tvm.IRModule, context: tvm.transform.PassContext) -> tvm.IRModule:
        result = find_routers(mod, inputs)
        for line in result.found:
            _LOG.info("router found: %s", line)
        for line in result.left:
            _LOG.info("no router: %s", line)
        return result.mod

    return tvm.transform.module_pass(run, opt_level=0, name="FindRouters")


def without_branches(mod: tvm.IRModule) -> tvm.IRModule:
    """Return a module with routers in place of its `If`s; the very module if it has none.

    Weights must be bound: parameters are inputs, which enter branches.
    """
    main = mod["main"]
    if not any(isinstance(node, relay.If) for node in post_order(main.body)):
        return mod
    return find_routers(mod, only_if=True).mod


def _in_order(graph: Graph, candidates: Sequence[RouterCandidate]) -> list[RouterCandidate]:
    """Each after those that its result is made of."""
    return sorted(candidates, key=lambda candidate: graph.index[candidate.sink])


def _router_names(main: relay.Function) -> list[str]:
    calls = [node for node in post_order(main.body) if routing_kind(node) == "router"]
    return [router_options(call.attrs).name for call in calls]


def _nested(
    graph: Graph, candidates: Sequence[RouterCandidate]
) -> tuple[list[RouterCandidate], list[str]]:
    """Drop routers inside branches of rows of others that are not wholly there; say so."""
    taken = frozenset().union(*(candidate.taken for candidate in candidates))
    candidates = [candidate for candidate in candidates if candidate.sink not in taken]
    outermost, dropped = list(candidates), []
    for inner in candidates:
        for outer in candidates:
            for branch in outer.branches:
                if inner is outer or inner not in outermost or outer not in outermost:
                    continue
                if outer.num_cells > 1 and _is_torn(
                    graph, inner, branch.region, outer.num_cells, branch.build is not None
                ):
                    outermost = [each for each in outermost if each is not inner]
                    dropped.append(
                        f"{shown(inner.sink)} is left as it is: only a part of it is in a branch "
                        f"of {shown(outer.sink)}"
                    )
    return outermost, dropped


def _is_torn(
    graph: Graph, inner: RouterCandidate, region: Region, num_rows: int, is_written_anew: bool
) -> bool:
    """The result of a router is in a branch of rows, and something that it is made of is not."""
    if inner.sink not in region.nodes:
        return False
    if is_written_anew or inner.num_cells != num_rows:
        return True
    if any(not branch.region.nodes <= region.nodes for branch in inner.branches):
        return True
    own_nodes = {*region.nodes, *region.rows, *region.whole}
    outputs = [each for each in (inner.mask, inner.gates, inner.residual, inner.rest) if each]
    seen: set[relay.Expr] = set()
    while outputs:
        node = outputs.pop()
        if node in seen or node in own_nodes or isinstance(node, relay.Constant):
            continue
        seen.add(node)
        if node in graph.index or isinstance(node, relay.Var):
            return True
        outputs += parts(node)
    return False
