"""A list of named stages and a state -> the state after the last stage, with the time of each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from heteroplace.entries import load_entry
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
