"""A file (or an `onnx.ModelProto`) -> a complete model with static input shapes, or an error.

All faults of one kind are reported at once, each with the name of the node, input or tensor and
with what to do about it.
"""

from __future__ import annotations

import collections
import contextlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from google.protobuf.message import DecodeError
from onnx import GraphProto, ModelProto, NodeProto, ValueInfoProto, helper, numpy_helper

from heteroplace.errors import FrontendError
from heteroplace.files.no_file import why_no_file
from heteroplace.model.units import MAX_INTEGER
from heteroplace.parts.onnx.prepare.onnx_names import check_names
from heteroplace.parts.onnx.prepare.onnx_repair import describe_node
from heteroplace.parts.onnx.prepare.onnx_tensors import complete_tensors, without_large_data
from heteroplace.terminal import listed


def read_model(source: str | os.PathLike[str] | ModelProto) -> tuple[ModelProto, str]:
    """Read an ONNX model with all its weights.

    Parameters
    ----------
    source
        Path of an .onnx file, or a model in memory; the latter is copied.

    Returns
    -------
    The model and the name that messages give it (the path, or the name of the graph).

    Raises
    ------
    FrontendError
        The file is missing, truncated or no ONNX model; external weights are missing; a node
        reads a value that nothing produces.
    """
    if isinstance(source, ModelProto):
        model = ModelProto()
        model.CopyFrom(source)
        where = f"model '{model.graph.name}'"
        complete_tensors(model, None, where)
    else:
        path = Path(source)
        model, where = parse_file(path), str(path)
        complete_tensors(model, path.parent, where)
    if not model.graph.output:
        raise FrontendError(
            f"{where} has no graph with outputs: it is empty, or no ONNX model. Export it again."
        )
    check_names(model, where)
    _check_values_are_produced(model.graph, where)
    _drop_filled_inputs(model)
    return model, where


def parse_file(path: Path, *, has_weights: bool = True) -> ModelProto:
    """Read an ONNX file without the weights that lie in files of their own.

    Parameters
    ----------
    has_weights
        False: large initialisers have no elements either, as of `without_large_data`.

    Raises
    ------
    FrontendError
        The file cannot be read, or is no ONNX model.
    """
    if not path.is_file():
        raise FrontendError(f"{path}: {why_no_file(path)}; give the path of an .onnx file.")
    try:
        if not has_weights:
            with contextlib.suppress(ValueError):  # else onnx says what is wrong
                return without_large_data(path)
        # By its name alone, onnx would take a file for one of its text formats.
        return onnx.load(path, format="protobuf", load_external_data=False)
    except DecodeError as err:
        raise FrontendError(
            f"{path} ({path.stat().st_size} bytes) is not an ONNX model, or is truncated: {err}. "
            f"Export or download it again."
        ) from err
    except OSError as err:
        raise FrontendError(f"{path} cannot be read: {err.strerror}.") from err


def model_structure(source: str | os.PathLike[str] | ModelProto) -> ModelProto:
    """Return a model in memory as it is, or that of a file without its weights (`parse_file`)."""
    if isinstance(source, ModelProto):
        return source
    return parse_file(Path(source), has_weights=False)


def _check_values_are_produced(graph: GraphProto, where: str) -> None:
    names = {tensor.name for tensor in graph.initializer}
    names |= {tensor.values.name for tensor in graph.sparse_initializer}
    names |= {value.name for value in graph.input}
    faults = []
    for node in graph.node:
        for name in node.input:
            if name and name not in names:
                faults.append(f"{describe_node(node)} reads '{name}'")
        names.update(node.output)
    for output in graph.output:
        if output.name not in names:
            faults.append(f"the graph output '{output.name}'")
    if faults:
        raise FrontendError(
            f"{where}: values are used that no earlier node, input or initialiser gives: "
            f"{listed(faults, '; ')}. The file is damaged, or its nodes are not sorted."
        )


def _drop_filled_inputs(model: ModelProto) -> None:
    """List as inputs only what a user gives; IR version 3 lists the initialisers as well.

    onnxruntime leaves such an entry behind when it folds the initialiser away: a false input.
    """
    requested = [
        type(value).FromString(value.SerializeToString()) for value in true_inputs(model.graph)
    ]
    del model.graph.input[:]
    model.graph.input.extend(requested)
    model.ir_version = max(model.ir_version, 4)  # the first that allows it


def true_inputs(graph: GraphProto) -> list[ValueInfoProto]:
    """Return the inputs that a user gives: not those that an initialiser fills."""
    filled = {tensor.name for tensor in graph.initializer}
    return [value for value in graph.input if value.name not in filled]


def free_sizes(value: ValueInfoProto) -> bool:
    """Tell whether the file leaves some size of an input free, or gives it no shape at all."""
    tensor = value.type.tensor_type
    return not tensor.HasField("shape") or any(isinstance(_size(d), str) for d in tensor.shape.dim)


def input_shape(value: ValueInfoProto) -> tuple[int, ...]:
    """Return the sizes of an input of which none is free."""
    return tuple(int(dim.dim_value) for dim in value.type.tensor_type.shape.dim)


def set_input_values(
    model: ModelProto, input_values: Mapping[str, npt.ArrayLike], where: str
) -> list[str]:
    """Make inputs of `model` initialisers with given values, in place.

    Parameters
    ----------
    model
        The model; the named inputs are none any more.
    input_values
        Name of an input -> its value, of the type and shape that the file says.
    where
        Name of the model, for messages.

    Returns
    -------
    One line that names the inputs, if there are any.

    Raises
    ------
    FrontendError
        There is no such input, or a value has another type or shape. All faults are reported.
    """
    if not input_values:
        return []
    inputs = {value.name: value for value in true_inputs(model.graph)}
    faults, tensors = [], []
    for name, value in input_values.items():
        if name not in inputs:
            input_names = listed(inputs)
            faults.append(
                f"input_values names '{name}', which is no input; those are {input_names}"
            )
            continue
        array = _in_type_of(inputs[name], value)
        fault = _value_fault(inputs[name], array)
        if fault:
            faults.append(f"input_values gives '{name}' {fault}")
            continue
        tensors.append(numpy_helper.from_array(array, name))
    if faults:
        raise FrontendError(f"{where}: " + "\n  ".join(faults))
    model.graph.initializer.extend(tensors)
    _drop_filled_inputs(model)
    del model.graph.value_info[:]  # shapes inside the graph were inferred for unknown values
    return [f"input(s) of given value: {', '.join(input_values)}"]


def _in_type_of(info: ValueInfoProto, value: npt.ArrayLike) -> npt.NDArray[Any]:
    """Return plain numbers and lists in the type of an input if it holds them; arrays as given."""
    array = np.asarray(value)
    if isinstance(value, np.ndarray | np.generic) or not info.type.HasField("tensor_type"):
        return array
    with np.errstate(over="ignore", invalid="ignore"):
        cast = array.astype(helper.tensor_dtype_to_np_dtype(info.type.tensor_type.elem_type))
    is_kept = cast.dtype.kind == "f" or np.array_equal(cast, array)
    return cast if is_kept and array.dtype.kind in "biuf" else array


def _value_fault(info: ValueInfoProto, array: npt.NDArray[Any]) -> str:
    """Return what is wrong with the value of an input, or ""."""
    tensor = info.type.tensor_type
    if not info.type.HasField("tensor_type"):
        return f"an array, but it is no tensor but a {info.type.WhichOneof('value')}"
    expected = helper.tensor_dtype_to_np_dtype(tensor.elem_type)
    if array.dtype != expected:
        return f"an array of {array.dtype}, the file says {expected}"
    sizes = [_size(dim) for dim in tensor.shape.dim] if tensor.HasField("shape") else None
    if sizes is None or (
        len(sizes) == array.ndim
        and all(isinstance(s, str) or s == n for s, n in zip(sizes, array.shape, strict=True))
    ):
        return ""
    return f"the shape {array.shape}, the file says ({', '.join(map(str, sizes))})"


def set_input_shapes(
    model: ModelProto, input_shapes: Mapping[str, Sequence[int]], where: str
) -> list[str]:
    """Write static shapes on the inputs of `model`, in place.

    Parameters
    ----------
    model
        The model; inputs with free sizes get them from `input_shapes`.
    input_shapes
        Name of an input -> its sizes. Must agree with what the file says.
    where
        Name of the model, for messages.

    Returns
    -------
    One line per input whose free sizes were set.

    Raises
    ------
    FrontendError
        An input has a free size that is not given, is no tensor, or a given shape is wrong. All
        faults are reported.
    """
    inputs = {value.name: value for value in true_inputs(model.graph)}
    faults = [
        f"input_shapes names '{name}', which is no input; the inputs are {listed(inputs)}"
        for name in input_shapes
        if name not in inputs
    ]
    report = []
    for name, value in inputs.items():
        if not value.type.HasField("tensor_type"):
            faults.append(f"input '{name}' is no tensor but a {value.type.WhichOneof('value')}")
            continue
        fault, line = _set_shape(value, input_shapes.get(name))
        faults += [fault] if fault else []
        report += [line] if line else []
    if faults:
        raise FrontendError(f"{where}: " + "\n  ".join(faults))
    if report:  # shapes inside the graph were inferred for free sizes
        del model.graph.value_info[:]
    return report


def _set_shape(value: ValueInfoProto, given: Sequence[int] | None) -> tuple[str, str]:
    """Return (fault, "") or ("", what was set); both empty if nothing had to be done."""
    name, tensor = value.name, value.type.tensor_type
    old = [_size(dim) for dim in tensor.shape.dim] if tensor.HasField("shape") else None
    if given is None:
        if old is not None and all(isinstance(size, int) for size in old):
            return "", ""
        if old is None:
            return f"input '{name}' has no shape. Pass input_shapes={{'{name}': (...)}}", ""
        free = ", ".join(f"axis {i} ('{s}')" for i, s in enumerate(old) if isinstance(s, str))
        if any(size == _NO_SIZE for size in old):
            return (
                f"input '{name}' has the shape ({', '.join(map(str, old))}), and exporters write "
                f"size 0 for one that is not known. Give input_shapes={{'{name}': (...)}} with its "
                f"{len(old)} sizes as your data has them, 0 where it has no entry"
            ), ""
        return (
            f"input '{name}' has free sizes at {free}; sizes must be fixed to compile. Give "
            f"input_shapes={{'{name}': (...)}} with its {len(old)} sizes as your data has them"
        ), ""
    new = tuple(int(size) for size in given)
    if any(size < 0 for size in new):
        return f"input_shapes gives '{name}' the shape {new}: sizes must not be negative", ""
    if any(size > MAX_INTEGER for size in new):
        return f"input_shapes gives '{name}' the shape {new}: sizes are at most {MAX_INTEGER}", ""
    if old is not None and (
        len(old) != len(new)
        or any(isinstance(o, int) and o != n for o, n in zip(old, new, strict=True))
    ):
        shown = ", ".join(str(size) for size in old)
        return f"input_shapes gives '{name}' the shape {new}, the file says ({shown})", ""
    if old == list(new):
        return "", ""
    del tensor.shape.dim[:]
    for size in new:
        tensor.shape.dim.add().dim_value = size
    return "", f"input '{name}' has shape {new}"


def open_sizes(
    source: str | os.PathLike[str] | ModelProto, input_shapes: Mapping[str, Sequence[int]]
) -> dict[str, tuple[int | str, ...]]:
    """Return the sizes of each input that leaves one free; see `heteroplace.frontends.Frontend`."""
    try:
        model = model_structure(source)
    except FrontendError:  # whoever imports it says why
        return {}
    sizes = {}
    for value in true_inputs(model.graph):
        tensor = value.type.tensor_type
        if not tensor.HasField("shape"):
            continue
        of_file = [_size(dim) for dim in tensor.shape.dim]
        given = input_shapes.get(value.name, ())
        if len(given) == len(of_file):
            of_file = [new if new >= 0 else old for old, new in zip(of_file, given, strict=True)]
        if any(isinstance(size, str) for size in of_file):
            sizes[value.name] = tuple(of_file)
    return sizes


def _size(dim: onnx.TensorShapeProto.Dimension) -> int | str:
    """Return a size, or the name of a free one."""
    if dim.HasField("dim_value"):
        return int(dim.dim_value) if dim.dim_value > 0 else str(dim.dim_value)
    return dim.dim_param or "?"


_NO_SIZE = "0"
"""Size 0 as `_size` returns it: not known, or meant."""


def check_ops_are_known(
    model: ModelProto,
    is_known: Callable[[NodeProto], bool],
    reasons: Mapping[str, str],
    where: str,
) -> None:
    """Raise FrontendError that names every node whose op the importer does not have.

    Parameters
    ----------
    model
        A repaired model.
    is_known
        Tells whether the importer has the op of a node.
    reasons
        Op type -> why it is not there, for some.
    where
        Name of the model, for messages.
    """
    versions = collections.defaultdict(set)
    for entry in model.opset_import:  # a file may name a domain twice
        versions[entry.domain or "ai.onnx"].add(entry.version)
    unknown: dict[tuple[str, str], list[str]] = collections.defaultdict(list)
    for node in all_nodes(model.graph):
        if not is_known(node):
            domain = node.domain or "ai.onnx"
            opset = " and ".join(map(str, sorted(versions[domain]))) or "?"
            default = (
                f"there is no such op in domain {domain}, opset {opset}, that "
                f"can be compiled. Export the model with another opset, or express it by others"
            )
            reason = reasons.get(node.op_type, default)
            unknown[node.op_type, reason].append(describe_node(node))
    if unknown:
        lines = [f"{listed(names)}: {reason}" for (_, reason), names in sorted(unknown.items())]
        raise FrontendError(f"{where} cannot be imported:\n  " + "\n  ".join(lines) + ".")


def all_nodes(graph: GraphProto) -> Iterator[NodeProto]:
    """Yield the nodes of `graph` and of the graphs inside their attributes."""
    for node in graph.node:
        yield node
        for body in subgraphs(node):
            yield from all_nodes(body)


def subgraphs(node: NodeProto) -> Iterator[GraphProto]:
    """Yield the graphs in the attributes of a node."""
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs
