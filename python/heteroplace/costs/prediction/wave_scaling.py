"""The time of a kernel on one GPU -> its time on another: Habitat's wave scaling.

"Habitat: A Runtime-Based Computational Performance Predictor for Deep Neural Network Training",
section 4.2, equation 2 (many waves): a kernel runs as waves of thread blocks, as many at once as
the GPU holds; a wave takes as long as its memory traffic and its computing, mixed by `gamma`, how
much the kernel is bound by memory.

Unlike Habitat, which asks the driver for each kernel's launch shape, the shape may be unknown: then
a default is taken on both GPUs, so only their numbers of multiprocessors and limits count.
"""

from __future__ import annotations

from dataclasses import dataclass

from heteroplace.costs.device_figures import DeviceFigures
from heteroplace.costs.work import TaskWork
from heteroplace.errors import MissingCostError

_WARP = 32
_REGISTER_UNIT = 256
"""Registers are given to warps in units of so many (CUDA occupancy calculator)."""


@dataclass(frozen=True)
class LaunchShape:
    """What a thread block of a kernel needs; decides how many fit on a multiprocessor."""

    threads_per_block: int = 256
    registers_per_thread: int = 32
    shared_bytes_per_block: int = 0


DEFAULT_SHAPE = LaunchShape()
"""Where nothing is known: blocks of 256 threads, which fill a multiprocessor of every capability,
with so few registers and so little shared memory that these do not limit."""


def blocks_per_sm(figures: DeviceFigures, shape: LaunchShape = DEFAULT_SHAPE) -> int:
    """Return how many blocks of `shape` one multiprocessor holds at once.

    Raises
    ------
    MissingCostError
        The limits of the GPU are not known, or a block does not fit at all.
    """
    limits = (
        figures.max_threads_per_sm,
        figures.max_blocks_per_sm,
        figures.registers_per_sm,
        figures.shared_bytes_per_sm,
    )
    max_threads, max_blocks, registers, shared_bytes = limits
    if max_threads is None or max_blocks is None or registers is None or shared_bytes is None:
        raise MissingCostError(
            f"the number of blocks per multiprocessor of {figures.name!r} is not known: its "
            f"figures lack threads, blocks, registers or shared memory"
        )
    warps = -(-shape.threads_per_block // _WARP)
    of_warp = -(-shape.registers_per_thread * _WARP // _REGISTER_UNIT) * _REGISTER_UNIT
    fitting = [max_blocks, max_threads // (warps * _WARP)]
    if of_warp:
        fitting.append(registers // of_warp // warps)
    if shape.shared_bytes_per_block:
        fitting.append(shared_bytes // shape.shared_bytes_per_block)
    if min(fitting) == 0:
        raise MissingCostError(f"a block of {shape} does not fit on {figures.name!r}")
    return min(fitting)


def wave_size(figures: DeviceFigures, shape: LaunchShape = DEFAULT_SHAPE) -> int:
    """Return `W` of the paper: how many blocks of `shape` the whole GPU holds; raises as above."""
    if figures.num_units is None:
        raise MissingCostError(f"the number of multiprocessors of {figures.name!r} is not known")
    return figures.num_units * blocks_per_sm(figures, shape)


def memory_share(intensity: float, ridge: float) -> float:
    """Return `gamma` of the paper, from 0 (bound by computing) to 1 (bound by memory).

    Parameters
    ----------
    intensity
        Operations of the kernel per byte that it moves, >= 0; `x` of the paper.
    ridge
        Peak speed over bandwidth of the destination, > 0; `R` of the paper.

    >>> [memory_share(x, 10.0) for x in (0.0, 5.0, 10.0, 20.0)]
    [1.0, 0.75, 0.5, 0.25]
    """
    if intensity < ridge:
        return 1 - intensity / (2 * ridge)
    return ridge / (2 * intensity)


def scale_by_waves(
    origin_ns: float,
    origin: DeviceFigures,
    destination: DeviceFigures,
    work: TaskWork,
    dtype: str = "float32",
    shape: LaunchShape = DEFAULT_SHAPE,
) -> float:
    """Return the time on `destination` of a kernel that takes `origin_ns` on `origin`.

    `p_d = p_o (B_o / B_d)^gamma (W_o / W_d)^(1 - gamma) (F_o / F_d)^(1 - gamma)` with bandwidth
    `B`, wave size `W` and clock `F`.

    Raises
    ------
    MissingCostError
        Not two GPUs, or a figure that is needed is not known.
    """
    faults = _lacking(origin) + _lacking(destination)
    peak = destination.peak_flops_per_second(dtype)
    if faults or not peak:
        raise MissingCostError(
            f"cannot scale from {origin.name!r} to {destination.name!r}: "
            f"{'; '.join(faults) or 'the peak speed of the latter is not known'}"
        )
    assert origin.memory_bytes_per_second and destination.memory_bytes_per_second
    assert origin.clock_hz and destination.clock_hz
    ridge = peak / destination.memory_bytes_per_second
    gamma = memory_share(work.flops / work.bytes, ridge) if work.bytes else 0.0
    bandwidths = origin.memory_bytes_per_second / destination.memory_bytes_per_second
    waves = wave_size(origin, shape) / wave_size(destination, shape)
    clocks = origin.clock_hz / destination.clock_hz
    scaled: float = origin_ns * bandwidths**gamma * (waves * clocks) ** (1 - gamma)
    return scaled


def _lacking(figures: DeviceFigures) -> list[str]:
    """What wave scaling needs and `figures` has not."""
    if figures.kind != "cuda":
        return [f"{figures.name} is no GPU"]
    lacking = []
    if figures.memory_bytes_per_second is None:
        lacking.append(f"the bandwidth of {figures.name} is not known")
    if figures.clock_hz is None:
        lacking.append(f"the clock of {figures.name} is not known")
    return lacking
