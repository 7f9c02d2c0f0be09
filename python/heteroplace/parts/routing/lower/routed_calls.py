"""Lowered versions of a routed module -> kernel calls with a variant for each capacity.

The calls of a task in all versions are paired from its last one on, and what they make is one
value. Of a branch with rows that is a part of a routed buffer: rows that a dispatch has put there,
rows that a combine will read, or in between a buffer that branches with equal rows share, since no
two branches have the same rows. Whoever writes and reads a value in a round does so at the same
capacity, so a layout in which rows are not outermost is as good as any. What is made of no rows, as
another layout of weights that the model is given, is a value of its own at each capacity.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace

from heteroplace.errors import LoweringError
from heteroplace.lower.kernels import (
    KernelCall,
    KernelCalls,
    RouterValues,
    Rows,
    Value,
    Variant,
)
from heteroplace.lower.program import KERNEL_ALIGNMENT_BYTES
from heteroplace.lower.segment_calls import NetworkPart
from heteroplace.lower.segments import ValueName
from heteroplace.lower.workspace import Workspace
from heteroplace.model.graph import TaskGraph, tensor_bytes
from heteroplace.model.routed.routers import Router
from heteroplace.parts.routing.lower.paired_calls import PairedCall, Version, paired_calls
from heteroplace.parts.routing.lower.routed_module import Branch, RoutedModule
from heteroplace.relay.expressions import static_shape

_MAIN = -1
"""In place of a version: what is in no branch."""


class RoutedCombiner:
    """Puts the calls of what is in no branch and of all versions of the branches together."""

    def __init__(
        self,
        graph: TaskGraph,
        cut: RoutedModule,
        main: NetworkPart,
        versions: Sequence[Version],
        names: Sequence[ValueName],
    ) -> None:
        self._graph = graph
        self._cut = cut
        self._versions = versions
        self._names = names
        """For each field of the cut module's result."""
        self._routers = {router.name: router for router in graph.routers}
        self._branch_of = {task.name: task.branch for task in graph.tasks}
        self._parts = {_MAIN: main} | {at: each.part for at, each in enumerate(versions)}
        self._imports = {
            at: {value: name for name, value in part.imports.items()}
            for at, part in self._parts.items()
        }
        self._exported: dict[ValueName, list[tuple[int, int]]] = defaultdict(list)
        """By name, the version and its value."""
        for at, part in self._parts.items():
            for name, value in zip(part.exports, part.calls.outputs, strict=True):
                self._exported[name].append((at, value))
        self._values: list[Value] = []
        self._ids: dict[tuple[int, int], int] = {}
        """By version and value of its part."""
        self._arguments: dict[tuple[int, int], int] = {}
        """As kernels of the version want them."""
        self._weights: dict[int, int] = {}
        """By identity: parts share equal ones."""
        self._inputs: dict[str, int] = {}
        self._buffers: dict[str, int] = {}
        """By name of the variable: what is joined."""
        self._taken: dict[str, int] = {}
        """By name of the variable: what is taken."""
        self._row_bytes: dict[int, int] = {}
        """Of values that are rows."""

    def run(self, inputs: Sequence[Value]) -> KernelCalls:
        """Return all calls.

        Parameters
        ----------
        inputs
            Of the model; the first values of the result.
        """
        for value in inputs:
            assert value.input_name is not None
            self._inputs[value.input_name] = self._add(value)
        rows = {*self._cut.taken, *self._cut.joined}
        rows |= {name for name, at in self._cut.read.items() if self._names[at].name in rows}
        groups = paired_calls(self._graph, self._versions, self._whole_names(), rows)
        for group in groups:
            self._unify(group)
        for name in self._cut.joined:
            self._join(name)
        self._place_others(groups)
        first = 1 + max((call.segment for call in self._parts[_MAIN].calls.calls), default=-1)
        calls = [self._main_call(call) for call in self._parts[_MAIN].calls.calls]
        calls += [self._branch_call(group, first) for group in groups]
        routers = tuple(self._router(router) for router in self._graph.routers)
        outputs = tuple(self._made(name) for name in self._names[: self._cut.num_outputs])
        kernels = {
            symbol: kernel
            for part in self._parts.values()
            for symbol, kernel in part.calls.kernels.items()
        }
        return KernelCalls(tuple(self._values), tuple(calls), outputs, kernels, routers)

    def _whole_names(self) -> set[ValueName]:
        """What branches make for nested routers and their buffers, though it may have rows."""
        positions = {taken.buffer for taken in self._cut.taken.values()}
        for values_of in self._cut.routers.values():
            positions |= {values_of.seats, values_of.loads, values_of.offsets}
        return {self._names[position] for position in positions}

    def _own(self, version: int, value: int) -> Value:
        return self._parts[version].calls.values[value]

    def _unify(self, group: PairedCall) -> None:
        """One value for what the versions of a call make."""
        largest = max(group.calls)
        writes = []
        for at, row_bytes in enumerate(group.row_bytes):
            own = self._own(largest, group.calls[largest].writes[at])
            value = self._add(Value(own.shape, own.dtype))
            if row_bytes is not None:
                self._row_bytes[value] = row_bytes
            for version, call in group.calls.items():
                self._ids[version, call.writes[at]] = value
            writes.append(value)
        group.writes = tuple(writes)
        if None in group.row_bytes and not group.is_fixed:
            self._check_whole(group)

    def _check_whole(self, group: PairedCall) -> None:
        """Raise LoweringError if what is not in rows would be made anew by each round."""
        router = self._routers[group.branch[0]]
        sizes = router.capacities[group.branch[1]]
        if group.branch[0] not in self._cut.num_rows or not _has_rounds(router, sizes):
            return
        raise LoweringError(
            f"task {group.task!r} of branch {group.branch[1]} of router {router.name!r} makes a "
            f"value that is not so many bytes for each row, and the branch runs in rounds of "
            f"{sizes[-1]} of {router.num_cells} cells; give the branch a capacity that holds all "
            f"of them"
        )

    def _join(self, name: str) -> None:
        """The buffer in which the results of all branches are, each its rows."""
        joined = self._cut.joined[name]
        buffer = self._buffers[name] = self._add(self._variable(name))
        for branch, position in enumerate(joined.results):
            value = self._root(self._made(self._names[position]))
            is_free = value in self._row_bytes and self._values[value].rows is None
            maker = self._names[position].task
            if not is_free or self._branch_of.get(maker) != (joined.router, branch):
                raise LoweringError(
                    f"what branch {branch} of router {joined.router!r} makes is not the result of "
                    f"a task of its own, or is joined twice; copy it in the branch"
                )
            self._put(value, buffer, (joined.router, branch))

    def _variable(self, name: str) -> Value:
        """A value like a variable of the cut module."""
        (type_,) = (
            parameter.checked_type
            for parameter in self._cut.mod["main"].params
            if parameter.name_hint == name
        )
        return Value(static_shape(type_), type_.dtype)

    def _put(self, value: int, buffer: int, branch: Branch) -> None:
        """Make a value the rows of a branch in a buffer."""
        dtype, row_bytes = self._values[value].dtype, self._row_bytes[value]
        router = self._routers[branch[0]]
        self._check_aligned(router, branch[1], row_bytes)
        shape = (self._cut.num_rows[router.name], row_bytes // tensor_bytes((1,), dtype))
        self._values[value] = Value(shape, dtype, rows=Rows(buffer, *branch))

    def _check_aligned(self, router: Router, branch: int, row_bytes: int) -> None:
        sizes = router.capacities[branch]
        steps = [router.quantum, *(sizes[-1:] if _has_rounds(router, sizes) else ())]
        if any(step * row_bytes % KERNEL_ALIGNMENT_BYTES for step in steps):
            raise LoweringError(
                f"rows of {row_bytes} B in branch {branch} of router {router.name!r} begin at "
                f"multiples of {min(steps)} rows, and kernels take tensors at multiples of "
                f"{KERNEL_ALIGNMENT_BYTES} B; give the router a quantum, and the branch a largest "
                f"capacity, of which that is so"
            )

    def _place_others(self, groups: Sequence[PairedCall]) -> None:
        """Buffers for what branches make and read themselves; those of other branches share them.

        Two values of one branch are never in one: they may be there at the same time.
        """
        shared: dict[tuple[str, int, str, int], int] = {}
        counts: Counter[tuple[Branch, int, str]] = Counter()
        for group in groups:
            for value in group.writes:
                if value not in self._row_bytes or self._values[value].rows is not None:
                    continue
                row_bytes, dtype = self._row_bytes[value], self._values[value].dtype
                router = group.branch[0]
                key = (router, row_bytes, dtype, counts[group.branch, row_bytes, dtype])
                counts[group.branch, row_bytes, dtype] += 1
                if key not in shared:
                    elements = row_bytes // tensor_bytes((1,), dtype)
                    shape = (self._cut.num_rows[router], elements)
                    shared[key] = self._add(Value(shape, dtype))
                self._put(value, shared[key], group.branch)

    def _main_call(self, call: KernelCall) -> KernelCall:
        return replace(
            call,
            reads=tuple(self._argument(_MAIN, value) for value in call.reads),
            writes=tuple(self._value(_MAIN, value) for value in call.writes),
        )

    def _branch_call(self, group: PairedCall, first_segment: int) -> KernelCall:
        variants = []
        for version in sorted(group.calls):
            call = group.calls[version]
            variants.append(
                Variant(
                    self._versions[version].capacities[group.branch],
                    call.kernel,
                    tuple(self._argument(version, value) for value in call.reads),
                    tuple(self._argument(version, value) for value in call.writes),
                )
            )
        last = group.calls[max(group.calls)]
        needs = [call.workspace for call in group.calls.values()]
        workspace = Workspace(
            max(need.caller_bytes for need in needs), max(need.helper_bytes for need in needs)
        )
        reads = dict.fromkeys(self._root(read) for variant in variants for read in variant.reads)
        return KernelCall(
            last.kernel,
            first_segment + last.segment,
            group.task,
            tuple(reads),
            group.writes,
            workspace,
            branch=group.branch,
            variants=tuple(variants),
        )

    def _router(self, router: Router) -> RouterValues:
        values_of = self._cut.routers[router.name]
        num_rows = self._cut.num_rows.get(router.name, 0)
        loads, offsets, seats = (
            self._root(self._made(self._names[position]))
            for position in (values_of.loads, values_of.offsets, values_of.seats)
        )
        # Where the branch around it drops cells, a nested router has seats for fewer of them.
        has_all = self._values[seats].shape[0] == router.num_cells
        return RouterValues(
            router, loads, offsets if num_rows else None, seats if has_all else None, num_rows
        )

    def _add(self, value: Value) -> int:
        self._values.append(value)
        return len(self._values) - 1

    def _root(self, value: int) -> int:
        while (alias_of := self._values[value].alias_of) is not None:
            value = alias_of
        return value

    def _argument(self, version: int, value: int) -> int:
        """A value as a kernel of a version wants it: of its shape."""
        if (version, value) not in self._arguments:
            value_index, own = self._value(version, value), self._own(version, value)
            if self._values[value_index].shape != own.shape:
                value_index = self._add(Value(own.shape, own.dtype, alias_of=value_index))
            self._arguments[version, value] = value_index
        return self._arguments[version, value]

    def _value(self, version: int, value: int) -> int:
        """The value of the program that one of a part is, or shares its bytes with."""
        if (version, value) not in self._ids:
            own, name = self._own(version, value), self._imports[version].get(value)
            if name is not None:
                value_index = self._imported(name, own)
            elif own.alias_of is not None:
                base = self._value(version, own.alias_of)
                value_index = self._add(Value(own.shape, own.dtype, alias_of=base))
            elif own.constant is not None:
                value_index = self._weight(own)
            else:
                value_index = self._add(own)
            self._ids[version, value] = value_index
        return self._ids[version, value]

    def _weight(self, own: Value) -> int:
        """A weight; what versions have in common is one value."""
        if id(own) not in self._weights:
            self._weights[id(own)] = self._add(own)
        return self._weights[id(own)]

    def _imported(self, name: ValueName, own: Value) -> int:
        """What a variable of the cut module stands for."""
        cut = self._cut
        if name.name in cut.taken and name.index is None:
            return self._taken_rows(name.name)
        if name.name in self._buffers and name.index is None:
            return self._buffers[name.name]
        if name.name not in cut.read:
            return self._inputs[name.name]
        source = self._names[cut.read[name.name]]
        value_index = self._made(source)
        root = self._values[self._root(value_index)]
        if self._root(value_index) in self._row_bytes or root.bytes != own.bytes:
            raise LoweringError(
                f"rows of a branch, {source.name} of task {source.task!r}, are read outside of it; "
                f"only what joins the branches reads them"
            )
        return value_index

    def _taken_rows(self, name: str) -> int:
        if name not in self._taken:
            taken = self._cut.taken[name]
            buffer = self._root(self._made(self._names[taken.buffer]))
            whole = self._values[buffer]
            value = self._add(Value((), whole.dtype))
            self._row_bytes[value] = whole.bytes // self._cut.num_rows[taken.branch[0]]
            self._put(value, buffer, taken.branch)
            self._taken[name] = value
        return self._taken[name]

    def _made(self, name: ValueName) -> int:
        """What the cut module's result has under a name."""
        if name.index is None:
            if name.name in self._cut.taken:
                return self._taken_rows(name.name)
            candidates = self._buffers if name.name in self._buffers else self._inputs
            return candidates[name.name]
        values = [self._value(*place) for place in self._exported[name]]
        if len({self._root(value) for value in values}) != 1:
            raise LoweringError(
                f"task {name.task!r} makes {name.name} by unlike kernels at its capacities; give "
                f"its branch a single capacity"
            )
        return values[-1]


def _has_rounds(router: Router, sizes: Sequence[int]) -> bool:
    return router.overflow == "rounds" and sizes[-1] < router.num_cells
