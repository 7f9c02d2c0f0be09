"""An ONNX file, a cluster and options -> a placed or compiled model. Loaded late: needs TVM."""

from __future__ import annotations

import logging
import re
import shlex
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import heteroplace
from heteroplace import pipeline
from heteroplace.cli.models.given_inputs import InputSizes
from heteroplace.cli.models.input_shapes import INPUT_OPTION, as_options
from heteroplace.cli.models.model_cache import MODEL, About, Digests, digest_of
from heteroplace.errors import FrontendError
from heteroplace.frontends import Imported, frontend_of
from heteroplace.interrupts import interruptible
from heteroplace.lower.executable import Executable
from heteroplace.model.cluster import Cluster
from heteroplace.model.solution import Solution
from heteroplace.pipeline.model_import import Say, check_costs, import_model, with_annotations
from heteroplace.relay.opt_level import default_context
from heteroplace.relay.ranges.legal import legal_inputs
from heteroplace.stage_log import StageLog
from heteroplace.terminal import listed

_IMAGE_RANK, _IMAGE_SIZE, _LENGTH = 4, 224, 128
_LOG = logging.getLogger("heteroplace")


def import_file(path: Path, sizes: InputSizes, say: Say) -> Imported:
    """Import a model file.

    Parameters
    ----------
    sizes
        Of inputs that the file leaves free.

    Raises
    ------
    FrontendError
        The file cannot be read, or sizes are missing or wrong.
    """
    logging.getLogger("autotvm").setLevel(logging.ERROR)  # that schedules are not tuned, is known
    shapes = _given_shapes(sizes)
    with as_options(INPUT_OPTION, "--batch N"):
        return import_model(
            frontend_of(path),
            path,
            shapes=shapes,
            values=sizes.values,
            batch=sizes.batch,
            say=say,
            state=sizes.state,
        )


def _given_shapes(sizes: InputSizes) -> dict[str, tuple[int, ...]]:
    shapes = {**sizes.of_arrays, **sizes.shapes}
    return {name: shape for name, shape in shapes.items() if name not in sizes.values}


def with_free_sizes(path: Path, sizes: InputSizes) -> tuple[InputSizes, tuple[str, ...]]:
    """Return the sizes to compile a model for, and a note where one row was chosen.

    Raises
    ------
    FrontendError
        The model leaves more open than its rows; the message has a command to paste.
    """
    reader = frontend_of(path)
    state = (sizes.state,) if sizes.state else ()
    free = reader.free_sizes(path, _given_shapes(sizes), *state)
    free = {name: shape for name, shape in free.items() if name not in sizes.values}
    if not free:
        return sizes, ()
    if any(isinstance(size, str) for shape in free.values() for size in shape[1:]):
        raise FrontendError(_free_sizes_text(path, free, sizes))
    if sizes.batch is not None:
        return sizes, ()
    note = "The model leaves its batch open, and was compiled for batch 1; --batch N for another."
    return replace(sizes, batch=1), (note,)


def _free_sizes_text(
    path: Path, free: Mapping[str, tuple[int | str, ...]], sizes: InputSizes
) -> str:
    """What is missing, and a command with sizes that are usual: 224 for images, 128 for others."""
    listed_inputs = listed(f"{name} [{','.join(map(str, shape))}]" for name, shape in free.items())
    words = ["heteroplace", sizes.command, str(path)]
    if sizes.state:
        state = sizes.state
        pairs = [state] if isinstance(state, str) else [f"{a}={b}" for a, b in state.items()]
        words += [word for pair in pairs for word in ("--state", pair)]
    named = _usual_sizes(free)
    if len(named) < len(free) and all(re.fullmatch(r"[A-Za-z]\w*", name) for name in named):
        for name, size in named.items():
            words += ["--size", f"{name}={size}"]
    else:
        for name, shape in free.items():
            usual = ",".join(str(_usual_size(shape, axis)) for axis in range(len(shape)))
            words += ["--input", f"{name}={usual}"]
    line, first = shlex.join(words), next(iter(free))
    return (
        f"{path}: the model leaves sizes of its inputs open: {listed_inputs}. Run this command "
        f"with the sizes of your data, or give an array by --input {first}=FILE.npy:\n  {line}"
    )


def _usual_sizes(free: Mapping[str, tuple[int | str, ...]]) -> dict[str, int]:
    """Usual sizes by the names of those that are free."""
    sizes: dict[str, int] = {}
    for shape in free.values():
        for axis, size in enumerate(shape):
            if isinstance(size, str):
                sizes.setdefault(size, _usual_size(shape, axis))
    return sizes


def _usual_size(shape: tuple[int | str, ...], axis: int) -> int:
    size = shape[axis]
    if isinstance(size, int):
        return size
    if axis == 0:
        return 1
    has_free_area = all(isinstance(size, str) for size in shape[-2:])
    return _IMAGE_SIZE if len(shape) == _IMAGE_RANK and has_free_area else _LENGTH


def place_model(
    path: Path,
    sizes: InputSizes,
    cluster: Cluster,
    options: Mapping[str, Any],
    log: StageLog,
    *,
    is_annotated: bool = True,
) -> Solution:
    """Place a model, and compile nothing but what is measured.

    Parameters
    ----------
    options
        Keywords of `HeteroPlace`.
    is_annotated
        Devices that the model names for its nodes hold.

    Raises
    ------
    HeteroPlaceError
        See `pipeline.place`.
    """
    check_costs(cluster, options)
    sizes, notes = with_free_sizes(path, sizes)
    for note in notes:
        _LOG.warning("%s: %s", path, note)
    imported = import_file(path, sizes, log)
    if is_annotated:
        options = with_annotations(frontend_of(path), path, imported, cluster, options, log.detail)
    given = {"params": imported.params, "progress": log, **options}
    with default_context():
        return pipeline.place_network(imported.mod, cluster, given)


@interruptible
def compile_model(
    path: Path,
    sizes: InputSizes,
    cluster: Cluster,
    options: Mapping[str, Any],
    log: StageLog,
    *,
    is_annotated: bool = True,
) -> tuple[Executable, About, Digests]:
    """Place and compile a model; return the executable, notes on it, and its digests.

    Parameters
    ----------
    options
        Keywords of `HeteroPlace`.
    log
        Shows the stages, and notes the time of each.
    is_annotated
        Devices that the model names for its nodes hold.

    Raises
    ------
    FrontendError
        The model or its weights change in the meantime.
    HeteroPlaceError
        See `HeteroPlace` and `build`.
    """
    begin = time.perf_counter()
    check_costs(cluster, options)
    digests = model_digests(path)
    sizes, notes = with_free_sizes(path, sizes)
    with log.timed("import", "Read the model."):
        imported = import_file(path, sizes, log)
    if is_annotated:
        options = with_annotations(frontend_of(path), path, imported, cluster, options, log.detail)
    given = {"params": imported.params, "progress": log, **options}
    with default_context():
        executable = pipeline.compile_network(imported.mod, cluster, given, log)
    legal = {}
    if executable.source is not None:
        intervals = legal_inputs(executable.source.mod["main"])
        legal = {
            var.name_hint: (interval.low, interval.high) for var, interval in intervals.items()
        }
    if model_digests(path) != digests:
        raise FrontendError(
            f"{path}: the model or its weights changed while it was compiled; run it again"
        )
    return executable, About(legal, time.perf_counter() - begin, notes), digests


def model_digests(path: Path) -> Digests:
    """Return the digests of a model file and of its external files that exist.

    Raises
    ------
    FrontendError
        The file is no ONNX model, or a file cannot be read.
    """
    files = {place: path.parent / place for place in frontend_of(path).weight_files(path)}
    digests = {place: digest_of(file) for place, file in files.items() if file.is_file()}
    return {MODEL: digest_of(path), **digests}


def tune_model(path: Path, sizes: InputSizes, cluster: Cluster, say: Say, **options: Any) -> Any:
    """Search faster kernels for a model; options and errors as of `heteroplace.tune`."""
    sizes, notes = with_free_sizes(path, sizes)
    for note in notes:
        _LOG.warning("%s: %s", path, note)
    imported = import_file(path, sizes, say)
    return heteroplace.tune(imported.mod, cluster, imported.params, progress=say, **options)


def check_annotated(path: Path, output: str) -> None:
    """Raise before the work what `write_annotated` would raise of the model and the file."""
    frontend_of(path).check_annotatable(path, output)


def write_annotated(path: Path, output: str, solution: Solution) -> None:
    """Write the model with the devices of a plan; raises as `Frontend.annotate`."""
    frontend_of(path).annotate(path, output, solution)
