"""What some cores can do at best: multiply-adds and bytes per second, by kernels made for it.

The first keeps its operands in registers; the second copies an array that is larger than caches.
Both are compiled for the target that networks are compiled for, so the first is what its vectors
reach, and not what wider ones would.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm
from tvm import te

from heteroplace.measure.bound_thread import BoundThread, configure_threads

_ACCUMULATORS = 12
"""More than the latency of a multiply-add times those that begin per cycle, on all known cores."""
_VECTOR_LENGTHS = (4, 8, 16)
_STEPS = 1 << 19
_COPY_BYTES = 128 << 20
_REPEATS = 5


@dataclass(frozen=True)
class Peaks:
    """Of some cores working together."""

    flops_per_second: float
    bytes_per_second: float
    """Read and written, of arrays that are in no cache."""

    def bound_ns(self, flops: int, num_bytes: int) -> float:
        """Return the least time of a kernel whose arguments are in no cache.

        >>> Peaks(1e9, 1e9).bound_ns(20, 10)
        20.0
        """
        return 1e9 * max(flops / self.flops_per_second, num_bytes / self.bytes_per_second)


def measure_peaks(target: str, cores: Sequence[int]) -> Peaks:
    """Measure the peaks of some cores, a thread on each.

    Parameters
    ----------
    target
        Text of an LLVM target.
    cores
        Numbers of cores that this process may run on.
    """
    thread = BoundThread("peaks", cores)
    try:
        return thread.call(_measure, target, cores)
    finally:
        thread.close()


def _measure(target: str, cores: Sequence[int]) -> Peaks:
    configure_threads(cores)
    fastest = 0.0
    for lanes in _VECTOR_LENGTHS:
        factors = np.full(2 * lanes, 0.5, np.float32)
        sums = np.zeros(len(cores) * lanes, np.float32)
        seconds = _seconds(_multiply_adds(lanes, len(cores)), target, factors, sums)
        flops = 2 * _ACCUMULATORS * lanes * _STEPS * len(cores)
        fastest = max(fastest, flops / seconds)
    source = np.zeros(_COPY_BYTES // 4, np.float32)
    seconds = _seconds(_copy(source.size, len(cores)), target, source, np.zeros_like(source))
    return Peaks(fastest, 2 * _COPY_BYTES / seconds)


def _multiply_adds(lanes: int, num_threads: int) -> list[te.Tensor]:
    """Sums in registers, each multiplied and added to, again and again, on each thread."""
    factors = te.placeholder((2 * lanes,), "float32", "factors")

    def body(inputs: Sequence[Any], outputs: Sequence[Any]) -> Any:
        builder = tvm.tir.ir_builder.create()
        given, result = builder.buffer_ptr(inputs[0]), builder.buffer_ptr(outputs[0])
        with builder.for_range(0, num_threads, "thread", kind="parallel") as thread:
            sums = builder.allocate("float32", (_ACCUMULATORS * lanes,), "kept", scope="local")
            places = [_vector(index * lanes, lanes) for index in range(_ACCUMULATORS)]
            factor, addend = given[_vector(0, lanes)], given[_vector(lanes, lanes)]
            for index, place in enumerate(places):
                sums[place] = factor * tvm.tir.Broadcast(tvm.tir.FloatImm("float32", index), lanes)
            with builder.for_range(0, _STEPS, "step"):
                for place in places:
                    sums[place] = sums[place] * factor + addend
            total = sums[places[0]]
            for place in places[1:]:  # else the compiler drops what nobody reads
                total = total + sums[place]
            result[_vector(thread * lanes, lanes)] = total
        return builder.get()

    sums = te.extern((num_threads * lanes,), [factors], body, "sums", "float32")
    return [factors, sums]


def _copy(size: int, num_threads: int) -> list[te.Tensor]:
    """An array copied, a part by each thread."""
    source = te.placeholder((size,), "float32", "source")

    def body(inputs: Sequence[Any], outputs: Sequence[Any]) -> Any:
        builder = tvm.tir.ir_builder.create()
        given, result = builder.buffer_ptr(inputs[0]), builder.buffer_ptr(outputs[0])
        lanes, part = max(_VECTOR_LENGTHS), size // num_threads
        with (
            builder.for_range(0, num_threads, "thread", kind="parallel") as thread,
            builder.for_range(0, part // lanes, "step") as step,
        ):
            at = _vector(thread * part + step * lanes, lanes)
            result[at] = given[at]
        return builder.get()

    return [source, te.extern((size,), [source], body, "result", "float32")]


def _vector(begin: Any, lanes: int) -> Any:
    return tvm.tir.Ramp(tvm.runtime.convert(begin), 1, lanes)


def _seconds(tensors: list[te.Tensor], target: str, *arrays: np.ndarray) -> float:
    """The shortest time of some runs: what disturbs them only lengthens them."""
    kernel = tvm.build(te.create_schedule(tensors[-1].op), tensors, target)
    values = [tvm.nd.array(array) for array in arrays]
    timer = kernel.time_evaluator(kernel.entry_name, tvm.cpu(0), number=1, repeat=_REPEATS)
    return float(timer(*values).min)
