"""A tensor that another memory needs in two layouts -> sent once, the second layout made there.

Tasks on devices of one target exchange tensors in the layouts of their kernels, and a tensor may be
read in several: by a convolution in blocks of channels, by the gradient of its weights as the model
has it. The change of layout is a call of whoever makes the tensor; where both are read in another
memory it is done once more there, instead of a second transfer.

before ==> after, for a on device d, b and c on device e with a memory of its own

    y = a(x) @ d; y' = layout(y) @ d; b(y) @ e; c(y') @ e    (y and y' are sent)
    ==>  y = a(x) @ d; b(y) @ e; y' = layout(y) @ e; c(y') @ e    (y is sent)
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

from heteroplace.lower.kernels import KernelCall, KernelCalls, Value
from heteroplace.lower.order.call_places import CallPlaces
from heteroplace.lower.order.instructions import root
from heteroplace.model.cluster import Cluster
from heteroplace.model.graph import TaskGraph
from heteroplace.model.op_traits.op_table import ops_where
from heteroplace.model.plan import Plan, Run

_MOVES = ops_where(lambda op: op.kind in ("view", "permute", "layout"))
"""Ops that compute nothing."""


def layout_kernels(calls: KernelCalls) -> frozenset[str]:
    """Return the kernels that only bring a value into another layout."""
    return frozenset(
        symbol
        for symbol, kernel in calls.kernels.items()
        if "layout_transform" in kernel.op and _MOVES.issuperset(kernel.op.split("+"))
    )


def with_remade_layouts(
    calls: KernelCalls, graph: TaskGraph, cluster: Cluster, plan: Plan
) -> KernelCalls:
    """Return the calls, changes of layout also where their results are read beside what they read.

    What collectives and joined values read stays as it is, and so do networks with routers. Of two
    changes of which one reads what the other makes, only one is made again.
    """
    if calls.routers or len(cluster.memories) == 1:
        return calls
    return _Remaking(calls, graph, cluster, plan).run()


class _Remaking:
    def __init__(self, calls: KernelCalls, graph: TaskGraph, cluster: Cluster, plan: Plan) -> None:
        self._calls = calls
        self._cluster = cluster
        self._plan = plan
        self._values: list[Value] = list(calls.values)
        places = CallPlaces(graph, cluster, plan)
        self._places = [places.of(call) for call in calls.calls]
        self._readers: dict[int, dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
        """By value with bytes of its own, and memory, the calls that read it."""
        self._kept: set[int] = set()
        """Values that others than kernels of runs read, or in another way."""
        self._note_readers()
        self._instead: dict[int, dict[int, int]] = defaultdict(dict)
        """By call, what it reads in place of values with bytes of their own."""
        self._before: dict[int, list[KernelCall]] = defaultdict(list)
        """By call, those that are made in front of it."""
        self._left: set[int] = set()
        """Calls whose results nobody reads any more."""
        self._remade: set[int] = set()
        """What calls make that are made again."""
        self._sources: set[int] = set()
        """What those calls read."""

    def run(self) -> KernelCalls:
        layouts = layout_kernels(self._calls)
        for index, call in enumerate(self._calls.calls):
            if call.kernel in layouts and len(call.writes) == 1:
                self._remake(index, call)
        calls = []
        for index, call in enumerate(self._calls.calls):
            if index not in self._left:
                calls += [*self._before.get(index, ()), self._reading(index, call)]
        return replace(self._calls, values=tuple(self._values), calls=tuple(calls))

    def _note_readers(self) -> None:
        calls = self._calls
        others = list(calls.outputs)
        for index, call in enumerate(calls.calls):
            if not call.kernel or not isinstance(self._plan.steps[self._places[index].step], Run):
                others += (*call.reads, *call.writes)
                continue
            for value in dict.fromkeys(root(calls, read) for read in call.reads):
                self._readers[value][self._places[index].memory].append(index)
        for each in calls.values:
            others += () if each.joined is None else each.joined.parts
            others += () if each.in_place_of is None else (each.in_place_of,)
        self._kept.update(root(calls, value) for value in others)

    def _remake(self, index: int, call: KernelCall) -> None:
        """Make what a change of layout makes in each memory that has what it reads as well."""
        (output,), read = call.writes, {root(self._calls, value) for value in call.reads}
        is_plain = len(read) == 1 and root(self._calls, output) == output
        if not is_plain or not self._kept.isdisjoint((output, *read)):
            return
        if output in self._sources or not self._remade.isdisjoint(read):
            return  # calls that are made again read it: these have no place yet among its readers
        (source,), readers = read, self._readers[output]
        home = self._places[index].memory
        remade = [
            memory
            for memory in readers
            if memory != home
            and memory in self._readers[source]
            and self._is_alike(index, readers[memory])
        ]
        for memory in remade:
            again = self._add(self._values[output])
            first = self._places[readers[memory][0]]
            at = first.step, first.device
            self._before[readers[memory][0]].append(replace(call, writes=(again,), at=at))
            for reader in readers[memory]:
                self._instead[reader][output] = again
            self._remade.add(output)
            self._sources.add(source)
        if remade and len(remade) == len(readers):
            self._left.add(index)

    def _is_alike(self, call: int, readers: Sequence[int]) -> bool:
        """Whether the first reader can make a call, and what it makes is for all of them."""
        devices = [self._cluster.devices[self._places[each].device] for each in (call, readers[0])]
        items = {self._calls.calls[each].items for each in (call, *readers)}
        return len({(device.kind, device.target) for device in devices}) == len(items) == 1

    def _reading(self, index: int, call: KernelCall) -> KernelCall:
        instead = self._instead.get(index)
        if instead is None:
            return call
        reads = []
        for value in call.reads:
            whole = root(self._calls, value)
            stand_in = instead.get(whole, value)
            if whole in instead and whole != value:
                stand_in = self._add(replace(self._values[value], alias_of=stand_in))
            reads.append(stand_in)
        return replace(call, reads=tuple(reads))

    def _add(self, value: Value) -> int:
        self._values.append(value)
        return len(self._values) - 1
