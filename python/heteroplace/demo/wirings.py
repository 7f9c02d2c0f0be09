"""The random graphs of randomly wired networks, each edge from the lower to the higher node.

"Exploring Randomly Wired Neural Networks for Image Recognition" (section 3), with the parameters of
DiviML (section V): Watts-Strogatz WS(4, 0.75), Erdos-Renyi ER(0.2), Barabasi-Albert BA(5).
"""

from __future__ import annotations

from typing import Any

from heteroplace.errors import GraphError, MissingPackageError

MIN_NODES = {"ws": 5, "er": 1, "ba": 6}
"""The kinds of random graphs, and how many nodes each needs."""


def wiring(kind: str, nodes: int, seed: int) -> list[list[int]]:
    """Return for each node the lower ones with an edge to it, ascending. Equal seeds, equal graphs.

    Raises
    ------
    GraphError
        There is no such kind, or there are too few nodes for it.
    MissingPackageError
        networkx is not installed.
    """
    if kind not in MIN_NODES:
        raise GraphError(f"no random graph {kind!r}: expected one of {', '.join(MIN_NODES)}")
    if nodes < MIN_NODES[kind]:
        raise GraphError(
            f"a random graph of kind {kind!r} needs >= {MIN_NODES[kind]} nodes, got {nodes}"
        )
    networkx = _require_networkx()
    if kind == "ws":
        graph = networkx.connected_watts_strogatz_graph(nodes, 4, 0.75, seed=seed)
    elif kind == "er":
        graph = networkx.erdos_renyi_graph(nodes, 0.2, seed=seed)
    else:
        graph = networkx.barabasi_albert_graph(nodes, 5, seed=seed)
    return [
        sorted(other for other in graph.neighbors(node) if other < node) for node in range(nodes)
    ]


def last_nodes(before: list[list[int]]) -> list[int]:
    """Return the nodes of a wiring without an edge to a higher one, ascending.

    >>> last_nodes([[], [0], [0]])
    [1, 2]
    """
    read = {source for sources in before for source in sources}
    return [node for node in range(len(before)) if node not in read]


def _require_networkx() -> Any:
    try:
        import networkx
    except ImportError as err:
        raise MissingPackageError(
            "randomly wired networks need the package networkx, which is not installed. "
            "Install it with: pip install networkx"
        ) from err
    return networkx
