"""The tensors that an ONNX file holds, wherever they stand -> checked ones, with all their data.

The other readers of a model (onnx, onnxruntime, TVM) trust it: a negative size, a data type that
there is not, or fewer bytes than the shape says, end there in errors of any type, or in a crash.
External data is read here too. onnx itself reads that of subgraphs from the current folder instead
of the model's, and takes all there is where no length is given.

Source: the comments of `onnx.proto` (TensorProto, fields and their use; "external_data").
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path, PurePosixPath

from google.protobuf.message import EncodeError
from onnx import GraphProto, ModelProto, NodeProto, TensorProto

from heteroplace.errors import FrontendError
from heteroplace.relay.limits import MAX_ELEMENTS, num_elements
from heteroplace.terminal import listed, printable

_BITS = {
    **dict.fromkeys(("FLOAT", "INT32", "UINT32"), 32),
    **dict.fromkeys(("DOUBLE", "INT64", "UINT64", "COMPLEX64"), 64),
    **dict.fromkeys(("FLOAT16", "BFLOAT16", "INT16", "UINT16"), 16),
    **dict.fromkeys(("INT8", "UINT8", "BOOL"), 8),
    **dict.fromkeys(("FLOAT8E4M3FN", "FLOAT8E4M3FNUZ", "FLOAT8E5M2", "FLOAT8E5M2FNUZ"), 8),
    **dict.fromkeys(("UINT4", "INT4", "FLOAT4E2M1"), 4),
    **dict.fromkeys(("UINT2", "INT2"), 2),
    **{"COMPLEX128": 128, "FLOAT8E8M0": 8},
}
_FIELDS = {
    **dict.fromkeys(("FLOAT", "COMPLEX64"), "float_data"),
    **dict.fromkeys(("DOUBLE", "COMPLEX128"), "double_data"),
    **dict.fromkeys(("UINT32", "UINT64"), "uint64_data"),
    **{"INT64": "int64_data", "STRING": "string_data"},
}
"""The field that holds the elements where `raw_data` does not; of all others `int32_data`."""
_GRAPH = ModelProto.DESCRIPTOR.fields_by_name["graph"].number
_INITIALIZER = GraphProto.DESCRIPTOR.fields_by_name["initializer"].number
_ELEMENTS = {
    TensorProto.DESCRIPTOR.fields_by_name[name].number
    for name in ("raw_data", "int32_data", *_FIELDS.values())
}
_SMALL_BYTES = 4096
_FIXED_BYTES = {1: 8, 5: 4}
"""Of fields whose kind says their size."""
_MAX_FAULTS = 5
_NAMES = {number: name for name, number in TensorProto.DataType.items()}


def all_tensors(model: ModelProto) -> Iterator[TensorProto]:
    """Yield the tensors of `model`: of its graph, of subgraphs, of attributes and of functions."""
    yield from _graph_tensors(model.graph)
    for function in model.functions:
        yield from _node_tensors(function.node)


def serialised(model: ModelProto, max_bytes: int) -> bytes | None:
    """Return `model` as the bytes of a file; None: they are more than `max_bytes`.

    `ModelProto.ByteSize` takes as long as making them, and is not asked.
    """
    if sum(len(tensor.raw_data) for tensor in all_tensors(model)) > max_bytes:
        return None
    try:
        content = model.SerializeToString()
    except EncodeError:  # what no file of protobuf holds
        return None
    return content if len(content) <= max_bytes else None


def without_large_data(path: Path) -> ModelProto:
    """Read an ONNX file without the elements of its large initialisers.

    These are most of a file, and who looks at nodes, names and shapes need not parse them. Tensors
    of nodes and small initialisers keep theirs.

    Raises
    ------
    OSError
        The file cannot be read.
    ValueError, DecodeError
        It is no serialised model, or damaged.
    """
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        model: ModelProto = ModelProto.FromString(_small_model(content))
    return model


def _small_model(content: mmap.mmap) -> bytes:
    """A serialised model without the elements of its large initialisers."""
    fields: list[bytes] = []
    for number, begin, inner, end in _wire_fields(content, 0, len(content)):
        if number == _GRAPH and inner > begin:
            graph = b"".join(_small_fields(content, inner, end))
            fields += [content[begin : begin + 1], _varint(len(graph)), graph]
        else:
            fields.append(content[begin:end])
    return b"".join(fields)


def _small_fields(content: mmap.mmap, begin: int, end: int) -> Iterator[bytes]:
    """The fields of a graph, serialised, but for the elements of large initialisers."""
    for number, start, inner, stop in _wire_fields(content, begin, end):
        if number != _INITIALIZER or stop - start <= _SMALL_BYTES:
            yield content[start:stop]
            continue
        fields = _wire_fields(content, inner, stop)
        small = [content[a:z] for key, a, _, z in fields if key not in _ELEMENTS]
        tensor = b"".join(small)
        yield from (content[start : start + 1], _varint(len(tensor)), tensor)


def _wire_fields(content: mmap.mmap, begin: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """Number, first byte, first byte of what it holds, and end of each field of a message.

    Source: the encoding of Protocol Buffers. A field of a fixed size holds no message, so its
    content begins where it does.
    """
    at = begin
    while at < end:
        start = at
        tag, at = _read_varint(content, at)
        kind, inner = tag & 7, start
        if kind == 0:
            _, at = _read_varint(content, at)
        elif kind == 2:
            size, inner = _read_varint(content, at)
            at = inner + size
        elif kind in _FIXED_BYTES:
            at += _FIXED_BYTES[kind]
        else:
            raise ValueError(f"byte {start} begins no field")
        if at > end:
            raise ValueError(f"the field at byte {start} ends behind its message")
        yield tag >> 3, start, inner, at


def _read_varint(content: mmap.mmap, at: int) -> tuple[int, int]:
    """An integer of 7 bits a byte, and where it ends."""
    value = shift = 0
    while at < len(content):
        byte = content[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7
    raise ValueError("the file ends within a field")


def _varint(value: int) -> bytes:
    groups = [value >> shift & 127 for shift in range(0, max(1, value.bit_length()), 7)]
    return bytes([*(group | 128 for group in groups[:-1]), groups[-1]])


def _graph_tensors(graph: GraphProto) -> Iterator[TensorProto]:
    yield from graph.initializer
    for sparse in graph.sparse_initializer:
        yield from (sparse.values, sparse.indices)
    yield from _node_tensors(graph.node)


def _node_tensors(nodes: Iterable[NodeProto]) -> Iterator[TensorProto]:
    for node in nodes:
        for attribute in node.attribute:
            if attribute.HasField("t"):
                yield attribute.t
            yield from attribute.tensors
            sparse = [attribute.sparse_tensor] if attribute.HasField("sparse_tensor") else []
            for each in (*sparse, *attribute.sparse_tensors):
                yield from (each.values, each.indices)
            for graph in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
                yield from _graph_tensors(graph)


def complete_tensors(model: ModelProto, folder: Path | None, where: str) -> None:
    """Check all tensors of `model`, and read those that lie in files of their own, in place.

    Parameters
    ----------
    model
        As it was parsed.
    folder
        In which the model's file is; external files are in it or below, and symbolic links there
        are followed. None: the model is no file.
    where
        Name of the model, for messages.

    Raises
    ------
    FrontendError
        A tensor has a data type that there is not, a negative size, more than `MAX_ELEMENTS`
        elements, or not the bytes of its shape; an external file is missing, too short or outside
        of the folder; the weights are more than this machine's memory.
    """
    external, faults = [], []
    for tensor in all_tensors(model):
        fault = _shape_fault(tensor)
        if fault is None and tensor.data_location == TensorProto.EXTERNAL:
            external.append(tensor)
            if tensor.data_type == TensorProto.STRING:
                fault = "has texts as external data"
        elif fault is None:
            fault = _data_fault(tensor)
        if fault is not None:
            faults.append(f"{_name(tensor)} {fault}")
    _raise_all(faults, f"{where} is damaged", "Export or download it again.")
    if not external:
        return
    if folder is None:
        raise FrontendError(
            f"{where} keeps {len(external)} tensors in external files, and a model in memory does "
            f"not say where. Pass the path of the .onnx file, or load it with its external data."
        )
    _check_total(external, where)
    parts, faults = [], []
    for tensor in external:
        try:
            parts.append(_part_of(tensor, folder))
        except ValueError as fault_of_part:
            faults.append(f"{_name(tensor)} {fault_of_part}")
    text = f"{where}: the weights are incomplete"
    _raise_all(faults, text, "Put the file(s) of the export beside the model.")
    for tensor, (path, offset) in zip(external, parts, strict=True):
        _read(tensor, path, offset, where)


def _name(tensor: TensorProto) -> str:
    # Protobuf gives bytes where a name is no UTF-8.
    name = tensor.name if isinstance(tensor.name, str) else repr(tensor.name)
    return f"'{printable(name, allowed='')}'" if name else "a tensor without a name"


def _raise_all(faults: Sequence[str], what: str, cure: str) -> None:
    if faults:
        raise FrontendError(f"{what}: {listed(faults, '; ', _MAX_FAULTS)}. {cure}")


def _shape_fault(tensor: TensorProto) -> str | None:
    """What is wrong with the type or the shape of a tensor, whatever its data; or None."""
    name = _NAMES.get(tensor.data_type, "")
    if name not in _BITS and name != "STRING":
        return f"has the data type {tensor.data_type}, which is none"
    if any(size < 0 for size in tensor.dims):
        return f"has a negative size in its shape {list(tensor.dims)}"
    count = num_elements(tensor.dims)
    if count > MAX_ELEMENTS:
        return f"has {count} elements, and one tensor can have {MAX_ELEMENTS}"
    return None


def _num_bytes(tensor: TensorProto) -> int:
    return (num_elements(tensor.dims) * _BITS[_NAMES[tensor.data_type]] + 7) // 8


def _data_fault(tensor: TensorProto) -> str | None:
    """What is wrong with the data that a tensor holds itself, or None."""
    name, count = _NAMES[tensor.data_type], num_elements(tensor.dims)
    shape = f"its shape {list(tensor.dims)}"
    if tensor.HasField("raw_data"):
        if name == "STRING":
            return "has texts as raw data"
        num_bytes, expected = len(tensor.raw_data), _num_bytes(tensor)
        return None if num_bytes == expected else f"has {num_bytes} bytes, {shape} needs {expected}"
    num_bytes = len(getattr(tensor, _FIELDS.get(name, "int32_data")))
    if name in ("COMPLEX64", "COMPLEX128"):
        count *= 2
    # Elements of less than a byte may be packed, several to an entry.
    packed = _num_bytes(tensor) if name != "STRING" and _BITS[name] < 8 else count
    return (
        None if num_bytes in (count, packed) else f"has {num_bytes} elements, {shape} needs {count}"
    )


def _check_total(tensors: Sequence[TensorProto], where: str) -> None:
    total = sum(map(_num_bytes, tensors))
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if total > memory:
        raise FrontendError(
            f"{where}: its external weights are {total} bytes, and this machine has {memory} bytes "
            f"of memory. Import it on a larger one."
        )


def external_location(tensor: TensorProto) -> str:
    """Return which file has the data of a tensor, as the model names it; "": the model has it."""
    if tensor.data_location != TensorProto.EXTERNAL:
        return ""
    entries = {entry.key: entry.value for entry in tensor.external_data}
    return str(entries.get("location", ""))


def _part_of(tensor: TensorProto, folder: Path) -> tuple[Path, int]:
    """The file with the data of a tensor and where it begins there; ValueError says what is wrong.

    An absolute path, and one with enough `..` to leave the folder, could name any file.
    """
    entries = {entry.key: entry.value for entry in tensor.external_data}
    location = external_location(tensor)
    relative = os.path.normpath(location)
    shown = printable(location, allowed="")
    if not location or "\0" in location or PurePosixPath(relative).is_absolute():
        raise ValueError(f"is in '{shown}', which is no path below the folder of the model")
    if PurePosixPath(relative).parts[:1] == ("..",):
        raise ValueError(f"is in '{shown}', outside of the folder of the model")
    offset, length = (_count(entries.get(key, ""), key) for key in ("offset", "length"))
    needed = _num_bytes(tensor)
    if length is not None and length != needed:
        shape = list(tensor.dims)
        raise ValueError(f"has {length} external bytes, its shape {shape} needs {needed}")
    path, end = folder / relative, (offset or 0) + needed
    if not path.is_file():
        raise ValueError(f"is in {path}, which does not exist")
    size = path.stat().st_size
    if size < end:
        raise ValueError(f"ends at byte {end} of {path}, which has {size}")
    return path, offset or 0


def _count(text: str, key: str) -> int | None:
    if not text:
        return None
    if not (text.isascii() and text.isdecimal() and len(text) < 20):
        raise ValueError(
            f"has the {key} '{printable(text, allowed='')[:40]}', expected a number >= 0"
        )
    return int(text)


def _read(tensor: TensorProto, path: Path, offset: int, where: str) -> None:
    try:
        with path.open("rb") as file:
            file.seek(offset)
            data = file.read(_num_bytes(tensor))
    except OSError as err:
        raise FrontendError(f"{where}: {path} cannot be read: {err.strerror}.") from err
    tensor.raw_data = data
    del tensor.external_data[:]
    tensor.data_location = TensorProto.DEFAULT
