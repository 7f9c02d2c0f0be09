"""The stages of the option `state`: its pairs are checked, and solvers see state where it is used.

Kernels are costed without this, as their times do not depend on where state comes from: costs of a
model are the same with and without the option.
"""

from __future__ import annotations

from dataclasses import replace

from heteroplace.errors import SolverError
from heteroplace.model.graph import TaskGraph
from heteroplace.model.graphs.resident_state import held_states, with_resident_state
from heteroplace.pipeline.place_state import PlaceState
from heteroplace.relay.output_names import port_names
from heteroplace.simulate.interference import Interference
from heteroplace.state_option import state_pairs
from heteroplace.terminal import listed


def check_pairs(state: PlaceState) -> PlaceState:
    """Raise SolverError for pairs that the model does not have, or several hosts; the executable
    finds the pairs again."""
    if len(state.cluster.hosts) > 1:
        raise SolverError(
            f"state is for plans on one host, and cluster {state.cluster.name!r} has "
            f"{listed(map(repr, state.cluster.hosts))}; leave the option state out: the state is "
            f"then an input and an output"
        )
    _pairs(state)
    return state


def resident_graph(state: PlaceState) -> TaskGraph:
    """Return the graph of the network as solvers see it; raises as `with_resident_state`."""
    return _resident(state, state.known_network.graph)


def states_of_tasks(state: PlaceState) -> dict[int, tuple[tuple[str, int], ...]]:
    """Return the state that tasks hold as part of their weights, by task: (input, bytes)."""
    if not state.options.state or state.request.limits.items > 1:
        return {}
    graph, sessions = state.known_network.graph, state.options.max_sessions
    return held_states(graph, state.cluster, _pairs(state), sessions)


def keep_resident(state: PlaceState) -> PlaceState:
    """Replace the graph behind the costs by the one as solvers see it."""
    costed = state.known_costed
    graph = _resident(state, costed.graph)
    if graph is costed.graph:
        return state

    def interference() -> Interference:
        return replace(costed.interference_known(), graph_digest=graph.digest())

    resident = replace(
        costed,
        compiled=costed.compiled.with_graph(graph),
        costs=replace(costed.costs, tasks=graph.identities),
        measure_interference=None if costed.measure_interference is None else interference,
    )
    plain = state.plain and (_resident(state, state.plain[0]), state.plain[1])
    return replace(state, costed=resident, plain=plain)


def _resident(state: PlaceState, graph: TaskGraph) -> TaskGraph:
    """A graph of the network with state where it is used; that of several items stays."""
    if state.request.limits.items > 1:
        return graph
    return with_resident_state(graph, state.cluster, _pairs(state), state.options.max_sessions)


def _pairs(state: PlaceState) -> list[tuple[int, int]]:
    """(tensor of the input, position of the output that replaces it) of all state."""
    network = state.known_network
    graph = network.graph
    inputs, outputs = (
        [
            (graph.tensors[tensor].name, graph.tensors[tensor].shape, graph.tensors[tensor].dtype)
            for tensor in tensors
        ]
        for tensors in (graph.inputs, graph.outputs)
    )
    input_names = [name for name, _, _ in inputs]
    names = port_names(network.output_names, input_names, len(outputs))
    named = [(name, *port[1:]) for name, port in zip(names, outputs, strict=True)]
    pairs = state_pairs(state.options.state, inputs, named)
    tensors = dict(zip(input_names, graph.inputs, strict=True))
    return [(tensors[name], names.index(output)) for name, output in pairs]
