"""A collective step -> what is wrong with it whatever the other steps are.

DistIR's signatures of collectives (section 2): different devices, equal types, parts that make up
the whole, a way between all that exchange anything.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from heteroplace.errors import ClusterError
from heteroplace.model.cluster import Cluster
from heteroplace.model.collectives import CollectiveKind, collective_kind, edges
from heteroplace.model.graph import TaskGraph, Tensor
from heteroplace.model.plan import Collective


def collective_faults(graph: TaskGraph, cluster: Cluster, step: Collective) -> list[str]:
    """Return every fault of a step whose task and devices exist; [] if there is none."""
    task = graph.tasks[step.task]
    kind = collective_kind(task.op)
    if kind is None:
        return [f"the task is no collective (its op is {task.op!r}); run it on one device"]
    names = [cluster.devices[device].name for device in step.devices]
    faults = []
    if len(names) < 2:
        faults.append(f"its devices are {', '.join(names) or 'none'}; expected at least two")
    for name in dict.fromkeys(name for name in names if names.count(name) > 1):
        faults.append(f"device {name!r} takes part {names.count(name)} times; expected once")
    if step.root not in range(max(1, len(names))):
        faults.append(f"its root is device {step.root} of {len(names)}; expected 0 to the last")
    barred = [name for name in names if task.devices is not None and name not in task.devices]
    if barred:
        allowed = ", ".join(task.devices or ()) or "no device"
        faults.append(f"the task is allowed on {allowed} only, not on {', '.join(barred)}")
    if faults:
        return faults
    return [*_value_faults(graph, step, kind), *_way_faults(cluster, step, kind)]


def _way_faults(cluster: Cluster, step: Collective, kind: CollectiveKind) -> Iterator[str]:
    for src, dst in edges(cluster, kind, step.devices, step.root):
        try:
            cluster.route(src, dst)
        except ClusterError as err:
            yield str(err)


def _value_faults(graph: TaskGraph, step: Collective, kind: CollectiveKind) -> Iterator[str]:
    """Numbers and types of what is read and made."""
    count = len(step.devices)
    reads = [graph.tensors[tensor] for tensor in graph.task_inputs[step.task]]
    makes = [graph.tensors[tensor] for tensor in graph.task_outputs[step.task]]
    is_read = kind.reads == "root" or len(reads) in (1, count)
    is_made = kind.makes != "each" or len(makes) == count
    if not is_read:
        yield f"it reads {len(reads)} tensors and has {count} devices; expected one for each"
    if not is_made:
        yield f"it makes {len(makes)} tensors and has {count} devices; expected one for each"
    if not (is_read and is_made):
        return
    # One shared tensor is a value on each device.
    each = reads * count if kind.reads == "each" and len(reads) == 1 else reads
    yield from _type_faults(kind, each, makes)
    if kind.sums or kind.reads == "root":
        yield from _whole_faults(each[0], makes)
    else:
        yield from _part_faults(kind, each, makes)


def _type_faults(
    kind: CollectiveKind, reads: Sequence[Tensor], makes: Sequence[Tensor]
) -> Iterator[str]:
    for tensor in (*reads[1:], *makes):
        if tensor.dtype != reads[0].dtype:
            yield (
                f"{tensor.name!r} is {tensor.dtype}, and {reads[0].name!r} is {reads[0].dtype}; "
                f"expected equal types"
            )
    if kind.sums:
        for tensor in reads[1:]:
            if (tensor.shape, tensor.bytes) != (reads[0].shape, reads[0].bytes):
                yield (f"it adds {_form(tensor)} to {_form(reads[0])}; expected equal shapes")


def _whole_faults(whole: Tensor, makes: Sequence[Tensor]) -> Iterator[str]:
    """One tensor, or the sum of several -> that, or its parts."""
    if len(makes) == 1:
        if (makes[0].shape, makes[0].bytes) != (whole.shape, whole.bytes):
            yield f"it makes {_form(makes[0])} of {_form(whole)}; expected an equal shape"
    elif parts_axis(whole, makes) is None:
        parts = ", ".join(map(_form, makes))
        yield f"it cuts {_form(whole)} into {parts}; expected parts along one axis"


def _part_faults(
    kind: CollectiveKind, reads: Sequence[Tensor], makes: Sequence[Tensor]
) -> Iterator[str]:
    """Parts -> the whole, or other parts of it."""
    if len(makes) == 1:
        if parts_axis(makes[0], reads) is None:
            parts = ", ".join(map(_form, reads))
            yield f"it joins {parts} to {_form(makes[0])}; expected parts along one axis"
        return
    have, get = (sum(tensor.bytes for tensor in tensors) for tensors in (reads, makes))
    if have != get:
        yield f"it exchanges {have} bytes for {get} ({kind.name}); expected as many"


def parts_axis(whole: Tensor, parts: Sequence[Tensor]) -> int | None:
    """Return the axis along which parts make up a tensor; None: they do not.

    It is the only one whose extents differ. Parts without shapes are parts along axis 0 if their
    bytes add up.
    """
    if not whole.dtype and not any(part.dtype for part in parts):
        return 0 if sum(part.bytes for part in parts) == whole.bytes else None
    shapes = [part.shape for part in parts]
    if any(len(shape) != len(whole.shape) for shape in shapes):
        return None
    if any(part.dtype != whole.dtype for part in parts):
        return None
    axes = [
        axis
        for axis, extent in enumerate(whole.shape)
        if any(shape[axis] != extent for shape in shapes)
    ]
    if len(axes) != 1 or sum(shape[axes[0]] for shape in shapes) != whole.shape[axes[0]]:
        return None
    return axes[0]


def _form(tensor: Tensor) -> str:
    shape = f"{tensor.dtype}{list(tensor.shape)}" if tensor.dtype else f"{tensor.bytes} bytes"
    return f"{tensor.name!r} ({shape})"
