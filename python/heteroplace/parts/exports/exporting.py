"""A solution, or a file that holds one, and the name of a format -> text, files and warnings."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

from heteroplace.entries import load_entry
from heteroplace.errors import HeteroPlaceError, PlanError
from heteroplace.files.fields.kinds import read_known_file
from heteroplace.files.output import write_bytes, write_text
from heteroplace.files.sharding import load_sharding
from heteroplace.files.solution_file import load_solution
from heteroplace.frontends import frontend_of
from heteroplace.model.solution import Solution
from heteroplace.native.compiled_file import read_manifest
from heteroplace.parts.exports.export_format import ExportedPlacement, ExportFormat
from heteroplace.registry import load_plugin, plugins

_SEAM = "export_formats"
_MODEL_SUFFIX = ".onnx"
_LOGGER = logging.getLogger("heteroplace")


def export_formats() -> tuple[str, ...]:
    """Return the names of all formats: ours, then those of installed packages."""
    return tuple(plugins(_SEAM, is_ranked=True))


def export(
    plan: Solution | str | os.PathLike[str],
    to: str,
    output: str | os.PathLike[str] | None = None,
    *,
    model: str | os.PathLike[str] | None = None,
) -> str:
    """Write a placement in the form that another program reads, and return the text.

    Parameters
    ----------
    plan
        A solution, or the path of a solution file or a compiled model.
    to
        Name of a format: "json", "dot", "device-map" and so on. `heteroplace export --help` lists
        all of them.
    output
        File to write. A format that writes a model puts the model there, and the text next to it
        in a file with the suffix `.json`. None: only return the text.
    model
        The ONNX model that was placed. Some formats need it.

    Raises
    ------
    MissingPackageError
        The format reads the model, and the package onnx is not installed.
    HeteroPlaceError
        There is no such format, a file cannot be read, or the format needs a model or an output.
    PlanError
        The other program cannot express the placement.

    Examples
    --------
    >>> heteroplace.export("solution.json", "device-map")  # doctest: +SKIP
    """
    form = open_format(to)
    check_use(to, form, model, output)
    if model is not None:
        frontend_of(os.fspath(model)).check_installed()
    if form.writes_model:
        _check_weights(model, output)
    solution = plan if isinstance(plan, Solution) else _read_solution(plan)
    exported = form.write(solution, None if model is None else Path(model))
    for warning in exported.warnings:
        _LOGGER.warning("%s: %s", to, warning)
    if output is not None:
        write_files(exported, output)
    return exported.text


def open_format(name: str) -> ExportFormat:
    """Return the format of a name.

    Raises
    ------
    HeteroPlaceError
        There is none; the message lists those that exist.
    """
    if name not in plugins(_SEAM):
        raise HeteroPlaceError(
            f"there is no export format {name!r}; choose one of: {', '.join(export_formats())}"
        )
    form: ExportFormat = load_plugin(_SEAM, name)
    return form


def check_use(
    name: str,
    form: ExportFormat,
    model: str | os.PathLike[str] | None,
    output: str | os.PathLike[str] | None,
) -> None:
    """Raise HeteroPlaceError if a format lacks its model or its output file."""
    if form.needs_model and model is None:
        raise HeteroPlaceError(
            f"the format {name} needs the model that was placed; give --model MODEL.onnx "
            f"(model=... in Python)"
        )
    if form.writes_model and output is None:
        raise HeteroPlaceError(
            f"the format {name} writes a model; give -o FILE.onnx (output=... in Python)"
        )


def write_files(exported: ExportedPlacement, output: str | os.PathLike[str]) -> tuple[str, ...]:
    """Write a placement to `output`, and return the paths of the files.

    Raises
    ------
    OSError
        A file cannot be written.
    """
    path = os.fspath(output)
    if exported.model is None:
        write_text(exported.text, path)
        return (path,)
    settings = settings_path(path)
    write_bytes(exported.model, path)
    write_text(exported.text, settings)
    return path, settings


def model_of_plan(plan: str, model: str | None) -> str | None:
    """Return the path of the model that was placed: the given one, or a plan that is a model.

    >>> model_of_plan("model.onnx", None), model_of_plan("solution.json", None)
    ('model.onnx', None)
    """
    is_model = Path(plan).suffix.lower() == _MODEL_SUFFIX
    return plan if model is None and is_model else model


def settings_path(output: str | os.PathLike[str]) -> str:
    """Return where the text of a format goes if a model goes to `output`.

    >>> settings_path("placed.onnx")
    'placed.json'
    """
    return str(Path(output).with_suffix(".json"))


def _check_weights(model: Any, output: Any) -> None:
    """Raise FrontendError where the model would be written away from its weights."""
    prepare = "heteroplace.parts.onnx.prepare"
    structure = load_entry(f"{prepare}.onnx_load:model_structure")(model)
    load_entry(f"{prepare}.onnx_devices:check_same_folder")(structure, model, output)


def _read_solution(path: str | os.PathLike[str]) -> Solution:
    kind, _ = read_known_file(path)
    if kind == "solution":
        return load_solution(path)
    if kind == "model":
        return read_manifest(path).solution
    if kind == "sharding":
        return load_sharding(path).solution
    raise PlanError(
        f"{os.fspath(path)}: expected a solution or a compiled model, got a {kind} file; write one "
        f"by `heteroplace place ... -o solution.json`"
    )
