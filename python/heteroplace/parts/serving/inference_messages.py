"""Bodies of inference requests -> arrays; outputs -> bodies of responses.

A body is JSON alone, or JSON followed by the raw bytes of tensors (the binary data extension of the
Open Inference Protocol). The header Inference-Header-Content-Length then says where JSON ends.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from heteroplace.argument_checks import did_you_mean
from heteroplace.errors import ExecutionError
from heteroplace.files.call_lengths import ANY, CallLengths
from heteroplace.parts.serving.sequences import SequenceStep
from heteroplace.parts.serving.tensor_codec import TensorCodec

MODEL_VERSION = "1"
"""The only version of every model."""
_BYTES = "BYTES"


class _Parameters(msgspec.Struct, frozen=True):
    """Those that change an answer; others are ignored, as the protocol allows."""

    binary_data_size: int | None = None
    binary_data: bool | None = None
    binary_data_output: bool = False
    classification: int | None = None
    shared_memory_region: str | None = None
    sequence_id: int | str | None = None
    sequence_start: bool = False
    sequence_end: bool = False


_NO_PARAMETERS = _Parameters()
_NO_DATA = msgspec.Raw()


class _Input(msgspec.Struct, frozen=True):
    name: str
    shape: list[int]
    datatype: str
    parameters: _Parameters = _NO_PARAMETERS
    data: msgspec.Raw = _NO_DATA


class _Output(msgspec.Struct, frozen=True):
    name: str
    parameters: _Parameters = _NO_PARAMETERS


class _Request(msgspec.Struct, frozen=True):
    inputs: list[_Input]
    outputs: list[_Output] | None = None
    id: str | None = None
    parameters: _Parameters = _NO_PARAMETERS


@dataclass(frozen=True)
class RequestedOutput:
    """An output that a response has."""

    index: int
    """In the order of the model."""
    is_binary: bool
    """Whether it follows the JSON as raw bytes."""


@dataclass(frozen=True)
class InferenceRequest:
    """A request whose inputs are right: all of them, each once, in type and shape."""

    arrays: Mapping[str, npt.NDArray[Any]]
    outputs: tuple[RequestedOutput, ...]
    id: str | None
    sequence: SequenceStep | None = None
    """Of a model that keeps state between requests."""
    length: int = ANY
    """The size that the request chooses, if it may choose one."""


class InferenceMessages:
    """Reads the requests of one model and writes its responses. Any thread may call it.

    Parameters
    ----------
    model
        Its name.
    inputs, outputs
        Name, shape and dtype of each, as the executor describes them.
    has_state
        Whether the model keeps state: each request is then one of a sequence.
    lengths
        The size that each request chooses; None: shapes are fixed.

    Raises
    ------
    ExecutionError
        The protocol lacks the type of a tensor.
    """

    def __init__(
        self,
        model: str,
        inputs: Sequence[tuple[str, tuple[int, ...], str]],
        outputs: Sequence[tuple[str, tuple[int, ...], str]],
        has_state: bool = False,
        lengths: CallLengths | None = None,
    ) -> None:
        self._model = model
        self._lengths = lengths
        if lengths is not None:
            inputs = lengths.input_ports(inputs, ANY)
            outputs = lengths.output_ports(outputs, ANY)
        self._has_state = has_state
        self._inputs = {port[0]: TensorCodec(f"input {port[0]!r}", *port) for port in inputs}
        self._outputs = [TensorCodec(f"output {port[0]!r}", *port) for port in outputs]
        self._indices = {codec.name: index for index, codec in enumerate(self._outputs)}
        self._decoder = msgspec.json.Decoder(_Request)

    def metadata(self) -> dict[str, object]:
        """Return the description of the model that the protocol asks for."""
        return {
            "name": self._model,
            "versions": [MODEL_VERSION],
            "platform": "heteroplace",
            "inputs": [_tensor_metadata(codec) for codec in self._inputs.values()],
            "outputs": [_tensor_metadata(codec) for codec in self._outputs],
        }

    def num_output_elements(self, request: InferenceRequest) -> int:
        """Return how many numbers the JSON of a response has."""
        shown = [output.index for output in request.outputs if not output.is_binary]
        shapes = [self._outputs[index].shape for index in shown]
        return sum(math.prod(_at_length(shape, request.length)) for shape in shapes)

    def read(self, body: bytes, json_bytes: int | None) -> InferenceRequest:
        """Read the body of a request.

        Parameters
        ----------
        json_bytes
            Length of the JSON before raw bytes; None: all of the body is JSON.

        Raises
        ------
        ExecutionError
            The body is wrong; the message says where, and what was expected.
        """
        view = memoryview(body)
        end = len(view) if json_bytes is None else json_bytes
        if end > len(view):
            raise ExecutionError(
                f"Inference-Header-Content-Length is {end}, and the body has {len(view)} bytes"
            )
        try:
            request = self._decoder.decode(view[:end])
        except RecursionError as err:
            raise ExecutionError("the JSON of the request is nested too deeply") from err
        except (msgspec.DecodeError, UnicodeDecodeError) as err:
            raise ExecutionError(f"the JSON of the request is wrong: {err}") from err
        arrays: dict[str, npt.NDArray[Any]] = {}
        rest = view[end:]
        for tensor in request.inputs:
            if tensor.name in arrays:
                raise ExecutionError(f"input {tensor.name!r} is in the request twice")
            codec = self._codec_of(tensor)
            size = tensor.parameters.binary_data_size
            if size is None:
                arrays[tensor.name] = _from_json(codec, tensor)
                continue
            if not 0 <= size <= len(rest):
                raise ExecutionError(
                    f"{codec.what}: binary_data_size is {size}, and {len(rest)} bytes are left in "
                    f"the body"
                )
            if tensor.data is not _NO_DATA and bytes(tensor.data):
                raise ExecutionError(f"{codec.what} has both data and binary_data_size")
            arrays[tensor.name] = codec.from_bytes(rest[:size])
            rest = rest[size:]
        if len(rest):
            raise ExecutionError(
                f"{len(rest)} bytes at the end of the body belong to no input; give inputs "
                f"binary_data_size"
            )
        # An executor would take the values of an earlier request for a missing input.
        missing = [name for name in self._inputs if name not in arrays]
        if missing:
            raise ExecutionError(f"inputs that the request lacks: {', '.join(missing)}")
        step = self._sequence_step(request.parameters)
        length = self._length_of(arrays)
        return InferenceRequest(arrays, self._requested(request), request.id, step, length)

    def write(
        self, request: InferenceRequest, outputs: Sequence[npt.NDArray[Any]]
    ) -> tuple[bytes, int | None]:
        """Return the body of a response, and the length of its JSON; None: it is JSON alone.

        Raises
        ------
        ExecutionError
            A value is NaN or infinite, and JSON was requested.
        """
        tensors: list[dict[str, object]] = []
        blocks: list[memoryview] = []
        for output in request.outputs:
            codec, array = self._outputs[output.index], outputs[output.index]
            tensor = {**_tensor_metadata(codec), "shape": list(array.shape)}
            if output.is_binary:
                tensor["parameters"] = {"binary_data_size": array.nbytes}
                if array.nbytes:
                    blocks.append(np.ascontiguousarray(array).data)
            else:
                tensor["data"] = codec.to_json(array)
            tensors.append(tensor)
        response = {"model_name": self._model, "model_version": MODEL_VERSION, "outputs": tensors}
        if request.id is not None:
            response["id"] = request.id
        text = msgspec.json.encode(response)
        if not any(output.is_binary for output in request.outputs):
            return text, None
        return b"".join((text, *blocks)), len(text)

    def _codec_of(self, tensor: _Input) -> TensorCodec:
        """Return what reads an input; its name, type and shape are right."""
        codec = self._inputs.get(tensor.name)
        if codec is None:
            names = list(self._inputs)
            raise ExecutionError(
                f"model {self._model!r} has no input {tensor.name!r}; it has "
                f"{', '.join(map(repr, names)) or 'none'}{did_you_mean(tensor.name, names)}"
            )
        if tensor.datatype == _BYTES:
            raise ExecutionError(f"{codec.what}: BYTES is not supported; expected {codec.datatype}")
        shape = tuple(tensor.shape)
        if tensor.datatype != codec.datatype or not self._fits(shape, codec.shape):
            raise ExecutionError(
                f"{codec.what}: expected {codec.datatype} of shape {list(codec.shape)}, got "
                f"{tensor.datatype} of shape {tensor.shape}"
            )
        _check_parameters(codec.what, tensor.parameters)
        return codec if shape == codec.shape else codec.sized(shape)

    def _fits(self, shape: tuple[int, ...], expected: tuple[int, ...]) -> bool:
        """Whether a shape is the expected one, with a size that a request may choose."""
        if self._lengths is None or len(shape) != len(expected):
            return shape == expected
        chosen = [size for size, own in zip(shape, expected, strict=True) if own == ANY]
        for size in chosen:
            self._lengths.entry_for(size)
        return len(set(chosen)) < 2 and shape == _at_length(expected, *chosen[:1])

    def _length_of(self, arrays: Mapping[str, npt.NDArray[Any]]) -> int:
        if self._lengths is None:
            return ANY
        return self._lengths.length_of({name: array.shape for name, array in arrays.items()})

    def _sequence_step(self, parameters: _Parameters) -> SequenceStep | None:
        id_ = parameters.sequence_id or None  # 0 and "" are none, as in Triton
        if self._has_state and id_ is None:
            raise ExecutionError(
                f"model {self._model!r} keeps state between requests; give the parameters "
                f"sequence_id, and sequence_start in the first request"
            )
        if not self._has_state and id_ is not None:
            raise ExecutionError(
                f"model {self._model!r} keeps no state between requests; leave out sequence_id, or "
                f"compile the model with --state"
            )
        if id_ is None:
            return None
        return SequenceStep(id_, parameters.sequence_start, parameters.sequence_end)

    def _requested(self, request: _Request) -> tuple[RequestedOutput, ...]:
        is_binary = request.parameters.binary_data_output
        if not request.outputs:
            return tuple(RequestedOutput(index, is_binary) for index in range(len(self._outputs)))
        requested = []
        for output in request.outputs:
            index = self._indices.get(output.name)
            if index is None:
                names = list(self._indices)
                raise ExecutionError(
                    f"model {self._model!r} has no output {output.name!r}; it has "
                    f"{', '.join(map(repr, names))}{did_you_mean(output.name, names)}"
                )
            _check_parameters(self._outputs[index].what, output.parameters)
            own = output.parameters.binary_data
            requested.append(RequestedOutput(index, is_binary if own is None else own))
        if len({output.index for output in requested}) < len(requested):
            raise ExecutionError("an output is in the request twice")
        return tuple(requested)


def _at_length(shape: Sequence[int], length: int = ANY) -> tuple[int, ...]:
    """A shape with the size that a request chooses."""
    return tuple(length if size == ANY else size for size in shape)


def _from_json(codec: TensorCodec, tensor: _Input) -> npt.NDArray[Any]:
    if not bytes(tensor.data):
        raise ExecutionError(f"{codec.what} has neither data nor binary_data_size")
    return codec.from_json(tensor.data)


def _check_parameters(what: str, parameters: _Parameters) -> None:
    for name in ("classification", "shared_memory_region"):
        if getattr(parameters, name) is not None:
            raise ExecutionError(f"{what}: the parameter {name} is not supported")


def _tensor_metadata(codec: TensorCodec) -> dict[str, object]:
    return {"name": codec.name, "datatype": codec.datatype, "shape": list(codec.shape)}
