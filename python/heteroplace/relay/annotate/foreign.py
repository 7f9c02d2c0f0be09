"""A module annotated by hand or by another pass -> tasks, each pinned to the device of its ops.

The prefix passes rebuild ops and lose what is written on them, so they run with nothing left of the
annotations but one `device_copy` on every edge between devices: what stands between copies is one
region of one device, before and after, and no pass works across.

before ==> while the passes run, for a module whose default device is cpu:0:

    %1 = nn.relu(%x)                  ==>  %1 = nn.relu(%x)
    %2 = on_device(%1, cpu:0)              %2 = device_copy(%1, cpu:0, cpu:1)
    %3 = on_device(nn.pool(%2), cpu:1)     %3 = nn.pool(%2)
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

import tvm
from tvm import relay

from heteroplace.model.cluster import Cluster
from heteroplace.relay.annotate.annotation_reader import strip_annotations
from heteroplace.relay.annotate.devices import check_whole, is_barrier, read_devices
from heteroplace.relay.annotate.writer import home_device, tvm_devices
from heteroplace.relay.expressions import (
    SharedFields,
    post_order,
    post_order_of_function,
    rebuild,
)
from heteroplace.relay.tasks.extract import Extraction, extract
from heteroplace.relay.tasks.prepare import prepare

_MARK = "|"
"""Between the device and the rest of a span's name."""


def extract_annotated(mod: tvm.IRModule, cluster: Cluster, name: str = "model") -> Extraction:
    """Prepare a module and cut it into tasks that may only be where their ops are annotated.

    Parameters
    ----------
    mod
        Weights bound, annotated for the devices of `cluster` (see `tvm_devices`).
    name
        Name of the task graph.

    Raises
    ------
    LoweringError
        A device that the cluster does not have, or ops of one task on several devices.
    UnsupportedRelayError
        As `extract`.
    """
    mod = prepare(_Copier(relay.transform.InferType()(mod)["main"], cluster).run())
    extraction = extract(_with_borders(_with_spans(mod, cluster)), name)
    ops = [_ops_by_device(call) for call in extraction.calls]
    check_whole(extraction.graph, cluster, ops)
    tasks = []
    for task, by_device in zip(extraction.graph.tasks, ops, strict=True):
        members = tuple(m.partition(_MARK)[2].removeprefix(":") for m in task.members)
        (device,) = by_device
        tasks.append(replace(task, members=members, devices=(cluster.devices[device].name,)))
    return replace(extraction, graph=replace(extraction.graph, tasks=tuple(tasks)))


def _with_borders(mod: tvm.IRModule) -> tvm.IRModule:
    """The neutral module, in which no fused group goes across a border between devices.

    device_copy(%1, cpu:0, cpu:1)  ==>  annotation.stop_fusion(%1), which FuseOps takes out again
    """
    main = mod["main"]
    mapped: dict[relay.Expr, relay.Expr] = {}

    def stop(old: relay.Expr, new: relay.Expr) -> relay.Expr:
        return relay.annotation.stop_fusion(new.args[0]) if is_barrier(old) else new

    rebuild([*main.params, *post_order(main.body)], mapped, stop)
    function = relay.Function([mapped[param] for param in main.params], mapped[main.body])
    return strip_annotations(tvm.IRModule.from_expr(function))


def _ops_by_device(call: relay.Call) -> dict[int, list[str]]:
    """The names of the ops in a fused function, by the device that their spans name."""
    by_device: dict[int, list[str]] = defaultdict(list)
    for node in post_order_of_function(call.op):
        if isinstance(node, relay.Call):
            device, _, layer = node.span.source_name.name.partition(_MARK)
            by_device[int(device)].append(f"{node.op.name} ({layer})" if layer else node.op.name)
    return by_device


class _Copier:
    """Rewrites a typed `main`: a `device_copy` on every edge between devices, nothing else."""

    def __init__(self, main: relay.Function, cluster: Cluster) -> None:
        self._main = main
        self._names = tvm_devices(cluster)
        self._home = home_device(cluster)
        self._device_of = read_devices(main, cluster)
        # Those of a module that PlanDevices has seen have a device of their own.
        self._params = [relay.Var(param.name_hint, param.checked_type) for param in main.params]
        self._made_on: dict[relay.Expr, int] = dict.fromkeys(self._params, self._home)
        self._shared = SharedFields()

    def run(self) -> tvm.IRModule:
        mapped = dict(zip(self._main.params, self._params, strict=True))
        rebuild(post_order(self._main.body), mapped, self._rewrite)
        body = self._main.body
        result = self._brought(self._shared.opened(mapped[body], body.checked_type), self._home)
        function = relay.Function(self._params, result)
        return relay.transform.InferType()(tvm.IRModule.from_expr(function))

    def _rewrite(self, old: relay.Expr, new: relay.Expr) -> relay.Expr:
        if is_barrier(old):
            return new.args[0]
        new = self._shared(old, new)
        if isinstance(new, relay.Call):
            device = self._device_of[old]
            arguments = [self._brought(argument, device) for argument in new.args]
            new = relay.Call(new.op, arguments, new.attrs, new.type_args, new.span)
            self._made_on[new] = device
        return new

    def _brought(self, value: relay.Expr, device: int) -> relay.Expr:
        """The expression by which a value is read on a device."""
        if isinstance(value, relay.Constant):
            return value
        if isinstance(value, relay.Tuple):
            fields = [self._brought(field, device) for field in value.fields]
            return relay.Tuple(fields, value.span)
        maker = value
        while isinstance(maker, relay.TupleGetItem):
            maker = maker.tuple_value
        # What is bound by `let` has no maker here; such a module is refused when it is cut.
        src = self._made_on.get(maker, device)
        if src == device:
            return value
        return relay.op.device_copy(value, self._names[src], self._names[device])


def _with_spans(mod: tvm.IRModule, cluster: Cluster) -> tvm.IRModule:
    """The module with the device of each op before the name of its span."""
    main = mod["main"]
    device_of = read_devices(main, cluster)
    mapped: dict[relay.Expr, relay.Expr] = {}

    def rewrite(old: relay.Expr, new: relay.Expr) -> relay.Expr:
        if old not in device_of:
            return new
        layer = old.span.source_name.name if isinstance(old.span, relay.Span) else ""
        span = relay.Span(relay.SourceName(f"{device_of[old]}{_MARK}{layer}"), 0, 0, 0, 0)
        return relay.Call(new.op, new.args, new.attrs, new.type_args, span)

    rebuild([*main.params, *post_order(main.body)], mapped, rewrite)
    return tvm.IRModule.from_expr(relay.Function(main.params, mapped[main.body]))
