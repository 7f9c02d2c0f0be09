"""Another program's file, and a solution of the same network -> a solution on its devices.

The order of tasks, and the CPU device where the cluster has several, are in no such file: a solver
chooses them.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from heteroplace.errors import HeteroPlaceError, PlanError
from heteroplace.frontends import frontend_of
from heteroplace.model.demands import layers_of
from heteroplace.model.graph import Task
from heteroplace.model.solution import Solution
from heteroplace.parts.exports.exporting import settings_path
from heteroplace.parts.exports.import_format import ImportedPlacement, ImportFormat
from heteroplace.registry import load_plugin, plugins
from heteroplace.solve import Problem, SolveOptions, solve_network

_SEAM = "import_formats"
_TIME_LIMIT_S = 5.0
_LOGGER = logging.getLogger("heteroplace")


def import_formats() -> tuple[str, ...]:
    """Return the names of all formats: ours, then those of installed packages."""
    return tuple(plugins(_SEAM, is_ranked=True))


def import_placement(
    placement: str | os.PathLike[str],
    form_name: str,
    solution: Solution,
    *,
    model: str | os.PathLike[str] | None = None,
) -> Solution:
    """Return the network of a solution, placed as the file of another program says.

    Parameters
    ----------
    placement
        The file.
    form_name
        Name of its format, one of `import_formats()`.
    solution
        Any placement of the network: its graph, cluster and costs count.
    model
        The ONNX model that was placed. Some formats need it.

    Raises
    ------
    MissingPackageError
        The model is read, and the package onnx is not installed.
    HeteroPlaceError
        A file cannot be read, or the format needs a model.
    PlanError
        The network has routers, the file is of another network, or the cluster lacks a device.
    InfeasibleError
        A device cannot run a task, or lacks the memory.
    """
    form: ImportFormat = load_plugin(_SEAM, form_name)
    if model is not None:
        frontend_of(os.fspath(model)).check_installed()
    if solution.graph.routers:
        raise PlanError(
            f"{solution.graph.name!r} has routers, and a placement of another program cannot say "
            f"where they go"
        )
    imported = form.read(Path(placement), solution, None if model is None else Path(model))
    for warning in imported.warnings:
        _LOGGER.warning("%s: %s", form_name, warning)
    return place_on_devices(solution, imported)


def check_import(
    placement: str | os.PathLike[str],
    form_name: str,
    model: str | os.PathLike[str] | None,
    output: str | os.PathLike[str] | None,
) -> None:
    """Raise HeteroPlaceError if a format lacks its model, or its settings would be overwritten."""
    form: ImportFormat = load_plugin(_SEAM, form_name)
    if form.needs_model and model is None:
        raise HeteroPlaceError(
            f"the format {form_name} needs the model that was placed; give --model MODEL.onnx"
        )
    settings = settings_path(placement)
    if (
        form.has_settings
        and output is not None
        and Path(output).resolve() == Path(settings).resolve()
    ):
        raise HeteroPlaceError(
            f"-o would overwrite {settings}, which has the settings of {os.fspath(placement)}; "
            f"give another file"
        )


def place_on_devices(solution: Solution, imported: ImportedPlacement) -> Solution:
    """Return the network of a solution, with its layers on the devices of another placement."""
    graph = solution.graph
    tasks = tuple(_restricted(task, imported.devices) for task in graph.tasks)
    objective = "latency" if solution.item_ns is None else "throughput"
    options = SolveOptions(objective=objective, time_limit_s=_TIME_LIMIT_S)
    problem = Problem(replace(graph, tasks=tasks), solution.cluster, solution.costs)
    return solve_network(problem, options)


def _restricted(task: Task, devices: Mapping[str, tuple[str, ...]]) -> Task:
    """The task on the devices of the first of its layers that has some."""
    names = next((devices[layer] for layer in layers_of(task) if layer in devices), None)
    if names is None:
        return task
    allowed = tuple(name for name in names if task.devices is None or name in task.devices)
    return replace(task, devices=allowed or names)
