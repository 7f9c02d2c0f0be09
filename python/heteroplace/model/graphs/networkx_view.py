"""Task graph <-> the directed multigraph of the package networkx: its attributes, documented.

A node is a task, called as it is, with the attributes `op`, `members`, `flops`, `weight_bytes`,
`workspace_bytes`, `devices`, `together`, `adds`, `weights` and `branch`, as in `Task`; all may be
left out. An edge goes from the task that makes a tensor to one that reads it, with the attributes
`tensor` (name; its key too), `index` (which output of its producer), `shape`, `dtype`, `bytes`,
`shared` and `buffer`; edges of one tensor are one value that several tasks read. Either `bytes`, or
`shape` and `dtype`, must be there; an edge without `tensor` is a tensor of its own. Attributes of
the graph:

    name      of the network
    inputs    model inputs: {name, shape, dtype, bytes, consumers}
    unread    tensors that no task reads: {name, producer, index, shape, dtype, bytes}
    outputs   names of the tensors that the model returns; left out: all of `unread`
    tensors   names of all tensors, in the order of their ids; may be left out
    updates   pairs of names: a model input that is state, and what replaces it; may be left out
    routers   routers: {name, loads (name of a tensor), num_cells, top_k, capacities, overflow,
              quantum, parent}, as in `Router`; may be left out
    buffers   pairs of name and bytes of routed buffers; may be left out
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from numbers import Integral
from typing import TYPE_CHECKING, Any

from heteroplace.errors import GraphError, MissingPackageError
from heteroplace.model.routed.routers import Router
from heteroplace.model.tasks import Task

if TYPE_CHECKING:
    from heteroplace.model.graph import TaskGraph, TaskGraphBuilder

_TASK_DEFAULTS: Mapping[str, Any] = {
    "op": "",
    "members": (),
    "flops": 0,
    "weight_bytes": 0,
    "workspace_bytes": 0,
    "devices": None,
    "together": None,
    "adds": False,
    "weights": (),
    "branch": None,
}
_ROUTER_COUNTS = ("num_cells", "top_k", "quantum")
_ROUTER_FIELDS = ("num_cells", "top_k", "capacities", "overflow", "quantum", "parent")
_COUNTS = ("flops", "weight_bytes", "workspace_bytes")
_TUPLES = ("members", "devices")


@dataclass(frozen=True)
class TensorAttributes:
    """A tensor as an edge, an input or an unread one describes it."""

    name: str
    producer: str | None
    """Name of the task that makes it; None: a model input."""
    index: int | None = None
    """None: the next one."""
    shape: tuple[int, ...] = ()
    dtype: str = ""
    bytes: int | None = None
    """None: by shape and dtype."""
    consumers: tuple[str, ...] = ()
    shared: bool = False
    buffer: str | None = None


@dataclass
class GraphEntries:
    """What a networkx graph describes, in the order in which it is to be built."""

    name: str
    tasks: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Fields of each task, by its name."""
    tensors: list[TensorAttributes] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)
    updates: list[tuple[str, str]] = field(default_factory=list)
    routers: list[tuple[Router, str]] = field(default_factory=list)
    """Without ids, each with the name of its loads."""
    buffers: list[tuple[str, int]] = field(default_factory=list)


def to_networkx(graph: TaskGraph) -> Any:
    """Return the graph as a `networkx.MultiDiGraph`; see the module for its attributes.

    Raises
    ------
    MissingPackageError
        networkx is not installed.
    """
    try:
        import networkx
    except ImportError as err:
        raise MissingPackageError("networkx is not installed; pip install networkx") from err
    names = [task.name for task in graph.tasks]
    nx_graph = networkx.MultiDiGraph(name=graph.name)
    for task in graph.tasks:
        nx_graph.add_node(task.name, **{key: getattr(task, key) for key in _TASK_DEFAULTS})
    inputs, unread = [], []
    for tensor in graph.tensors:
        keys = ("shape", "dtype", "bytes", "shared", "buffer")
        size = {key: getattr(tensor, key) for key in keys}
        consumers = [names[task] for task in tensor.consumers]
        if tensor.producer is None:
            inputs.append({"name": tensor.name, **size, "consumers": consumers})
            continue
        value = {"index": tensor.index, **size}
        producer = names[tensor.producer]
        for consumer in consumers:
            nx_graph.add_edge(producer, consumer, key=tensor.name, tensor=tensor.name, **value)
        if not consumers:
            unread.append({"name": tensor.name, "producer": producer, **value})
    nx_graph.graph |= {
        "inputs": inputs,
        "unread": unread,
        "outputs": [graph.tensors[tensor].name for tensor in graph.outputs],
        "tensors": [tensor.name for tensor in graph.tensors],
    }
    if graph.updates:
        nx_graph.graph["updates"] = [
            (graph.tensors[state].name, graph.tensors[tensor].name)
            for state, tensor in graph.updates
        ]
    if graph.routers:
        nx_graph.graph["routers"] = [
            {"name": router.name, "loads": graph.tensors[router.loads].name}
            | {key: getattr(router, key) for key in _ROUTER_FIELDS}
            for router in graph.routers
        ]
    if graph.buffers:
        nx_graph.graph["buffers"] = list(graph.buffers)
    return nx_graph


def from_networkx(value: Any, new_builder: Callable[[str], TaskGraphBuilder]) -> TaskGraph:
    """Return the graph that a builder makes of what a networkx graph describes.

    Raises
    ------
    GraphError
        As `read_networkx`, or what the builder finds.
    """
    entries = read_networkx(value)
    builder = new_builder(entries.name)
    reads: dict[str, list[str]] = {name: [] for name in entries.tasks}
    for entry in entries.tensors:
        for consumer in entry.consumers:
            reads[consumer].append(entry.name)
    for name, fields_of_task in entries.tasks.items():
        builder.add_task(Task(name, **fields_of_task), reads[name])
    for entry in entries.tensors:
        form = entry.shape, entry.dtype, entry.bytes
        if entry.producer is None:
            builder.add_input(entry.name, *form, entry.shared, entry.buffer)
        else:
            builder.add_tensor(entry.producer, *form, entry.name, entry.shared, entry.buffer)
    for state, tensor in entries.updates:
        builder.add_update(state, tensor)
    for buffer, num_bytes in entries.buffers:
        builder.add_buffer(buffer, num_bytes)
    for router, loads in entries.routers:
        builder.add_router(router, loads)
    return builder.finalize(entries.outputs)


def read_networkx(value: Any) -> GraphEntries:
    """Return what a directed graph of networkx describes; see the module for its attributes.

    Raises
    ------
    GraphError
        It is not directed, an attribute is unknown or of another kind, or two edges of one tensor
        contradict each other.
    """
    if not (hasattr(value, "is_directed") and value.is_directed()):
        raise GraphError(
            f"expected a directed graph of networkx, got {type(value).__name__}; use "
            f"networkx.MultiDiGraph or networkx.DiGraph"
        )
    entries = GraphEntries(str(value.graph.get("name", "")))
    for node, attributes in value.nodes(data=True):
        entries.tasks[_text(node, "a node")] = _task_fields(node, attributes)
    tensors: dict[str, TensorAttributes] = {}
    for entry in _entries(value):
        first_entry = tensors.setdefault(entry.name, entry)
        if replace(first_entry, consumers=()) != replace(entry, consumers=()):
            raise GraphError(
                f"tensor {entry.name!r} is described in two ways: {first_entry} and {entry}; "
                f"give all "
                f"its edges the same producer, index, shape, dtype and bytes"
            )
        if first_entry is not entry:
            consumers = dict.fromkeys((*first_entry.consumers, *entry.consumers))
            tensors[entry.name] = replace(first_entry, consumers=tuple(consumers))
    _check_ends(entries, tensors.values())
    by_index = sorted(tensors.values(), key=lambda entry: entry.index or 0)
    order = value.graph.get("tensors", [entry.name for entry in by_index])
    if sorted(order) != sorted(tensors):
        raise GraphError(
            "the graph attribute 'tensors' does not name the tensors of inputs, edges and unread; "
            "leave it out if the graph was edited"
        )
    entries.tensors = [tensors[name] for name in order]
    last = [entry.name for entry in entries.tensors if not entry.consumers and entry.producer]
    entries.outputs = [str(name) for name in value.graph.get("outputs", last)]
    entries.updates = [_pair(pair) for pair in value.graph.get("updates", ())]
    entries.routers = [_router(router) for router in value.graph.get("routers", ())]
    where = "the graph attribute 'buffers'"
    entries.buffers = [_weight(pair, where) for pair in value.graph.get("buffers", ())]
    return entries


def _check_ends(entries: GraphEntries, tensors: Iterable[TensorAttributes]) -> None:
    """Raise GraphError unless makers and readers are nodes, and outputs are numbered from 0."""
    indices: dict[str, list[int]] = {}
    for entry in tensors:
        for task in (*entry.consumers, *filter(None, (entry.producer,))):
            if task not in entries.tasks:
                raise GraphError(f"tensor {entry.name!r} names {task!r}, and no node is called so")
        if entry.producer is not None and entry.index is not None:
            indices.setdefault(entry.producer, []).append(entry.index)
    for task, count in indices.items():
        if sorted(count) != list(range(len(count))):
            raise GraphError(
                f"the tensors of task {task!r} have the indices {sorted(count)}; expected 0, 1, "
                f"..., each once: one that nobody reads stands in the graph attribute 'unread'"
            )


def _entries(value: Any) -> Iterator[TensorAttributes]:
    for described in value.graph.get("inputs", ()):
        yield _tensor(dict(described) | {"producer": None}, "an input")
    for src, dst, attributes in value.edges(data=True):
        where = f"the edge from {src!r} to {dst!r}"
        given = dict(attributes)
        name = given.pop("tensor", f"{src}->{dst}")
        yield _tensor(given | {"name": name, "producer": src, "consumers": (dst,)}, where)
    for described in value.graph.get("unread", ()):
        yield _tensor(dict(described), "an unread tensor")


def _tensor(described: dict[str, Any], where: str) -> TensorAttributes:
    attributes = {entry.name for entry in fields(TensorAttributes)}
    unknown = sorted(set(described) - attributes)
    if unknown or "name" not in described or "producer" not in described:
        raise GraphError(
            f"{where} has {', '.join(map(repr, unknown)) or 'no name or producer'}; a tensor has: "
            f"tensor (or name), producer, index, shape, dtype, bytes, shared, buffer"
        )
    if described.get("bytes") is None and not described.get("dtype"):
        raise GraphError(f"{where} says no size; give it bytes, or shape and dtype")
    for key in ("bytes", "index"):
        if described.get(key) is not None:
            described[key] = _count(described[key], f"{key} of {where}")
    for key in ("shape", "consumers"):
        given = described.get(key, ())
        if isinstance(given, str) or not isinstance(given, Sequence):
            raise GraphError(f"{key} of {where} is {given!r}; expected a list")
        described[key] = tuple(given)
    described["shape"] = tuple(_count(each, f"an extent of {where}") for each in described["shape"])
    described["consumers"] = tuple(map(str, described["consumers"]))
    described["dtype"] = str(described.get("dtype", ""))
    described["shared"] = _flag(described.get("shared", False), f"shared of {where}")
    if described.get("buffer") is not None:
        described["buffer"] = _text(described["buffer"], f"buffer of {where}")
    return TensorAttributes(**described)


def _task_fields(node: object, attributes: Mapping[str, Any]) -> dict[str, Any]:
    unknown = sorted(set(attributes) - set(_TASK_DEFAULTS))
    if unknown:
        raise GraphError(
            f"node {node!r} has attributes {', '.join(unknown)}; a task has: "
            f"{', '.join(_TASK_DEFAULTS)}"
        )
    given = dict(_TASK_DEFAULTS) | dict(attributes)
    for key in _COUNTS:
        given[key] = _count(given[key], f"{key} of node {node!r}")
    for key in _TUPLES:
        if isinstance(given[key], str):
            raise GraphError(f"{key} of node {node!r} is {given[key]!r}; expected a list of names")
        given[key] = None if given[key] is None else tuple(map(str, given[key]))
    given["op"] = _text(given["op"], f"op of node {node!r}")
    if given["together"] is not None:
        given["together"] = _text(given["together"], f"together of node {node!r}")
    given["adds"] = _flag(given["adds"], f"adds of node {node!r}")
    where = f"weights of node {node!r}"
    given["weights"] = tuple(_weight(weight, where) for weight in _list(given["weights"], where))
    given["branch"] = _branch(given["branch"], f"branch of node {node!r}")
    return given


def _router(value: object) -> tuple[Router, str]:
    where = "the graph attribute 'routers'"
    known_keys = {"name", "loads", *_ROUTER_FIELDS}
    if not isinstance(value, Mapping) or set(value) - known_keys:
        raise GraphError(f"{where} has {value!r}; a router has: {', '.join(sorted(known_keys))}")
    missing = sorted(known_keys - {"overflow", "quantum", "parent"} - set(value))
    if missing:
        raise GraphError(f"{where} has a router without {', '.join(missing)}: {dict(value)}")
    counts = {key: _count(value.get(key, 1), f"{key} in {where}") for key in _ROUTER_COUNTS}
    rows = [_list(row, f"capacities in {where}") for row in _list(value["capacities"], where)]
    router = Router(
        _text(value["name"], f"a name in {where}"),
        -1,
        -1,
        capacities=tuple(tuple(_count(size, f"a capacity in {where}") for size in r) for r in rows),
        overflow=_text(value.get("overflow", "rounds"), f"overflow in {where}"),
        parent=_branch(value.get("parent"), f"parent in {where}"),
        **counts,
    )
    return router, _text(value["loads"], f"loads in {where}")


def _branch(value: object, where: str) -> tuple[str, int] | None:
    if value is None:
        return None
    router, branch = _two(value, where)
    return _text(router, f"the router of {where}"), _count(branch, f"the number of {where}")


def _weight(value: object, where: str) -> tuple[str, int]:
    name, num_bytes = _two(value, where)
    return _text(name, f"a name in {where}"), _count(num_bytes, f"a size in {where}")


def _pair(value: object) -> tuple[str, str]:
    where = "the graph attribute 'updates'"
    state, tensor = _two(value, where)
    return _text(state, where), _text(tensor, where)


def _two(value: object, where: str) -> tuple[object, object]:
    pair = _list(value, where)
    if len(pair) != 2:
        raise GraphError(f"{where} has {value!r}; expected pairs")
    return pair[0], pair[1]


def _list(value: object, where: str) -> Sequence[object]:
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise GraphError(f"{where} is {value!r}; expected a list")
    return value


def _flag(value: object, where: str) -> bool:
    if not isinstance(value, bool):
        raise GraphError(f"{where} is {value!r}; expected True or False")
    return value


def _count(value: object, where: str) -> int:
    is_whole = isinstance(value, Integral) and not isinstance(value, bool)
    if not is_whole or int(str(value)) < 0:
        raise GraphError(f"{where} is {value!r}; expected a whole number >= 0")
    return int(str(value))


def _text(value: object, where: str) -> str:
    if not isinstance(value, str):
        raise GraphError(f"{where} is {value!r}; expected a text")
    return value
