"""Neutral module + placement -> one optimised, fused function for each target.

A segment is everything that runs on devices of one target, whatever it is connected to: it is
optimised as one function (layouts included), so that a plan on one target has exactly TVM's own
kernels, and a layout changes only where the target changes. (Cutting by device instead costs 3 to
13 %: every cut falls back to the neutral layout.)

Values that cross from one segment to another become parameters there and results here; they keep
their neutral layout. A segment need not be convex: it is never called as a function, its kernels
are scheduled one by one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field

import tvm
from tvm import relay

from heteroplace.errors import LoweringError
from heteroplace.lower.dense_products import DenseProducts
from heteroplace.lower.kernel_provider import (
    SegmentPasses,
    SharedForms,
    kernel_providers,
    kernel_variants,
)
from heteroplace.lower.layout_rules import register_layout_rules
from heteroplace.relay.expr_map import ExprSet
from heteroplace.relay.expressions import (
    function_pass,
    is_op_call,
    leaves,
    post_order,
    task_of_span,
    tasks_in,
)
from heteroplace.relay.index_guards import GuardIndices
from heteroplace.relay.legalize import Legalize
from heteroplace.relay.targets import has_product_library, kernel_target, variant_maker
from heteroplace.relay.tasks.kept_casts import KeptCasts
from heteroplace.relay.tasks.prepare import fuse, prefix_passes
from heteroplace.relay.tasks.split_repeated import split_groups
from heteroplace.relay.tasks.split_tasks import SplitTasks, casts_within_tasks
from heteroplace.tir.quiet_argmax import register_quiet_argmax
from heteroplace.tvm_bridge import lowering_by_tvm


@dataclass(frozen=True, slots=True)
class ValueName:
    """The name of a tensor that segments exchange, or that is a result of the model."""

    name: str
    """Of a model input; else of the op call that makes it, unique in the module, and the same when
    the network is for another number of items."""
    index: int | None = None
    """Which result of that call; None: it is a model input."""
    task: str = ""
    """The task that makes it; empty: it is a model input."""


@dataclass(frozen=True)
class Segment:
    """The part of the network that is compiled for one target."""

    target: tvm.target.Target
    main: relay.Function
    """Fused: each call in it calls one primitive function. Returns a tuple."""
    sources: tuple[ValueName, ...]
    """For each parameter the name of the value: a model input, or what another segment exports."""
    exports: tuple[ValueName, ...]
    """For each field of the result the name under which it is known outside."""
    as_stock: tuple[Callable[[relay.Call], relay.Call], ...] = ()
    """Each removes the ops of a kernel provider from a call (`SegmentPasses.as_stock`)."""


@dataclass
class _OpenSegment:
    """A segment while it is cut out."""

    mapped: dict[relay.Expr, relay.Expr] = field(default_factory=dict)
    params: dict[ValueName, relay.Var] = field(default_factory=dict)
    exports: dict[ValueName, relay.Expr] = field(default_factory=dict)


def cut_segments(
    mod: tvm.IRModule,
    targets: tuple[tvm.target.Target | None, ...],
    target_of_task: Mapping[str, int],
    shared: SharedForms | None = None,
    own_targets: Mapping[str, tvm.target.Target] | None = None,
) -> tuple[tuple[Segment, ...], tuple[ValueName, ...]]:
    """Cut `mod` by target and optimise each segment under its own.

    Parameters
    ----------
    mod
        Neutral module; the span of each call names its task.
    targets
        The distinct targets; None: its tasks are left out, and are known by what they exchange with
        the others.
    target_of_task
        Position in `targets` for each task.
    shared
        Forms of weights that the modules of branches share. None: this is the only module.
    own_targets
        Of tasks that have the key of another maker, by name. They lie in the segment of the target
        without it.

    Returns
    -------
    segments, outputs
        Only targets that are used have a segment; `outputs` are the names of the model's results,
        tuples flattened.

    Raises
    ------
    LoweringError
        An op that belongs to no task.
    """
    providers = kernel_providers()
    for provider in providers.values():
        provider.register()
    register_quiet_argmax()
    register_layout_rules()
    cutter = _Cutter(mod["main"], target_of_task, len(targets))
    outputs = cutter.run()
    segments = []
    for target, segment in zip(targets, cutter.open, strict=True):
        if segment.exports and target is not None:
            function = relay.Function(
                list(segment.params.values()), relay.Tuple(list(segment.exports.values()))
            )
            target = kernel_target(target)
            added = [
                provider.segment_passes(
                    target,
                    None if shared is None else shared.setdefault(name, {}),
                    own_targets or {},
                )
                for name, provider in providers.items()
            ]
            main = _optimise(function, target, added, own_targets or {})
            names = tuple(segment.params), tuple(segment.exports)
            as_stock = tuple(each.as_stock for each in added if each.as_stock is not None)
            segments.append(Segment(target, main, *names, as_stock))
    return tuple(segments), outputs


def _optimise(
    function: relay.Function,
    target: tvm.target.Target,
    added: Sequence[SegmentPasses],
    own_targets: Mapping[str, tvm.target.Target],
) -> relay.Function:
    """Run the passes of relay.build that need the target, with the added ones, then FuseOps within
    each task."""
    passes = prefix_passes(is_homogeneous=True)
    names = [step.info.name for step in passes]
    simplifier = names.index("SimplifyExprPostAlterOp")
    passes[simplifier] = casts_within_tasks(passes[simplifier])
    is_dense = target.kind.name != "llvm" and not has_product_library(target)
    chosen = [
        *(step for each in added for step in each.before_legalize),
        # KeptCasts after Legalize, which puts casts after the model's own.
        *(GuardIndices(), Legalize(), KeptCasts()),
        *([DenseProducts()] if is_dense else []),
        *(step for each in added for step in each.before_layouts),
        *passes[names.index("AlterOpLayout") :],
        *(step for each in added for step in each.after_layouts),
    ]
    mod = relay.transform.InferType()(tvm.IRModule.from_expr(function))
    # Sequential runs each pass whose opt level the PassContext admits, as relay.build does.
    with target, lowering_by_tvm():
        mod = tvm.transform.Sequential(chosen)(mod)
        apart = [SplitTasks(), SplitVariants(own_targets), relay.transform.InferType()]
        return tvm.transform.Sequential(apart)(fuse(mod))["main"]


def SplitVariants(  # noqa: N802  (named as TVM names its passes)
    own_targets: Mapping[str, tvm.target.Target],
) -> tvm.transform.Pass:
    """Return the pass, after FuseOps, that splits groups of which a variant computes but a part.

    Parameters
    ----------
    own_targets
        As of `cut_segments`.
    """
    makers = {task: variant_maker(target) for task, target in own_targets.items()}
    variants = {maker: kernel_variants(maker) for maker in set(makers.values()) if maker}

    def cuts(group: relay.Function) -> ExprSet:
        tasks = tasks_in(group)
        maker = makers.get(tasks[-1]) if tasks else None
        return ExprSet() if maker is None else variants[maker].cuts(group)

    def run(function: relay.Function) -> relay.Function:
        return split_groups(function, cuts) if variants else function

    return function_pass("SplitVariants", run)


def planned_task(call: relay.Call, tasks: Container[str]) -> str:
    """Return the task of a plan that a call is of.

    Raises
    ------
    LoweringError
        It is of none that is known.
    """
    task = task_of_span(call)
    if task is None or task not in tasks:
        raise LoweringError(
            f"op {getattr(call.op, 'name', 'function')} belongs to no task of the plan: the module "
            f"was changed after it was planned; plan it again, or run HeteroPlace as the last pass"
        )
    return task


def call_names(main: relay.Function) -> dict[relay.Call, str]:
    """Return a name for each op call of a neutral function, unique in it.

    They are numbered within their task. A `tile`, which `rebatch` may have added, has numbers of
    its own, so that every other op has the same name for any number of items.
    """
    counts: Counter[str] = Counter()
    names = {}
    for node in post_order(main.body):
        if isinstance(node, relay.Call):
            kind = f"{task_of_span(node)}:{'tile' if is_op_call(node, 'tile') else ''}"
            names[node] = f"{kind}{counts[kind]}"
            counts[kind] += 1
    return names


class _Cutter:
    """One walk over the neutral `main` that sends every call to the segment of its target."""

    def __init__(
        self, main: relay.Function, target_of_task: Mapping[str, int], num_targets: int
    ) -> None:
        self._main = main
        self._target_of_task = target_of_task
        self._segment_of: dict[relay.Expr, int] = {}
        self._names = call_names(main)
        self.open = [_OpenSegment() for _ in range(num_targets)]

    def run(self) -> tuple[ValueName, ...]:
        for node in post_order(self._main.body):
            if isinstance(node, relay.Call):
                self._add_call(node)
        return tuple(self._export(value) for value in leaves(self._main.body))

    def _add_call(self, call: relay.Call) -> None:
        segment = self._target_of_task[planned_task(call, self._target_of_task)]
        self._segment_of[call] = segment
        arguments = [self._read(argument, segment) for argument in call.args]
        new = relay.Call(call.op, arguments, call.attrs, call.type_args, call.span)
        self.open[segment].mapped[call] = new

    def _read(self, value: relay.Expr, segment: int) -> relay.Expr:
        """The expression by which `segment` reads a value of the neutral module."""
        if isinstance(value, relay.Constant):
            return value
        if isinstance(value, relay.Tuple):
            return relay.Tuple([self._read(member, segment) for member in value.fields])
        if isinstance(value, relay.TupleGetItem):
            if isinstance(value.tuple_value, relay.Tuple):
                return self._read(value.tuple_value.fields[value.index], segment)
            if self._segment_of[value.tuple_value] == segment:
                whole = self.open[segment].mapped[value.tuple_value]
                return relay.TupleGetItem(whole, value.index, value.span)
            return self._parameter(value, segment)
        if isinstance(value, relay.Call) and self._segment_of[value] == segment:
            return self.open[segment].mapped[value]
        if isinstance(value.checked_type, relay.TupleType):
            return relay.Tuple([self._read(item, segment) for item in leaves(value)])
        return self._parameter(value, segment)

    def _parameter(self, value: relay.Expr, segment: int) -> relay.Expr:
        name = self._export(value)
        params = self.open[segment].params
        if name not in params:
            type_ = (
                value.tuple_value.checked_type.fields[value.index]
                if isinstance(value, relay.TupleGetItem)
                else value.checked_type
            )
            hint = name.name if name.index is None else f"{name.name}.{name.index}"
            params[name] = relay.Var(hint, type_)
        return params[name]

    def _export(self, value: relay.Expr) -> ValueName:
        """Make a value visible outside of its segment; return its name."""
        if isinstance(value, relay.Var):
            return ValueName(value.name_hint)
        root = value.tuple_value if isinstance(value, relay.TupleGetItem) else value
        if root not in self._segment_of:
            raise LoweringError("the model returns a constant; leave it out of its outputs")
        index = value.index if isinstance(value, relay.TupleGetItem) else 0
        name = ValueName(self._names[root], index, task_of_span(root) or "")
        segment = self._segment_of[root]
        self.open[segment].exports.setdefault(name, self._read(value, segment))
        return name
