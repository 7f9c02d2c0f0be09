"""Annotated Relay -> the device of each op, by the rule of TVM's PlanDevices.

Read are `on_device`, `device_copy` and the virtual devices of `main`. (PlanDevices itself is not
run: it aborts the process on some graphs, and refuses the copies that are left around an annotation
which was moved by hand.) In the order of weight:

1. An op inside `on_device` is on that device.
2. Any other op shares the device of the ops that it exchanges tensors with directly.
3. Failing these, it is where `device_copy` or `on_device` bring what it reads, or take its result.
   (If these are several devices, it is where it is read first.)
4. Failing that, it is where other ops read the same inputs of the model; else on the home device.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

import tvm
from tvm import relay

from heteroplace.errors import LoweringError
from heteroplace.model.cluster import Cluster
from heteroplace.model.graph import TaskGraph
from heteroplace.relay.annotate.writer import home_device, tvm_devices
from heteroplace.relay.expressions import is_op_call, post_order, task_of_span
from heteroplace.terminal import listed

"""So many ops are named in a message."""

DeviceKey = tuple[int, int]
"""DLPack device type and index."""


def device_keys(cluster: Cluster) -> tuple[DeviceKey, ...]:
    """Return for each device of the cluster how Relay names it; see `tvm_devices`."""
    return tuple((int(d.device_type), int(d.device_id)) for d in tvm_devices(cluster))


def read_devices(main: relay.Function, cluster: Cluster) -> dict[relay.Call, int]:
    """Return for each op of a function its device in the cluster.

    Where Relay has one name for several devices, it is the first of them.

    Raises
    ------
    LoweringError
        A device that the cluster does not have, or an op that is annotated with several.
    """
    return _Reader(main, cluster).run()


def is_barrier(node: relay.Expr) -> bool:
    """Say whether the two sides of a node may be on different devices."""
    return is_op_call(node, "on_device") or is_op_call(node, "device_copy")


def split_faults(
    graph: TaskGraph, cluster: Cluster, ops: Sequence[dict[int, list[str]]]
) -> list[str]:
    """Describe each task whose ops are on several devices; empty: there is none.

    Parameters
    ----------
    ops
        For each task the names of its ops, by device, [num_tasks].
    """
    torn = []
    for task, by_device in zip(graph.tasks, ops, strict=True):
        if len(by_device) > 1:
            places = " and ".join(
                f"{distinct(device_ops)} on {cluster.devices[device].name!r}"
                for device, device_ops in sorted(by_device.items())
            )
            torn.append(f"task {task.name!r} is torn between {places}")
    return torn


def check_whole(graph: TaskGraph, cluster: Cluster, ops: Sequence[dict[int, list[str]]]) -> None:
    """Raise LoweringError unless the ops of each task are on one device; see `split_faults`."""
    if torn := split_faults(graph, cluster, ops):
        raise LoweringError(
            f"{'; '.join(torn)}: the plan has one kernel for these ops, which runs on one device. "
            f"Give them the same device, or annotate the module before HeteroPlace runs on it: "
            f"heteroplace.build(mod, cluster) then makes a kernel for each device"
        )


def op_name(call: relay.Call) -> str:
    """Name an op for a message: its kind, and its task or its layer of the imported model."""
    kind = getattr(call.op, "name", "a function")
    task = task_of_span(call)
    if task is not None:
        return f"{kind} of task {task!r}"
    return f"{kind} ({call.span.source_name.name})" if isinstance(call.span, relay.Span) else kind


def distinct(names: Iterable[str]) -> str:
    """Return distinct names for a message, the first few of them."""
    return listed(dict.fromkeys(names))


def device_key(virtual_device: tvm.target.VirtualDevice | None) -> DeviceKey | None:
    """Return what a virtual device names; None: nothing."""
    if virtual_device is None or virtual_device.device_type_int <= 0:
        return None
    return virtual_device.device_type_int, max(0, virtual_device.virtual_device_id)


def _sides(barrier: relay.Call) -> tuple[DeviceKey | None, DeviceKey | None]:
    """The devices that a barrier asks for: of what it is given, and of what it makes of it."""
    attrs = barrier.attrs
    if barrier.op.name == "device_copy":
        return device_key(attrs.src_virtual_device), device_key(attrs.dst_virtual_device)
    key = device_key(attrs.virtual_device)
    return key if attrs.constrain_body else None, key if attrs.constrain_result else None


def _operands(node: relay.Expr) -> Iterator[relay.Expr]:
    """What a node reads, without constants, which are wherever they are needed."""
    if isinstance(node, relay.Call):
        operands = node.args
    elif isinstance(node, relay.Tuple):
        operands = node.fields
    else:
        operands = [node.tuple_value] if isinstance(node, relay.TupleGetItem) else []
    return (operand for operand in operands if not isinstance(operand, relay.Constant))


def _ops_in(value: relay.Expr) -> list[relay.Call]:
    """The ops that make a value, through tuples."""
    if isinstance(value, relay.Call):
        return [] if is_barrier(value) else [value]
    if isinstance(value, relay.TupleGetItem) and isinstance(value.tuple_value, relay.Tuple):
        return _ops_in(value.tuple_value.fields[value.index])
    return [op for operand in _operands(value) for op in _ops_in(operand)]


class _Reader:
    """Finds the groups of values that share a device, and what is said of each."""

    def __init__(self, main: relay.Function, cluster: Cluster) -> None:
        self._main = main
        self._cluster = cluster
        self._keys = device_keys(cluster)
        self._nodes = post_order(main.body)
        self._pin: dict[relay.Expr, DeviceKey] = {}
        self._group: dict[relay.Expr, relay.Expr] = {}
        """Union-find over values without a pin of their own: towards the root of the group."""
        self._edges: list[tuple[relay.Expr, relay.Expr]] = []
        """(reader, operand) with nothing between that could change the device."""
        self._said: list[tuple[relay.Expr, DeviceKey | None]] = []
        """What barriers, and `main` of its result, say of a value."""

    def run(self) -> dict[relay.Call, int]:
        ops = [n for n in self._nodes if isinstance(n, relay.Call) and not is_barrier(n)]
        self._read_pins()
        strong, weak = self._evidence()
        groups: dict[relay.Expr, list[relay.Call]] = defaultdict(list)
        for op in ops:
            if op not in self._pin:
                groups[self._root(op)].append(op)
        device_of: dict[relay.Expr, DeviceKey] = {}
        torn = []
        for group in groups:
            said = set(strong[group] or weak[group])
            if len(said) > 1:
                torn.append(group)
            elif said:
                (device_of[group],) = said
        self._pin_by_readers([op for group in torn for op in groups.pop(group)])
        self._spread_by_inputs(groups, device_of)
        keys = {op: self._pin[op] if op in self._pin else device_of[self._root(op)] for op in ops}
        return self._ids(keys)

    def _read_pins(self) -> None:
        for node in self._nodes:
            if not is_op_call(node, "on_device"):
                continue
            key = _sides(node)[0]
            if key is None:
                continue
            for op in _ops_in(node.args[0]):
                if self._pin.setdefault(op, key) != key:
                    raise LoweringError(
                        f"{op_name(op)} is torn between {self._text([self._pin[op], key])}: an op "
                        f"runs on one device; make its on_device annotations agree"
                    )

    def _evidence(
        self,
    ) -> tuple[dict[relay.Expr, list[DeviceKey]], dict[relay.Expr, list[DeviceKey]]]:
        """Join values into groups; return what ops with a pin and what barriers say of each."""
        self._said.append((self._main.body, device_key(self._main.virtual_device_)))
        for node in self._nodes:
            for operand in _operands(node):
                if is_barrier(node):
                    self._said.append((operand, _sides(node)[0]))
                elif is_barrier(operand) and _sides(operand)[1] is not None:
                    self._said.append((node, _sides(operand)[1]))
                else:
                    self._edges.append((node, operand))
        for node, operand in self._edges:
            ends = self._root(node), self._root(operand)
            is_free = node not in self._pin and operand not in self._pin
            if is_free and ends[0] != ends[1] and not isinstance(operand, relay.Var):
                self._group[ends[0]] = ends[1]
        strong: dict[relay.Expr, list[DeviceKey]] = defaultdict(list)
        weak: dict[relay.Expr, list[DeviceKey]] = defaultdict(list)
        for node, operand in self._edges:
            for value, other in ((node, operand), (operand, node)):
                if other in self._pin:
                    strong[self._root(value)].append(self._pin[other])
        for value, key in self._said:
            if key is not None:
                weak[self._root(value)].append(key)
        return strong, weak

    def _pin_by_readers(self, ops: list[relay.Call]) -> None:
        """Give each op of a group between devices that of its first reader, else of a neighbour.

        Readers come in the order of a walk from the result of `main`, first operands first.
        """
        pinned: dict[relay.Expr, DeviceKey] = dict(self._pin)
        waiting, seen = [self._main.body], set()
        while ops and waiting:
            node = waiting.pop()
            if node in seen:
                continue
            seen.add(node)
            key = _sides(node)[0] if is_barrier(node) else pinned.get(node)
            operands = list(_operands(node))
            for operand in operands:
                if key is not None:
                    pinned.setdefault(operand, key)
            waiting += reversed(operands)
        for value, key in self._said:
            if key is not None:
                pinned.setdefault(value, key)
        # Ends, as a group is connected, and something of it is known.
        while any(op not in pinned for op in ops):
            for node, operand in self._edges:
                if operand in pinned:
                    pinned.setdefault(node, pinned[operand])
            for node, operand in reversed(self._edges):
                if node in pinned:
                    pinned.setdefault(operand, pinned[node])
        self._pin |= {op: pinned[op] for op in ops}

    def _spread_by_inputs(
        self, groups: dict[relay.Expr, list[relay.Call]], device_of: dict[relay.Expr, DeviceKey]
    ) -> None:
        """Give the groups of which nothing is said the device of the readers of their inputs."""
        home = self._keys[home_device(self._cluster)]
        device_of_all = {**device_of, **self._pin}
        readers: dict[relay.Expr, list[relay.Expr]] = defaultdict(list)
        inputs: dict[relay.Expr, list[relay.Expr]] = defaultdict(list)
        for node in self._nodes:
            for operand in () if is_barrier(node) else _operands(node):
                if isinstance(operand, relay.Var):
                    readers[operand].append(node)
                    inputs[self._root(node)].append(operand)
        for group in groups:
            if group not in device_of:
                near = [
                    device_of_all.get(self._root(n))
                    for value in inputs[group]
                    for n in readers[value]
                ]
                near += [device_key(value.virtual_device_) for value in inputs[group]]
                keys = {key for key in near if key is not None}
                device_of[group] = keys.pop() if len(keys) == 1 else home

    def _root(self, value: relay.Expr) -> relay.Expr:
        while (above := self._group.get(value, value)) is not value:
            self._group[value] = self._group.get(above, above)
            value = above
        return value

    def _ids(self, keys: dict[relay.Call, DeviceKey]) -> dict[relay.Call, int]:
        unknown: dict[DeviceKey, list[str]] = defaultdict(list)
        for op, key in keys.items():
            if key not in self._keys:
                unknown[key].append(op_name(op))
        if unknown:
            places = "; ".join(
                f"{distinct(names)} on {_device_text(key)}" for key, names in unknown.items()
            )
            pairs = zip(self._keys, self._cluster.devices, strict=True)
            device_names = ", ".join(
                f"{_device_text(key)} ({device.name})" for key, device in pairs
            )
            raise LoweringError(
                f"the module places {places}, which cluster {self._cluster.name!r} does not have; "
                f"it has {device_names}. Mend the annotations, or build for a cluster with such a "
                f"device"
            )
        return {op: self._keys.index(key) for op, key in keys.items()}

    def _text(self, keys: Iterable[DeviceKey]) -> str:
        return " and ".join(sorted(map(_device_text, keys)))


def _device_text(key: DeviceKey) -> str:
    """E.g. "cpu:1"."""
    return f"{tvm.runtime.Device.MASK2STR.get(key[0], key[0])}:{key[1]}"
