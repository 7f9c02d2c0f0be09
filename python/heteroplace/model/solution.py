"""Everything that belongs to one placed network: graph, cluster, costs, plan and its figures.

This is what travels with an annotated module and inside a compiled file.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from heteroplace.model.answers import PlanDiff, TaskAnswer, WhatIf, answerer
from heteroplace.model.cluster import Cluster
from heteroplace.model.cost import CostTable
from heteroplace.model.demands import layers_of
from heteroplace.model.graph import TaskGraph
from heteroplace.model.implementations import base_names
from heteroplace.model.plan import Plan, devices_of
from heteroplace.model.routed.speculation import PlannedPrediction
from heteroplace.model.timeline import Timeline


@dataclass(frozen=True)
class RunTime:
    """How long a plan is expected to run, disturbed as its tasks disturb each other."""

    expected_ns: int
    """The median of runs; of a network with routers the mean over what they decide."""
    low_ns: int
    """A tenth of all runs are quicker."""
    high_ns: int
    """A tenth of all runs are slower."""


@dataclass(frozen=True)
class Solution:
    """A plan with all it refers to."""

    graph: TaskGraph
    cluster: Cluster
    costs: CostTable
    plan: Plan
    predicted_ns: int
    """Simulated makespan of the plan, without interference: what solvers minimise. What a run is
    expected to take is `expected_ns`; texts and `--json` call this one simulated."""
    bound_ns: int
    """Of `objective_ns`: no plan can be better, a proven lower bound under the same costs."""
    candidates: tuple[tuple[str, int | None], ...] = ()
    """What the solver compared: name and `objective_ns`; None: found no plan."""
    singles: tuple[tuple[str, int], ...] = ()
    """`objective_ns` with everything on one device, for each device that can run all tasks."""
    expected: RunTime | None = None
    """With interference (`heteroplace.simulate.expect`); None: it was not measured."""
    item_ns: int | None = None
    """Time per item in a steady state, where throughput was asked for; None: latency was."""
    predictions: tuple[PlannedPrediction, ...] = ()
    """Of routers, which its plan has work of."""
    single_times: tuple[tuple[str, RunTime], ...] = ()
    """`expected` with everything on one device, for each device of `singles`; empty: `expected`
    is None, or a version that did not compare these times wrote the file."""
    others_cores: float = 0.0
    """How many cores other programs used while the costs were measured, at most; 0: too few to
    disturb what was measured, or nothing was measured."""

    @cached_property
    def timeline(self) -> Timeline:
        """The simulated timeline of the plan, without interference: simulated on first use.

        `dataclasses.replace` drops it, because a changed solution may have other times.

        Raises
        ------
        PlanError
            The plan breaks a rule.
        """
        simulated: Timeline = answerer("timeline")(self)
        return simulated

    def with_timeline(self, timeline: Timeline) -> Solution:
        """Return the same solution with its timeline, which the caller has simulated already."""
        solution = replace(self)
        solution.__dict__["timeline"] = timeline  # where `cached_property` stores it
        return solution

    def with_others_cores(self, cores: float) -> Solution:
        """Return the same solution with `others_cores`; no time depends on it, so the timeline
        stays."""
        solution = replace(self, others_cores=cores)
        timeline = self.__dict__.get("timeline")
        return solution if timeline is None else solution.with_timeline(timeline)

    @property
    def objective_ns(self) -> int:
        """What was minimised: the simulated makespan, or the time per item."""
        return self.predicted_ns if self.item_ns is None else self.item_ns

    @property
    def expected_ns(self) -> int:
        """The best prediction of a run there is: the expected time, else the simulated one."""
        return self.predicted_ns if self.expected is None else self.expected.expected_ns

    @property
    def gap_ratio(self) -> float:
        """(objective - bound) / objective; 0 is a proof that no plan is better."""
        if self.objective_ns == 0:
            return 0.0
        return (self.objective_ns - self.bound_ns) / self.objective_ns

    @property
    def devices_used(self) -> tuple[str, ...]:
        """Names of the devices that run at least one task, in cluster order."""
        used = {device for step in self.plan.steps for device in devices_of(step)}
        return tuple(d.name for index, d in enumerate(self.cluster.devices) if index in used)

    @property
    def devices_not_used(self) -> tuple[str, ...]:
        """Names of the other devices, in cluster order."""
        used = self.devices_used
        return tuple(device.name for device in self.cluster.devices if device.name not in used)

    @property
    def best_single(self) -> tuple[str, int] | None:
        """The device that is best alone, and its `objective_ns`; None: none can run all tasks."""
        return min(self.singles, key=lambda single: single[1], default=None)

    @property
    def predicted_singles(self) -> tuple[tuple[str, int], ...]:
        """The time of each device alone, of the kind that texts print for the plan.

        With `expected` these are expected run times; otherwise they are `singles`.
        """
        if self.expected is None:
            return self.singles
        return tuple((name, time.expected_ns) for name, time in self.single_times)

    def explain(self, name: str) -> tuple[TaskAnswer, ...]:
        """Say why tasks are where they are, and what moving each would cost.

        Parameters
        ----------
        name
            Of a task, of a layer of the imported model, of an op, or a pattern of them.

        Raises
        ------
        GraphError
            It means no task.

        Examples
        --------
        >>> print(*solution.explain("conv1"))  # doctest: +SKIP
        """
        answers: tuple[TaskAnswer, ...] = answerer("explain")(self, name)
        return answers

    def diff(self, other: Solution) -> PlanDiff:
        """Say in what another solution, made later, differs from this one.

        Raises
        ------
        PlanError
            The two have no task in common.
        """
        difference: PlanDiff = answerer("diff")(self, other)
        return difference

    def what_if(self, **changes: Any) -> WhatIf:
        """Say what the plan would take on another cluster, and what a new plan would.

        Parameters
        ----------
        changes
            As of `heteroplace.questions.what_if.what_if`: add_device, drop_device, scale_link,
            memory, batch; solve, solver, options.

        Raises
        ------
        ClusterError, SolverError, InfeasibleError
            See there.

        Examples
        --------
        >>> solution.what_if(add_device={"gpu1": "gpu0"}, solve=True)  # doctest: +SKIP
        """
        answer: WhatIf = answerer("what_if")(self, **changes)
        return answer

    def layers(self) -> dict[str, str]:
        """Return the device of each layer of the imported model, to be edited and given to
        `HeteroPlace(cluster, layers=...)`.

        Tasks that belong to no layer, and those of a layer that is on several devices, stand there
        by their own names. Of tasks on several devices it is the last one. Whose kernels a device
        runs is no part of it.
        """
        placement = self.plan.placement(len(self.graph.tasks))
        of_device = base_names(self.cluster)
        names = [of_device[device] for device in placement]
        of_layer: dict[str, set[str]] = {}
        for task, device in zip(self.graph.tasks, names, strict=True):
            for layer in layers_of(task):
                of_layer.setdefault(layer, set()).add(device)
        layer_of: dict[str, str] = {}
        for task, device in zip(self.graph.tasks, names, strict=True):
            layers = layers_of(task)
            is_whole = layers and all(len(of_layer[layer]) == 1 for layer in layers)
            layer_of |= dict.fromkeys(layers if is_whole else (task.name,), device)
        return layer_of

    def _repr_html_(self) -> str:
        """Return the headline and tables for a notebook."""
        return str(answerer("html")(self))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the plan with all it refers to: every command and `plan_in` take the file."""
        answerer("save")(self, path)

    def trace(self, path: str | os.PathLike[str]) -> None:
        """Write the simulated timeline as a Chrome trace, for https://ui.perfetto.dev."""
        answerer("trace")(self, path)
