"""Time of one kernel that runs alone, over and over: with warm caches, or with cold ones.

Warm ("hot"): calls follow each other, and a sample is as many of them as take 20 us, so that the
reading of the clocks does not count. Cold: before each call everything that the kernel reads and
writes is dropped from the caches of all cores by the processor's own instruction for it. Unlike
TVM's `cache_flush_cpu_non_first_arg`, the first argument as well: what a network finds in the
caches lies between the two, and between hot and cold, and is measured in place. Code and scratch
memory stay warm.
"""

from __future__ import annotations

import time

from heteroplace.costs.sampling import KernelSample, Sampling, SamplingOptions, Summary
from heteroplace.native.execute import Executor

HOT = "hot"
COLD = "cold"

_MIN_SAMPLE_NS = 20_000
_MAX_COLD_CALLS = 4
_WARM_CALLS = 3
_GROWTH_DIVISOR = 4


def sample_alone(executor: Executor, mode: str, options: SamplingOptions) -> Summary:
    """Measure the only kernel of a program until the stop rule is satisfied.

    Parameters
    ----------
    executor
        A program of one kernel call, its inputs set.
    mode
        HOT or COLD.
    options
        The stop rule; its time limit holds for the preparation of cold samples as well.

    Raises
    ------
    ExecutionError
        The kernel failed, or caches cannot be emptied on this device.
    """
    is_cold = mode == COLD
    walls, _ = executor.sample(_WARM_CALLS, 1, is_cold)
    call_ns = max(1, int(walls.min()))
    num_calls = max(1, -(-_MIN_SAMPLE_NS // call_ns))
    if is_cold:
        num_calls = min(num_calls, _MAX_COLD_CALLS)
    elif num_calls > 1:  # One call is timed too long by the reading of the clocks.
        walls, _ = executor.sample(_WARM_CALLS, num_calls, False)
        num_calls = max(1, -(-_MIN_SAMPLE_NS * num_calls // max(1, int(walls.min()))))
    sampling = Sampling(num_calls, options)
    begin = time.perf_counter_ns()
    requested = options.min_samples
    while sampling.ended_by() is None:
        walls, cpus = executor.sample(requested, num_calls, is_cold)
        pairs = zip(walls.tolist(), cpus.tolist(), strict=True)
        sampling.add([KernelSample(wall_ns, cpu_ns) for wall_ns, cpu_ns in pairs])
        if time.perf_counter_ns() - begin >= options.max_ns:
            break
        requested = max(1, sampling.num_samples // _GROWTH_DIVISOR)
    return sampling.summary()
