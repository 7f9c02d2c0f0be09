"""Planned models -> what the whole batch really takes: built, loaded, and run in turns.

What is simulated is off by some percent, and the state of the machine while costs are measured adds
to that: of plans that are nearly as fast, a run tells which is the fastest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing

import numpy as np

from heteroplace import pipeline
from heteroplace.errors import MissingCostError
from heteroplace.model.cluster import Cluster
from heteroplace.model.demands import check_reachable
from heteroplace.run.devices import missing_devices
from heteroplace.run.executor import Executor
from heteroplace.sharding.inputs import made_up_inputs
from heteroplace.sharding.options import ShardOptions
from heteroplace.sharding.plan import ShardedModel
from heteroplace.stats import median
from heteroplace.transforms.degrees import Degrees

_ROUNDS = 21
"""In each, the programs run one after the other."""
_TURN_NS = 40_000_000
_LEAST_RUNS = 2
_SHARE_OF_MEMORY = 2
"""One byte in so many of a memory is for programs in turns; what builds them has the rest."""


def check_can_run(cluster: Cluster) -> None:
    """Raise MissingCostError unless all devices of a cluster are in this machine."""
    check_reachable(cluster)
    absent = missing_devices(cluster, [device.name for device in cluster.devices])
    if absent:
        raise MissingCostError(
            f"to run plans takes the devices of the cluster, and this machine lacks "
            f"{'; '.join(absent)}; say run_best=0"
        )


def run_times(
    models: Sequence[ShardedModel], options: ShardOptions, *, helping: bool = True
) -> dict[Degrees, int]:
    """Run models in turns; return ns of a whole batch, by degrees.

    A shared machine is now fast, now slow, so a time is told as its ratio to the mean of its round,
    the median of these, times the median of the means. The first model always runs; others as far
    as half of every memory has all of them side by side.

    Parameters
    ----------
    helping
        As of `Executor`: whether a core that waits takes parts of what is planned for another.

    Raises
    ------
    HeteroPlaceError
        One cannot be built or run.
    """
    with ExitStack() as loaded:
        executors = {}
        for model in _side_by_side(models):
            options.say(f"compiling {model.strategy.degrees}")
            executable = pipeline.build_module(model.to_module())
            executor = loaded.enter_context(closing(Executor(executable, helping=helping)))
            executors[model.strategy.degrees] = executor, made_up_inputs(model, executable)
        options.say(f"running {', '.join(map(str, executors))} in turns")
        rounds = [[_turn_ns(*each) for each in executors.values()] for _ in range(_ROUNDS)]
    times = np.array(rounds, dtype=np.float64)
    means = times.mean(axis=1)
    ratios = np.median(times / means[:, np.newaxis], axis=0)
    return {
        degrees: round(ratio * np.median(means))
        for degrees, ratio in zip(executors, ratios.tolist(), strict=True)
    }


def _side_by_side(models: Sequence[ShardedModel]) -> list[ShardedModel]:
    """The first one, and those behind it that fit into memory together."""
    found = list(models[:1])
    for model in models[1:]:
        held = [sum(each) for each in zip(*(m.peak_bytes for m in (*found, model)), strict=True)]
        limits = [memory.bytes // _SHARE_OF_MEMORY for memory in model.solution.cluster.memories]
        if any(used > limit for used, limit in zip(held, limits, strict=True)):
            break
        found.append(model)
    return found


def _turn_ns(executor: Executor, inputs: Mapping[str, np.ndarray]) -> float:
    """The median of some runs, after one that is not counted and sets the inputs."""
    executor.run(inputs)
    (first,) = executor.benchmark(1)
    return median(executor.benchmark(max(_LEAST_RUNS, _TURN_NS // max(1, first))))
