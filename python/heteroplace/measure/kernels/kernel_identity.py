"""Lowered kernels -> names that mean the same in every process and in every network.

TVM names kernels after their ops and numbers those that differ, so one name means different
kernels in different networks, and the other way round. What identifies a kernel is its lowered
code: the structural hash of its functions, without their names. That has 64 bits; the ops and the
shapes go into the identity as well, so that of two kernels that share a hash by accident each is
still taken for what it is.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import tvm

from heteroplace.lower.kernels import Kernel, KernelCall, KernelCalls, Value
from heteroplace.lower.library_symbols import is_library_kernel
from heteroplace.lower.lower_kernel import config_texts
from heteroplace.model.cluster import Device

_DIGEST_BYTES = 16


@dataclass(frozen=True)
class KernelDescription:
    """What is known of a kernel before it has run."""

    identity: str
    """Equal for equal kernels of any network, in hex; depends on the version of TVM, which
    generates the code, and on its options."""
    op: str
    """As `Kernel.op`."""
    shapes: str
    """Types of what it reads, "->", types of what it writes."""
    flops: int
    """As `Kernel.flops`."""
    bytes: int
    """Of all that it reads and writes, each tensor once."""


def describe_kernels(calls: KernelCalls) -> dict[str, KernelDescription]:
    """Return what is known of each kernel of a network, by symbol."""
    descriptions: dict[str, KernelDescription] = {}
    for call in calls.calls:
        if call.kernel not in descriptions:
            descriptions[call.kernel] = _describe(calls, call)
    return descriptions


def _describe(calls: KernelCalls, call: KernelCall) -> KernelDescription:
    kernel = calls.kernels[call.kernel]
    reads = [calls.values[value] for value in call.reads]
    writes = [calls.values[value] for value in call.writes]
    shapes = f"{_types(reads)} -> {_types(writes)}".strip()
    used = {*call.reads, *call.writes}
    return KernelDescription(
        kernel_identity(kernel, shapes),
        kernel.op,
        shapes,
        kernel.flops,
        sum(calls.values[value].bytes for value in used),
    )


def kernel_identity(kernel: Kernel, shapes: str) -> str:
    """Return the identity of a kernel whose arguments have these types."""
    if is_library_kernel(kernel.symbol):
        # The library's version and the algorithm are in its symbol; TVM has no part in it.
        return _digest([kernel.symbol, kernel.op, shapes])
    options = config_texts(tvm.transform.PassContext.current())
    hashes = [f"{number:016x}" for number in kernel.hashes]
    return _digest([*hashes, kernel.op, shapes, tvm.__version__, *options])


def identity_of_call(identity: str, calls: KernelCalls, call: KernelCall) -> str:
    """Return what a measurement of a call alone is kept by: that of its kernel, and of the examples
    that it reads."""
    values = (calls.values[value] for value in call.reads)
    given = [_example_text(value.example) for value in values if value.example is not None]
    return _digest([identity, *given]) if given else identity


def place_text(device: Device) -> str:
    """Return what the digest of a network says of where a call runs."""
    return f"{device.kind} {device.target} {len(device.cores)}"


def network_digest(
    calls: KernelCalls, kernels: dict[str, KernelDescription], places: Sequence[str], seen: str = ""
) -> str:
    """Return the digest of a network as it runs: kernels, their order, data and places.

    Names of tasks and inputs, and the values of weights, are no part of it; examples that a caller
    gave of inputs are.

    Parameters
    ----------
    kernels
        As `describe_kernels` returns them.
    places
        For each call where it runs.
    seen
        What else tells this run from others.
    """
    parts = [seen]
    for call, place in zip(calls.calls, places, strict=True):
        identity = kernels[call.kernel].identity
        parts.append(f"{identity} {call.segment} {call.reads} {call.writes} {place}")
    parts += [_value_text(value) for value in calls.values]
    return _digest([*parts, str(calls.outputs)])


def _value_text(value: Value) -> str:
    kind = "constant" if value.constant is not None else "value"
    text = f"{'input' if value.input_name else kind} {value.shape} {value.dtype} {value.alias_of}"
    return text if value.example is None else f"{text} {_example_text(value.example)}"


def _example_text(example: np.ndarray) -> str:
    """A digest of what a caller gave; a time may depend on it."""
    data = np.ascontiguousarray(example).view(np.uint8).tobytes()
    return hashlib.blake2b(data, digest_size=_DIGEST_BYTES).hexdigest()


def _types(values: Iterable[Value]) -> str:
    return " ".join(f"{value.dtype}[{','.join(map(str, value.shape))}]" for value in values)


def _digest(parts: Sequence[str]) -> str:
    text = "\n".join(parts)
    return hashlib.blake2b(text.encode(), digest_size=_DIGEST_BYTES).hexdigest()
