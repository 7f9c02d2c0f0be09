"""What a caller hands over, in numpy or by DLPack, as arrays that the core can read and write.

Nothing is copied here that lies in host memory in C order: a request copies it once, into memory of
its own, and an output once, into the caller's array. A request cannot use the caller's memory where
it lies: the caller may change it while the request is in flight, and a step that does not end may
read it long after the call has given up.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypeAlias, cast

import numpy as np

from heteroplace.argument_checks import did_you_mean
from heteroplace.errors import ExecutionError
from heteroplace.terminal import listed

Ports = tuple[tuple[str, tuple[int, ...], str], ...]
"""Name, shape and dtype of each."""

_HOST_DEVICES = (1, 3, 11)
"""Types of DLPack devices whose memory the host reads: CPU, and host memory of CUDA and ROCm."""
_DEVICE_NAMES = {2: "cuda", 8: "metal", 10: "rocm", 13: "cuda managed", 14: "oneapi"}
_NOT_BY_DLPACK = ("bool", "bfloat16")
"""Types that arrays of TVM, which name theirs by a text, cannot hand over by DLPack."""
_EXCHANGED_AS = {"bfloat16": "uint16"}


class HasDLPack(Protocol):
    """A tensor of any library that speaks DLPack (torch, jax, TVM, ...)."""

    def __dlpack__(self) -> Any:
        """Hand over a capsule."""

    def __dlpack_device__(self) -> tuple[int, int]:
        """Return type and index of its device."""


Array: TypeAlias = np.ndarray | HasDLPack
"""What is taken as an input."""


def exchanged_dtype(dtype: str) -> np.dtype[Any]:
    """Return the type of the numpy arrays that stand for tensors of a type."""
    return np.dtype(_EXCHANGED_AS.get(dtype, dtype))


class InputPorts:
    """The inputs of a program: takes what callers hand over for them.

    Parameters
    ----------
    ports
        Types are such that numpy has, or bfloat16.
    kind
        What messages call one of them.
    """

    def __init__(self, ports: Ports, kind: str = "input") -> None:
        self._kind = kind
        self._described = {name: (shape, dtype) for name, shape, dtype in ports}
        self._exchanged = {name: (shape, exchanged_dtype(dtype)) for name, shape, dtype in ports}

    def take(self, given: Mapping[str, Array]) -> dict[str, np.ndarray]:
        """Return inputs as the core takes them.

        Raises
        ------
        ExecutionError
            Names that are no inputs, arrays on another device, of another type or shape: the first
            eight of them, and how many more there are.
        """
        arrays: dict[str, np.ndarray] = {}
        faults: list[str] = []
        for name, array in given.items():
            # Most are as they should be; to find out what else they are takes microseconds each.
            if (
                type(array) is np.ndarray
                and (array.shape, array.dtype) == self._exchanged.get(name)
                and array.flags.c_contiguous
            ):
                arrays[name] = array
            elif name not in self._described:
                faults.append(self._unknown(name))
            else:
                faults += self._taken(name, array, arrays)
        if faults:
            raise ExecutionError(listed(faults, "; "))
        return arrays

    def _taken(self, name: str, array: Array, arrays: dict[str, np.ndarray]) -> list[str]:
        try:
            arrays[name] = take_input(name, array, self._described[name][1])
        except ExecutionError as fault:
            return [str(fault)]
        return _mismatch(f"{self._kind} {name!r}", *self._described[name], arrays[name])

    def _unknown(self, name: str) -> str:
        names = list(self._described)
        return (
            f"the program has no {self._kind} {name!r}; it has "
            f"{listed(map(repr, names)) or 'none'}{did_you_mean(name, names)}"
        )


def take_input(name: str, array: Array, dtype: str | None = None) -> np.ndarray:
    """Return an input as the core takes it: in host memory, in C order, of a type with bits.

    Parameters
    ----------
    dtype
        Of the port: a bfloat16 goes into one of that type by its bits, and into no other. None: it
        is not known.

    Raises
    ------
    ExecutionError
        It lies on another device, or is no array of such a type.
    """
    try:
        host_array = np.asarray(_on_host(name, array), order="C")
    except (TypeError, ValueError) as err:  # such as lists of unlike lengths
        raise ExecutionError(f"input {name!r} is no array: {err}") from err
    if host_array.dtype.name == "bfloat16":
        if dtype not in (None, "bfloat16"):
            raise ExecutionError(
                f"input {name!r}: expected {dtype}, got bfloat16 {host_array.shape}"
            )
        return host_array.view(np.uint16)
    if host_array.dtype.kind not in "biufc" or not host_array.dtype.isnative:
        raise ExecutionError(f"input {name!r} cannot be an array of type {host_array.dtype}")
    return host_array


def merged_inputs(
    inputs: Mapping[str, Array] | None, named: Mapping[str, Array]
) -> Mapping[str, Array]:
    """Return the arrays of a mapping and of keywords.

    Raises
    ------
    ExecutionError
        It is no mapping, or an input is in both.
    """
    if inputs is None:
        return named
    if not isinstance(inputs, Mapping):
        raise ExecutionError(
            f"inputs are a {type(inputs).__name__}; expected arrays by name: {{name: array}}"
        )
    twice = [name for name in named if name in inputs]
    if twice:
        raise ExecutionError(f"inputs {', '.join(map(repr, twice))} are given twice")
    return {**inputs, **named}


def take_outs(
    ports: Ports, out: Sequence[np.ndarray | None] | None
) -> tuple[np.ndarray | None, ...]:
    """Return where each output goes; None: into a new array.

    Raises
    ------
    ExecutionError
        Not one array for each output, one of another type or shape, read-only or of another memory
        order, or two that overlap: all such faults.
    """
    if out is None:
        return (None,) * len(ports)
    if isinstance(out, np.ndarray) or len(out) != len(ports):
        given = "an array" if isinstance(out, np.ndarray) else f"{len(out)} elements"
        names = ", ".join(repr(name) for name, _, _ in ports)
        raise ExecutionError(
            f"`out` is {given}; expected a list of {len(ports)} arrays, or None for a new one, "
            f"for the outputs {names}"
        )
    faults: list[str] = []
    taken = []
    for (name, shape, dtype), array in zip(ports, out, strict=True):
        if isinstance(array, np.ndarray) and array.dtype.name == dtype == "bfloat16":
            array = array.view(np.uint16)
        taken.append(array)
        if array is not None:
            faults += _out_faults(name, shape, dtype, array)
    if not faults:
        faults = _overlaps(ports, taken)
    if faults:
        raise ExecutionError("; ".join(faults))
    return tuple(taken)


def _on_host(name: str, array: Array) -> object:
    if isinstance(array, np.ndarray) or not hasattr(array, "__dlpack_device__"):
        return array
    kind, index = array.__dlpack_device__()
    if int(kind) not in _HOST_DEVICES:
        device = _DEVICE_NAMES.get(int(kind), f"DLPack device type {int(kind)}")
        raise ExecutionError(
            f"input {name!r} is in the memory of {device}:{index}; expected host memory: copy it "
            "there first"
        )
    dtype, to_numpy = getattr(array, "dtype", None), getattr(array, "numpy", None)
    if isinstance(dtype, str) and dtype in _NOT_BY_DLPACK and to_numpy is not None:
        return to_numpy()
    try:
        return np.from_dlpack(cast(Any, array))
    except (BufferError, RuntimeError, TypeError, ValueError) as err:
        raise ExecutionError(
            f"input {name!r} cannot be taken from {type(array).__name__} by DLPack: {err}; hand "
            "over a numpy array"
        ) from err


def _mismatch(what: str, shape: tuple[int, ...], dtype: str, array: np.ndarray) -> list[str]:
    # Not by its name, which does not tell the order of the bytes.
    if array.dtype == exchanged_dtype(dtype) and array.shape == shape:
        return []
    return [f"{what}: expected {dtype} {shape}, got {array.dtype} {array.shape}"]


def _out_faults(name: str, shape: tuple[int, ...], dtype: str, array: object) -> list[str]:
    what = f"output {name!r}: `out`"
    if not isinstance(array, np.ndarray):
        return [f"{what} is a {type(array).__name__}; expected a numpy array, or None"]
    faults = _mismatch(what, shape, dtype, array)
    if not array.flags.writeable:
        faults.append(f"{what} is read-only")
    if not array.flags.c_contiguous:
        faults.append(f"{what} is not in C order: an output is written as one block")
    return faults


def _overlaps(ports: Ports, outs: Sequence[np.ndarray | None]) -> list[str]:
    """Faults of arrays, each one block, of which a part is another's too."""
    blocks = sorted(
        (array.ctypes.data, array.ctypes.data + array.nbytes, ports[index][0])
        for index, array in enumerate(outs)
        if array is not None and array.nbytes
    )
    return [
        f"`out` of the outputs {one!r} and {other!r} overlap"
        for (_, end, one), (start, _, other) in itertools.pairwise(blocks)
        if start < end
    ]
