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

_TURNS = 5
"""Rounds in which the programs are run, one after the other."""
_ROUND_NS = 200_000_000
_MOST_RUNS = 50


def check_can_run(cluster: Cluster) -> None:
    """Raise MissingCostError unless all devices of a cluster are in this machine."""
    check_reachable(cluster)
    absent = missing_devices(cluster, [device.name for device in cluster.devices])
    if absent:
        raise MissingCostError(
            f"to run plans takes the devices of the cluster, and this machine lacks "
            f"{'; '.join(absent)}; say run_best=0"
        )


def run_times(models: Sequence[ShardedModel], options: ShardOptions) -> dict[Degrees, int]:
    """Run models in turns; return ns of a whole batch, by degrees.

    Of each the median of the turn counts that was disturbed least. What does not fit into memory
    beside those before it is left out.

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
            executor = loaded.enter_context(closing(Executor(executable)))
            executors[model.strategy.degrees] = executor, made_up_inputs(model, executable)
        times: dict[Degrees, list[int]] = {degrees: [] for degrees in executors}
        for _ in range(_TURNS):
            for degrees, (executor, inputs) in executors.items():
                options.say(f"running {degrees}")
                times[degrees].append(_turn_ns(executor, inputs))
    return {degrees: min(found) for degrees, found in times.items()}


def _side_by_side(models: Sequence[ShardedModel]) -> list[ShardedModel]:
    """The first ones, as many as fit into memory together."""
    found: list[ShardedModel] = []
    for model in models:
        held = [sum(each) for each in zip(*(m.peak_bytes for m in (*found, model)), strict=True)]
        memories = model.solution.cluster.memories
        if any(used > memory.bytes for used, memory in zip(held, memories, strict=True)):
            break
        found.append(model)
    return found


def _turn_ns(executor: Executor, inputs: Mapping[str, np.ndarray]) -> int:
    """The median of some runs, after one that is not counted and sets the inputs."""
    executor.run(inputs)
    (first,) = executor.benchmark(1)
    return int(median(executor.benchmark(max(1, min(_MOST_RUNS, _ROUND_NS // max(1, first))))))
