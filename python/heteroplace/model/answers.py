"""What is answered when somebody asks something of a solution: values only.

`Solution` has a method for each question. Finding the answers needs solvers and simulators, which
lie above this layer (`heteroplace.questions`); they are looked up by name when something is asked.
So are the short texts and the pictures of other values.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from heteroplace.entries import load_entry

if TYPE_CHECKING:
    from heteroplace.model.cluster import Cluster
    from heteroplace.model.solution import Solution

_QUESTIONS = {
    "explain": "heteroplace.questions.explain:explain",
    "diff": "heteroplace.questions.diff:diff",
    "html": "heteroplace.questions.notebook:html",
    "more_memory": "heteroplace.questions.more_memory:more_memory",
    "plot": "heteroplace.questions.pictures:plot",
    "report": "heteroplace.questions.files:report",
    "repr": "heteroplace.questions.short_texts:solution_repr",
    "save": "heteroplace.questions.files:save",
    "text": "heteroplace.questions.texts:text_of",
    "timeline": "heteroplace.simulate.simulator:timeline_of",
    "trace": "heteroplace.questions.files:trace",
    "what_if": "heteroplace.questions.what_if:what_if",
    "cluster_html": "heteroplace.questions.value_pages:cluster_html",
    "cluster_repr": "heteroplace.questions.short_texts:cluster_repr",
    "plan_html": "heteroplace.questions.value_pages:plan_html",
    "plan_repr": "heteroplace.questions.short_texts:plan_repr",
    "timeline_html": "heteroplace.questions.value_pages:timeline_html",
    "timeline_plot": "heteroplace.questions.pictures:plot_timeline",
    "timeline_repr": "heteroplace.questions.short_texts:timeline_repr",
}
"""What answers each; a new question is one more line."""


def answerer(question: str) -> Callable[..., Any]:
    """Return the function that answers a question of `_QUESTIONS`."""
    function: Callable[..., Any] = load_entry(_QUESTIONS[question])
    return function


class _Told:
    """An answer, which `str` makes a text of."""

    def __str__(self) -> str:
        return str(answerer("text")(self))


@dataclass(frozen=True)
class Choice:
    """A device that a task could be on."""

    device: str
    run_ns: int | None
    """Time of the task alone on it; None: it cannot, or may not, run it."""
    source: str
    """Where that time comes from: "measured", "given", "roofline", ... (`model.cost`)."""
    is_chosen: bool
    objective_ns: int | None
    """Of the whole plan with the task on it (and those that must stay with it), the others where
    they are and in the same order, simulated; None: there is no such plan, or it is not known."""
    change_ns: int | None
    """`objective_ns` minus that of the plan as it is, scheduled in the same way."""
    note: str = ""
    """Why there is no time or no objective; else what else moves with the task."""


@dataclass(frozen=True)
class Moment:
    """Something that was ready at some time: an input, or the device."""

    what: str
    ready_ns: int


@dataclass(frozen=True)
class Reader:
    """A task that reads what another one makes."""

    task: str
    device: str
    start_ns: int
    waited_ns: int
    """From the moment when what it reads of that task was in its memory to its start."""


@dataclass(frozen=True)
class TaskAnswer(_Told):
    """Why a task is where it is, and what moving it would cost."""

    task: str
    op: str
    layers: tuple[str, ...]
    """Names of the layers of the imported model inside."""
    devices: tuple[str, ...]
    """Where it runs; several share its items, or it is a collective."""
    start_ns: int
    finish_ns: int
    reason: str
    choices: tuple[Choice, ...]
    """One for each device of the cluster, in its order."""
    waits_for: tuple[Moment, ...]
    """What it needs, the latest first: that is what it waited for."""
    readers: tuple[Reader, ...]
    """What waits for it, the earliest start first."""
    saved_ns: int | None
    """How much less the objective would be if the task took no time; None: not known."""
    objective_ns: int
    """Of the plan as it is."""
    is_per_item: bool
    """The objective is a time per item (throughput), not of a run."""


@dataclass(frozen=True)
class Moved:
    """A task that two plans have on different devices."""

    task: str
    was: tuple[str, ...]
    now: tuple[str, ...]
    was_ns: int
    """Time of its run in each plan."""
    now_ns: int


@dataclass(frozen=True)
class Totals:
    """What one of two plans that are compared is as a whole."""

    objective_ns: int
    makespan_ns: int
    bound_ns: int
    num_copies: int
    copied_bytes: int
    tasks_of: tuple[tuple[str, int], ...]
    """For each device how many tasks it runs."""
    peak_bytes: tuple[tuple[str, int], ...]
    """For each memory the bytes that are live at once."""


@dataclass(frozen=True)
class PlanDiff(_Told):
    """In what a solution differs from one before it."""

    was: Totals
    now: Totals
    moved: tuple[Moved, ...]
    """In the order of the graph."""
    added: tuple[str, ...]
    """Tasks that only the later one has."""
    dropped: tuple[str, ...]
    num_reordered: int
    """Tasks that are where they were and left their place in the order of that device: the fewest
    without which the order of the others is as before."""
    notes: tuple[str, ...]
    """In what the two cannot be compared as they are: other costs, another objective."""


@dataclass(frozen=True)
class WhatIf(_Told):
    """What a plan would take on another cluster, or of other items."""

    changes: tuple[str, ...]
    """What was asked, as text."""
    cluster: Cluster
    """The changed one."""
    before_ns: int
    """Objective of the plan as it is, simulated."""
    same_ns: int | None
    """Objective of the same plan after the changes, simulated; of several items of one for
    throughput what a run of all takes, over their number. None: it cannot be run then."""
    same_note: str
    """Why it cannot be run; else how it was taken over."""
    is_per_item: bool
    items: int
    """Model inputs that the times after the changes are for; those before are for the plan's."""
    solution: Solution | None = None
    """What was found for the changes; None: nothing was solved."""


@dataclass(frozen=True)
class MoreMemory(_Told):
    """What a workload would take if a memory had another size."""

    memory: str
    was_bytes: int
    """Its size in the workload as it is."""
    now_bytes: int
    before_ns: int
    """The time of all calls as it is; with routers, that of plans without guards, as after it."""
    before_bound_ns: int
    objective_ns: int
    """The time of all calls, placed again."""
    bound_ns: int
    """No placement takes less with the other size: a proven lower bound."""
    weight_bytes: Mapping[str, int]
    """What weights and state take then, by memory."""
    value_bytes: Mapping[str, int]
    """What tensors and workspaces of all entries take then, by memory."""
