"""Segments -> kernel calls, with the lowered kernels behind them.

Equal groups share one kernel. Each call is traced to its task by the spans inside the fused
function; a call without one (an inserted layout_transform) belongs to the task whose value it
converts.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import tvm
from tvm import relay
from tvm.relay.backend import te_compiler

from heteroplace.entries import load_entry
from heteroplace.errors import LoweringError
from heteroplace.lower.kernel_provider import Tunings, kernel_variants
from heteroplace.lower.kernels import Kernel, KernelCall, KernelCalls, Value
from heteroplace.lower.library import KernelCompiler
from heteroplace.lower.lower_kernel import (
    finished,
    kernel_of,
    kernel_symbol,
    lower_kernel,
    op_text,
)
from heteroplace.lower.nameless import nameless
from heteroplace.lower.segments import Segment, ValueName
from heteroplace.lower.weight_blob import EqualWeights
from heteroplace.lower.workspace import Workspace
from heteroplace.model.kernel_rules import why_barred
from heteroplace.model.op_traits.op_record import WRITE_ROWS_OP
from heteroplace.relay.expressions import (
    is_primitive_call,
    post_order,
    shared_array,
    static_shape,
    tasks_in,
    tensor_types,
)
from heteroplace.relay.targets import has_stock_kernels, variant_maker
from heteroplace.stage_log import Count
from heteroplace.tvm_bridge import lowering_by_tvm

_ROWS_IN_PLACE = "heteroplace.lower.rows_in_place:with_rows_in_place"
"""Loaded for a network with a cache."""


def lower_segments(
    segments: Sequence[Segment],
    inputs: Sequence[relay.Var],
    outputs: Sequence[ValueName],
    targets: Mapping[str, tvm.target.Target] | None = None,
    tunings: Tunings | None = None,
    on_kernel: Count | None = None,
    compiler: KernelCompiler | None = None,
) -> KernelCalls:
    """Lower every fused function of every segment and list the calls.

    Parameters
    ----------
    inputs, outputs
        Of the model. The first values of the result are the inputs, used or not.
    targets
        Of tasks whose kernels are for another target than their segment, by name; the layouts are
        those of the segment.
    tunings
        For targets of kernel variants. A task for such a target gets its segment's kernel where
        there is no tuning.
    on_kernel
        Counts the kernels.
    compiler
        Makes the kernels of CPUs, with their code. None: they are lowered here, and not compiled.

    Raises
    ------
    LoweringError
        TVM has no implementation of an op on a target, or a task is for kernel variants and there
        are no tunings.
    PluginError
        No installed package has the kernel variants of a task.
    """
    for task, target in (targets or {}).items():
        maker = variant_maker(target)
        if maker is not None and not tunings:
            variants = kernel_variants(maker)
            raise LoweringError(
                f"task {task!r} was placed with a {variants.description}, and the module has lost "
                f"its tunings; place the model again, or with {variants.option}='off'"
            )
    # What is kept from earlier networks may come from other tuning records than those in force.
    te_compiler.get().clear()
    lowerer = _Lowerer(
        targets=targets or {}, tunings=tunings or {}, on_kernel=on_kernel, compiler=compiler
    )
    for parameter in inputs:
        lowerer.add_input(parameter)
    with lowering_by_tvm():
        for index, segment in enumerate(segments):
            lowerer.add_segment(index, segment)
        return lowerer.finish(outputs)


@dataclass(frozen=True)
class NetworkPart:
    """Segments that were lowered without the rest of their network."""

    calls: KernelCalls
    """Its `outputs` are the values of `exports`."""
    imports: Mapping[ValueName, int]
    """The value that stands for each model input, and for what the rest makes."""
    exports: tuple[ValueName, ...]


def lower_parts(parts: Sequence[Sequence[Segment]]) -> list[NetworkPart]:
    """Lower parts of one network; what a part does not make itself, it imports.

    Kernels and weights that they have in common are the same ones. Raises as `lower_segments`.
    """
    te_compiler.get().clear()
    kernels: dict[str, Kernel] = {}
    weights: _Weights = defaultdict(EqualWeights)
    constants: dict[_Address, Value] = {}
    network_parts = []
    with lowering_by_tvm():
        for segments in parts:
            lowerer = _Lowerer(kernels=kernels, weights=weights, constants=constants)
            exports = tuple(name for segment in segments for name in segment.exports)
            imports = {
                source: parameter
                for segment in segments
                for source, parameter in zip(segment.sources, segment.main.params, strict=True)
                if source not in exports
            }
            values = {name: lowerer.add_import(name, var) for name, var in imports.items()}
            for index, segment in enumerate(segments):
                lowerer.add_segment(index, segment)
            network_parts.append(NetworkPart(lowerer.finish(exports), values, exports))
    return network_parts


_Weights = dict[tuple[tuple[int, ...], str], EqualWeights]
"""By shape and type."""
_Address = tuple[int | None, tuple[int, ...], str]
"""Where a constant lies (None: it is empty), its shape and type."""


@dataclass
class _Lowerer:
    values: list[Value] = field(default_factory=list)
    calls: list[KernelCall] = field(default_factory=list)
    kernels: dict[str, Kernel] = field(default_factory=dict)
    named: dict[ValueName, int] = field(default_factory=dict)
    """Value of each input and import, and of each exported name."""
    imported: set[ValueName] = field(default_factory=set)
    weights: _Weights | None = None
    """Those that parts share; None: there is one part, in which nearly all differ."""
    constants: dict[_Address, Value] = field(default_factory=dict)
    """The weights that are known; the segments keep them in memory."""
    targets: Mapping[str, tvm.target.Target] = field(default_factory=dict)
    """Of tasks whose kernels are not for the target of their segment."""
    tunings: Tunings = field(default_factory=dict)
    forwards: dict[int, ValueName] = field(default_factory=dict)
    """Values that stand for what a later segment may export, until all are known."""
    variants: dict[tuple[str, str, str], str] = field(default_factory=dict)
    """Symbols of kernel variants by maker, key and target."""
    on_kernel: Count | None = None
    compiler: KernelCompiler | None = None

    def add_input(self, parameter: relay.Var) -> None:
        (type_,) = tensor_types(parameter.checked_type)
        name = parameter.name_hint
        self.named[ValueName(name)] = self._add(type_, input_name=name)
        self.imported.add(ValueName(name))

    def add_import(self, name: ValueName, parameter: relay.Var) -> int:
        """Add a value that is made elsewhere."""
        (type_,) = tensor_types(parameter.checked_type)
        self.named[name] = self._add(type_)
        self.imported.add(name)
        return self.named[name]

    def add_segment(self, index: int, segment: Segment) -> None:
        visited: dict[relay.Expr, tuple[int, ...]] = {}
        for parameter, source in zip(segment.main.params, segment.sources, strict=True):
            visited[parameter] = (self._source(parameter, source),)
        with segment.target:
            for node in post_order(segment.main.body):
                if not isinstance(node, (relay.Var, relay.Function, tvm.ir.Op)):
                    visited[node] = self._visit(node, index, segment, visited)
        results = visited[segment.main.body]
        for name, value in zip(segment.exports, results, strict=True):
            self.named[name] = value

    def finish(self, outputs: Sequence[ValueName]) -> KernelCalls:
        resolved = {value: self.named[name] for value, name in self.forwards.items()}

        def real(value: int) -> int:
            while value in resolved:
                value = resolved[value]
            return value

        if self.compiler is not None:
            self.kernels.update(self.compiler.kernels(self.on_kernel))
        calls = [
            replace(
                each,
                reads=tuple(map(real, each.reads)),
                workspace=self.kernels[each.kernel].workspace,
            )
            for each in self._attributed()
        ]
        values = [
            value
            if value.alias_of is None
            else Value(value.shape, value.dtype, alias_of=real(value.alias_of))
            for value in self.values
        ]
        results = tuple(real(self.named[name]) for name in outputs)
        return KernelCalls(tuple(values), tuple(calls), results, self.kernels)

    def _source(self, parameter: relay.Var, source: ValueName) -> int:
        if source in self.imported:
            return self.named[source]
        (type_,) = tensor_types(parameter.checked_type)
        value = self._add(type_)
        self.forwards[value] = source
        return value

    def _add(
        self,
        type_: relay.TensorType,
        input_name: str | None = None,
        alias_of: int | None = None,
    ) -> int:
        shape = static_shape(type_)
        self.values.append(Value(shape, type_.dtype, input_name, alias_of=alias_of))
        return len(self.values) - 1

    def _add_weight(self, node: relay.Constant) -> int:
        (type_,) = tensor_types(node.checked_type)
        shape = static_shape(type_)
        at = node.data.handle.contents.data, shape, type_.dtype
        if at not in self.constants:
            value = Value(shape, type_.dtype, None, shared_array(node.data))
            if self.weights is not None:
                value = self.weights[value.shape, value.dtype].first_of(value)
            self.constants[at] = value
        self.values.append(self.constants[at])
        return len(self.values) - 1

    def _visit(
        self,
        node: relay.Expr,
        index: int,
        segment: Segment,
        visited: dict[relay.Expr, tuple[int, ...]],
    ) -> tuple[int, ...]:
        if isinstance(node, relay.Constant):
            return (self._add_weight(node),)
        if isinstance(node, relay.Tuple):
            return tuple(value for member in node.fields for value in visited[member])
        if isinstance(node, relay.TupleGetItem):
            return (visited[node.tuple_value][node.index],)
        if not is_primitive_call(node):
            raise LoweringError(f"cannot lower {type(node).__name__}: FuseOps left it unfused")
        tasks, types = tasks_in(node.op), tensor_types(node.checked_type)
        task = tasks[-1] if tasks else ""
        own = self.targets.get(task, segment.target)
        if has_stock_kernels(own) and own is not segment.target:
            for as_stock in segment.as_stock:
                node = as_stock(node)
            for argument in node.args:
                if argument not in visited:
                    visited[argument] = (self._add_weight(argument),)
        reads = tuple(value for argument in node.args for value in visited[argument])
        if _is_alias(node):
            return (self._add(types[0], alias_of=reads[0]),)
        writes = tuple(self._add(type_) for type_ in types)
        if (maker := variant_maker(own)) is not None:
            kernel = self._lower_variant(node.op, segment.target, maker)
        else:
            made_for = own if has_stock_kernels(own) else segment.target
            kernel = self._lower(nameless(node.op), made_for)
        call = KernelCall(kernel, index, task, reads, writes)
        if self.kernels[kernel].op == WRITE_ROWS_OP:
            call = load_entry(_ROWS_IN_PLACE)(call, self.kernels)
        self.calls.append(call)
        return writes

    def _lower_variant(
        self, function: relay.Function, target: tvm.target.Target, maker: str
    ) -> str:
        """Lower as a kernel variant of a maker; without a tuning, as for the target itself."""
        variants = kernel_variants(maker)
        with target:
            key = variants.key(function, target)
            if key is None or key not in self.tunings:
                return self._lower(function, target)
            at = maker, key, str(target)
            if at not in self.variants:
                symbol, functions = variants.lower(function, target, key, self.tunings[key])
                if functions is not None:
                    functions = finished(functions, function, target)
                self.kernels[symbol] = kernel_of(symbol, functions, function, target)
                self.variants[at] = symbol
        return self.variants[at]

    def _lower(self, function: relay.Function, target: tvm.target.Target) -> str:
        ops = op_text(function)
        barred = why_barred(ops, target.kind.name)
        if barred:
            raise LoweringError(
                f"{ops} is placed on a GPU: {barred}, for example by "
                f"pin={{'topk': 'cpu'}} after other patterns, or place the model again"
            )
        symbol = kernel_symbol(function, target)
        if symbol in self.kernels:
            return symbol
        is_cpu = target.kind.name == "llvm"
        if self.compiler is None or not is_cpu or ops == WRITE_ROWS_OP:
            self.kernels[symbol] = lower_kernel(symbol, function, target)
        else:
            self.compiler.add(symbol, function, target)
            self.kernels[symbol] = Kernel(symbol, None, target, Workspace(), ops)
        return symbol

    def _attributed(self) -> list[KernelCall]:
        """The calls, each of them with a task.

        Those without a span convert what a task makes or reads: they get the task of the nearest
        call of their segment whose value they read, or else the one whose result they make, or
        else that of the first call that reads theirs.
        """
        tasks = [call.task for call in self.calls]
        reads = [[self._owner(value) for value in call.reads] for call in self.calls]
        maker = {value: i for i, call in enumerate(self.calls) for value in call.writes}
        for index, values in enumerate(reads):  # within a segment, operands come first
            before = [tasks[maker[value]] for value in values if value in maker]
            tasks[index] = tasks[index] or next(filter(None, before), "")
        for name, value in self.named.items():
            owner = self._owner(value)
            if owner in maker:
                tasks[maker[owner]] = tasks[maker[owner]] or name.task
        readers: list[list[int]] = [[] for _ in self.calls]
        for index, values in enumerate(reads):
            for value in values:
                if value in maker:
                    readers[maker[value]].append(index)
        for index in reversed(range(len(reads))):
            tasks[index] = tasks[index] or next((tasks[i] for i in readers[index] if tasks[i]), "")
        assert all(tasks)  # what no task reads, is read through others, or is exported
        return [replace(call, task=task) for call, task in zip(self.calls, tasks, strict=True)]

    def _owner(self, value: int) -> int:
        """The value whose bytes this one shares. What another segment makes stays apart: a kernel
        is of its own segment's target, and so must be its task."""
        alias = self.values[value].alias_of
        while alias is not None:
            value, alias = alias, self.values[alias].alias_of
        return value


def _is_alias(call: relay.Call) -> bool:
    """Whether the result of a fused function is its operand, in another shape."""
    attrs = call.op.attrs
    return "relay.reshape_only" in attrs and bool(int(attrs["relay.reshape_only"]))
