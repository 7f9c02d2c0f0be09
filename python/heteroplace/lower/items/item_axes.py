"""Network -> the axes of its tensors that hold the items of a batch."""

from __future__ import annotations

from tvm import relay

from heteroplace.lower.items.combine import ItemTensor
from heteroplace.lower.segments import ValueName, call_names
from heteroplace.model.graph import TaskGraph
from heteroplace.relay.expressions import static_shape, task_of_span, tensor_types


def item_inputs(main: relay.Function, graph: TaskGraph) -> tuple[list[str], int]:
    """Return the names of the inputs that hold items, and their leading dimension for one item."""
    shared = {graph.tensors[tensor].name for tensor in graph.inputs if graph.tensors[tensor].shared}
    parameters = [parameter for parameter in main.params if parameter.name_hint not in shared]
    shapes = [static_shape(tensor_types(parameter.checked_type)[0]) for parameter in parameters]
    rows = next((shape[0] for shape in shapes if shape), 1)
    return [parameter.name_hint for parameter in parameters], rows


def item_tensors(one: relay.Function, more: relay.Function) -> dict[ValueName, ItemTensor]:
    """Return every tensor that may be exchanged, from the network for one item and for several."""
    tensors = {}
    for parameter, grown in zip(one.params, more.params, strict=True):
        (type_,), (batched,) = map(tensor_types, (parameter.checked_type, grown.checked_type))
        key = ValueName(parameter.name_hint)
        tensors[key] = item_tensor(static_shape(type_), static_shape(batched), type_.dtype)
    calls = {name: call for call, name in call_names(more).items()}
    for call, name in call_names(one).items():
        pairs = zip(
            tensor_types(call.checked_type), tensor_types(calls[name].checked_type), strict=True
        )
        for index, (type_, batched) in enumerate(pairs):
            key = ValueName(name, index, task_of_span(call) or "")
            tensors[key] = item_tensor(static_shape(type_), static_shape(batched), type_.dtype)
    return tensors


def item_tensor(shape: tuple[int, ...], grown: tuple[int, ...], dtype: str) -> ItemTensor:
    """Return a tensor from its shapes for one and for more items: the axis that grew has them."""
    changed = [at for at, extent in enumerate(shape) if extent != grown[at]]
    return ItemTensor(shape, dtype, changed[0] if changed else None)
