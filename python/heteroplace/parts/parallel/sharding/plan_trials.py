"""Planned models -> what the whole batch really takes: built, loaded, and run in turns.

What is simulated is off by some percent, and the state of the machine while costs are measured adds
to that: of plans that are nearly as fast, a run tells which is the fastest.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack, closing

import numpy as np

from heteroplace import pipeline
from heteroplace.parts.parallel.sharding.inputs import made_up_inputs
from heteroplace.parts.parallel.sharding.shard_options import ShardOptions
from heteroplace.parts.parallel.sharding.sharded_plan import ShardedModel
from heteroplace.parts.parallel.transforms.strategy import Strategy
from heteroplace.run.executor import Executor
from heteroplace.stats import median

NUM_ROUNDS = 21
"""In each, the programs run one after the other."""
_TURN_NS = 40_000_000
_MIN_RUNS = 2
_SHARE_OF_MEMORY = 2
"""One byte in so many of a memory is for programs in turns; what builds them has the rest."""


def load_model(model: ShardedModel, *, helping: bool = True) -> Executor:
    """Return an executor of a planned model, its inputs made up.

    The kernels are those that were compiled for its costs, and nothing is verified.

    Parameters
    ----------
    helping
        As of `Executor`: whether a core that waits takes parts of what is planned for another.

    Raises
    ------
    HeteroPlaceError
        It cannot be built or loaded.
    """
    assert model.compiled is not None  # it was planned here
    executable = pipeline.build(model.compiled, model.solution)
    executor = Executor(executable, helping=helping)
    for name, array in made_up_inputs(model, executable).items():
        executor.set_input(name, array)
    return executor


def run_times(
    models: Sequence[ShardedModel],
    options: ShardOptions,
    *,
    helping: bool = True,
    num_rounds: int = NUM_ROUNDS,
) -> dict[Strategy, int]:
    """Run models in turns; return ns of a whole batch, by strategy.

    A shared machine is now fast, now slow, so a time is told as its ratio to the mean of its round,
    the median of these, times the median of the means. The first model always runs; others as far
    as half of every memory has all of them side by side.

    Parameters
    ----------
    helping
        As of `load_model`.
    num_rounds
        How often each model has its turn.

    Raises
    ------
    HeteroPlaceError
        One cannot be built or run.
    """
    with ExitStack() as loaded:
        executors: dict[Strategy, Executor] = {}
        names: list[str] = []
        for model in _side_by_side(models):
            options.say(f"Compiling {_name(model)}")
            executor = loaded.enter_context(closing(load_model(model, helping=helping)))
            executors[model.strategy] = executor
            names.append(_name(model))
        options.say(f"Running {'; '.join(names)} in turns")
        rounds = [[_turn_ns(each) for each in executors.values()] for _ in range(num_rounds)]
    times = np.array(rounds, dtype=np.float64)
    means = times.mean(axis=1)
    ratios = np.median(times / means[:, np.newaxis], axis=0)
    return {
        strategy: round(ratio * np.median(means))
        for strategy, ratio in zip(executors, ratios.tolist(), strict=True)
    }


def _name(model: ShardedModel) -> str:
    at_end = ", weight gradients at the end" * model.strategy.sums_at_end
    return f"{model.strategy.degrees}{at_end}"


def _side_by_side(models: Sequence[ShardedModel]) -> list[ShardedModel]:
    """The first one, and those behind it that fit into memory together."""
    chosen_models = list(models[:1])
    for model in models[1:]:
        held = [
            sum(each) for each in zip(*(m.peak_bytes for m in (*chosen_models, model)), strict=True)
        ]
        limits = [memory.bytes // _SHARE_OF_MEMORY for memory in model.solution.cluster.memories]
        if any(used > limit for used, limit in zip(held, limits, strict=True)):
            break
        chosen_models.append(model)
    return chosen_models


def _turn_ns(executor: Executor) -> float:
    """The median of some runs, after two that are not counted."""
    *_, run_ns = executor.benchmark(2)
    return median(executor.benchmark(max(_MIN_RUNS, _TURN_NS // max(1, run_ns))))
