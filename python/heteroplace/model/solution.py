"""Everything that belongs to one placed network: graph, cluster, costs, plan and its figures.

This is what travels with an annotated module and inside a compiled file.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from heteroplace.argument_checks import did_you_mean
from heteroplace.model.answers import PlanDiff, TaskAnswer, WhatIf, answerer
from heteroplace.model.cluster import Cluster
from heteroplace.model.cost import CostTable
from heteroplace.model.demands import layers_of
from heteroplace.model.graph import TaskGraph
from heteroplace.model.implementations import base_names
from heteroplace.model.plan import Plan, devices_of
from heteroplace.model.routed.speculation import PlannedPrediction
from heteroplace.model.timeline import Timeline
from heteroplace.model.verification import PrecisionChoice

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class RunTime:
    """How long a plan is expected to run, disturbed as its tasks disturb each other."""

    expected_ns: int
    """The median of runs; of a network with routers the mean over what they decide."""
    low_ns: int
    """A tenth of all runs are quicker."""
    high_ns: int
    """A tenth of all runs are slower."""


class DeviceNames(Mapping[str, str]):
    """A read-only map from names of tasks and layers to names of devices."""

    def __init__(self, devices: Mapping[str, str]) -> None:
        self._devices = dict(devices)

    def __getitem__(self, name: str) -> str:
        try:
            return self._devices[name]
        except KeyError:
            near = did_you_mean(str(name), self._devices)
            raise KeyError(f"no task or layer is called {name!r}{near}") from None

    def __contains__(self, name: object) -> bool:
        return name in self._devices

    def __iter__(self) -> Iterator[str]:
        return iter(self._devices)

    def __len__(self) -> int:
        return len(self._devices)

    def __repr__(self) -> str:
        return repr(self._devices)


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
    precision_choice: PrecisionChoice | None = None
    """Which tasks are in bfloat16, and why; None: `precision` is not "auto", or no task has a
    kernel in bfloat16."""

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

        With `expected` these are expected run times. Otherwise, and for times per item, they are
        `singles`.
        """
        if self.expected is None or self.item_ns is not None:
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

    def what_if(
        self,
        *,
        add_device: Mapping[str, str] | None = None,
        drop_device: Sequence[str] = (),
        scale_link: Mapping[str, float] | None = None,
        memory: Mapping[str, str | int] | None = None,
        batch: int | None = None,
        solve: bool = False,
        solver: str = "auto",
        options: object = None,
    ) -> WhatIf:
        """Say what the plan would take on another cluster, and what a new plan would.

        The parameters are those of `heteroplace.questions.what_if.what_if`; `options` are
        `SolveOptions`.

        Raises
        ------
        ClusterError, SolverError, InfeasibleError
            See there.

        Examples
        --------
        >>> solution.what_if(add_device={"gpu1": "gpu0"}, solve=True)  # doctest: +SKIP
        """
        answer: WhatIf = answerer("what_if")(
            self,
            add_device=add_device,
            drop_device=drop_device,
            scale_link=scale_link,
            memory=memory,
            batch=batch,
            solve=solve,
            solver=solver,
            options=options,
        )
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

    @cached_property
    def placement(self) -> Mapping[str, str]:
        """The device of each task, and of each layer of the imported model, by name; read-only.

        Several devices that share a task or a layer are joined, as in "cpu.0+gpu0". A layer with
        the name of a task is left out: the name means the task.
        """
        names = base_names(self.cluster)
        ids_of_tasks = self.plan.devices_of_tasks(len(self.graph.tasks))
        tasks = {
            task.name: dict.fromkeys(names[device] for device in ids)
            for task, ids in zip(self.graph.tasks, ids_of_tasks, strict=True)
        }
        layers: dict[str, dict[str, None]] = {}
        for task in self.graph.tasks:
            for layer in layers_of(task):
                layers.setdefault(layer, {}).update(tasks[task.name])
        devices = {**layers, **tasks}
        return DeviceNames({name: "+".join(used) for name, used in devices.items()})

    def __repr__(self) -> str:
        return str(answerer("repr")(self))

    def _repr_html_(self) -> str:
        """Return the headline, the timeline as a picture, and tables for a notebook."""
        return str(answerer("html")(self))

    def plot(self) -> Figure:
        """Return a figure of matplotlib: the simulated timeline, a row for each device and channel.

        Raises
        ------
        MissingPackageError
            matplotlib is not installed.

        Examples
        --------
        >>> solution.plot().savefig("timeline.png")  # doctest: +SKIP
        """
        figure: Figure = answerer("plot")(self)
        return figure

    def report(
        self,
        path: str | os.PathLike[str],
        *,
        measured: Timeline | None = None,
        command: str = "",
    ) -> None:
        """Write one HTML page that shows the plan: times, reasons, and what moving tasks costs.

        Parameters
        ----------
        measured
            A measured timeline, such as `Executor.timeline()`; None: the plan was not run.
        command
            What makes the page again.

        Raises
        ------
        OSError
            The folder does not exist or cannot be written to.
        """
        answerer("report")(self, path, measured=measured, command=command)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the plan with all it refers to: every command and `plan_in` take the file."""
        answerer("save")(self, path)

    def trace(self, path: str | os.PathLike[str]) -> None:
        """Write the simulated timeline as a Chrome trace, for https://ui.perfetto.dev."""
        answerer("trace")(self, path)
