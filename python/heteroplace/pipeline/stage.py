"""A list of named stages and a state -> the state after the last stage, with the time of each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from heteroplace.entries import load_entry
from heteroplace.errors import PluginError
from heteroplace.registry import load_plugins
from heteroplace.stage_log import StageLog

State = TypeVar("State")


@dataclass(frozen=True)
class Stage(Generic[State]):
    """One step of the pipeline: a function from one immutable state to the next."""

    name: str
    """What `heteroplace compile --stages` calls it."""
    purpose: str
    """One sentence: what it does."""
    entry: str
    """The function, as "module:name"; the module is loaded when the stage runs, so networks that
    skip the stage do not load it."""
    applies: Callable[[State], bool] | None = None
    """Whether a state needs the stage; None: every state does."""

    def run(self, state: State) -> State:
        """Load the function and return its state."""
        function: Callable[[State], State] = load_entry(self.entry)
        return function(state)


@dataclass(frozen=True)
class AddedStage(Generic[State]):
    """A stage that a part, or another package, adds to a list of stages."""

    stage: Stage[State]
    before: str | None
    """The stage of the core that it runs before; None: it runs after all of them."""


def with_added_stages(stages: Sequence[Stage[State]], seam: str) -> tuple[Stage[State], ...]:
    """Return stages with those that plugins add, each at its declared place.

    Plugins are read in the order of their names. Each one is a sequence of `AddedStage`.

    Parameters
    ----------
    seam
        Of the registry: "place_stages" or "build_stages".

    Raises
    ------
    PluginError
        An added stage names a stage that does not exist, or has the name of another one.
    """
    names = {stage.name for stage in stages}
    before: dict[str | None, list[Stage[State]]] = {name: [] for name in (*names, None)}
    for plugin, added in load_plugins(seam).items():
        for each in added:
            if each.before not in before:
                raise PluginError(
                    f"plugin {plugin!r} adds the stage {each.stage.name!r} before "
                    f"{each.before!r}, which is no stage of the core; stages: "
                    f"{', '.join(stage.name for stage in stages)}"
                )
            if each.stage.name in names:
                raise PluginError(
                    f"plugin {plugin!r} adds a second stage {each.stage.name!r}; give it another "
                    f"name"
                )
            names.add(each.stage.name)
            before[each.before].append(each.stage)
    own = (each for stage in stages for each in (*before[stage.name], stage))
    return (*own, *before[None])


def run_stages(stages: Sequence[Stage[State]], state: State, log: StageLog) -> State:
    """Run the stages that apply, in order.

    Raises
    ------
    HeteroPlaceError
        A stage fails.
    """
    for stage in stages:
        if stage.applies is not None and not stage.applies(state):
            log.skip(stage.name, stage.purpose)
            continue
        with log.timed(stage.name, stage.purpose):
            state = stage.run(state)
    return state
