"""An ONNX file, a cluster and options -> a placed or compiled model. Loaded late: needs TVM."""

from __future__ import annotations

import logging
import shlex
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import tvm

import heteroplace
from heteroplace import pipeline
from heteroplace.cli.models.given_inputs import InputSizes
from heteroplace.cli.models.input_shapes import as_options, read_shapes
from heteroplace.cli.models.model_cache import MODEL, About, Digests, digest_of
from heteroplace.errors import ClusterError, FrontendError, MissingCostError
from heteroplace.frontends import Imported, frontend_of
from heteroplace.interrupts import interruptible
from heteroplace.lower.executable import Executable
from heteroplace.model.cluster import Cluster
from heteroplace.model.solution import Solution
from heteroplace.place_options import PlaceOptions, cost_model_names, read_options
from heteroplace.relay.ranges.legal import legal_inputs
from heteroplace.run.missing_devices import missing_devices
from heteroplace.solve import SolveOptions
from heteroplace.stage_log import StageLog

OPT_LEVEL = 3
_IMAGE_RANK, _IMAGE_SIZE, _LENGTH = 4, 224, 128
Say = Callable[[str], None]
_LOG = logging.getLogger("heteroplace")


def import_model(path: Path, sizes: InputSizes, say: Say) -> Imported:
    """Import an ONNX file.

    Parameters
    ----------
    sizes
        Of inputs that the file leaves free.

    Raises
    ------
    FrontendError
        The file cannot be read, or `sizes.shapes` is no text of shapes.
    """
    logging.getLogger("autotvm").setLevel(logging.ERROR)  # that schedules are not tuned, is known
    say(f"importing {path}")
    shapes = _given_shapes(sizes)
    with as_options("--batch N"):
        return frontend_of(path).import_file(
            path, shapes=shapes, values=sizes.values, batch=sizes.batch
        )


def _given_shapes(sizes: InputSizes) -> dict[str, tuple[int, ...]]:
    shapes = {**sizes.of_arrays, **read_shapes(sizes.shapes)}
    return {name: shape for name, shape in shapes.items() if name not in sizes.values}


def with_free_sizes(path: Path, sizes: InputSizes) -> tuple[InputSizes, tuple[str, ...]]:
    """Return the sizes to compile a model for, and a note where one row was chosen.

    Raises
    ------
    FrontendError
        The model leaves more open than its rows; the message has a command to paste.
    """
    reader = frontend_of(path)
    free = reader.free_sizes(path, _given_shapes(sizes))
    free = {name: shape for name, shape in free.items() if name not in sizes.values}
    if not free:
        return sizes, ()
    if any(isinstance(size, str) for shape in free.values() for size in shape[1:]):
        raise FrontendError(_free_sizes_text(path, free, sizes.command))
    if sizes.batch is not None:
        return sizes, ()
    note = "The model leaves its batch open, and was compiled for batch 1; --batch N for another."
    return replace(sizes, batch=1), (note,)


def _free_sizes_text(path: Path, free: Mapping[str, tuple[int | str, ...]], command: str) -> str:
    """What is missing, and a command with sizes that are usual: 224 for images, 128 for others."""
    listed_inputs = ", ".join(
        f"{name} [{','.join(map(str, shape))}]" for name, shape in free.items()
    )
    example = " ".join(
        f"{name}:[{','.join(str(_usual_size(shape, axis)) for axis in range(len(shape)))}]"
        for name, shape in free.items()
    )
    line = shlex.join(["heteroplace", command, str(path), "--input-shapes", example])
    first = next(iter(free))
    array = f", or give an array by --input {first}=FILE.npy" if command == "run" else ""
    return (
        f"{path}: the model leaves sizes of its inputs open: {listed_inputs}. Run this command "
        f"with the sizes of your data{array}:\n  {line}"
    )


def _usual_size(shape: tuple[int | str, ...], axis: int) -> int:
    size = shape[axis]
    if isinstance(size, int):
        return size
    if axis == 0:
        return 1
    return _IMAGE_SIZE if len(shape) == _IMAGE_RANK else _LENGTH


def check_costs(cluster: Cluster, place: Mapping[str, Any]) -> None:
    """Raise MissingCostError where costs are no file, or to be measured on absent devices."""
    costs = place.get("costs", "measure")
    models = cost_model_names()
    if isinstance(costs, str) and costs not in models and not Path(costs).is_file():
        raise MissingCostError(
            f"costs={costs}: no such file; give {', '.join(models)}, or a cost table"
        )
    excluded = place.get("exclude", ())
    used = [device.name for device in cluster.devices if device.name not in excluded]
    absent = missing_devices(cluster, used)
    if absent and costs in ("measure", "isolated"):
        raise MissingCostError(
            f"costs cannot be measured on devices that are not in this machine: "
            f"{'; '.join(absent)}. Give costs predict or estimate, or a cost table made on that "
            f"machine, or here by `heteroplace profile --predict`"
        )


def with_annotations(
    path: Path, imported: Imported, cluster: Cluster, options: Mapping[str, Any], say: Say
) -> dict[str, Any]:
    """Return the options with the devices that the model itself names for its nodes.

    What the caller says of a layer goes first. Nodes that are no longer there, since they were
    folded or fused away while importing, are left out.

    Raises
    ------
    ClusterError
        A node is for a device that the cluster does not have.
    """
    devices = frontend_of(path).read_devices(path)
    if not devices:
        return dict(options)
    names = {device.name for device in cluster.devices}
    for node, device in devices.items():
        if device not in names:
            raise ClusterError(
                f"{path}: node {node!r} is annotated for device {device!r}, and cluster "
                f"{cluster.name!r} has {', '.join(sorted(names))}; give a cluster that has it, or "
                f"--ignore-annotations"
            )
    there: set[str] = set()

    def visit(expr: tvm.relay.Expr) -> None:
        if isinstance(expr, tvm.relay.Call) and expr.span:
            there.add(expr.span.source_name.name)

    tvm.relay.analysis.post_order_visit(imported.mod["main"], visit)
    layers = {node: device for node, device in devices.items() if node in there}
    if layers:
        say(f"{len(layers)} nodes stay on the devices that the model names")
    return {**options, "layers": {**layers, **options.get("layers", {})}}


def place_model(
    path: Path,
    sizes: InputSizes,
    cluster: Cluster,
    place: Mapping[str, Any],
    limits: SolveOptions,
    say: Say,
    *,
    is_annotated: bool = True,
) -> Solution:
    """Place a model, and compile nothing but what is measured.

    Parameters
    ----------
    place
        Options of `PlaceOptions`, by name.
    is_annotated
        Devices that the model names for its nodes hold.

    Raises
    ------
    HeteroPlaceError
        See `pipeline.place`.
    """
    check_costs(cluster, place)
    sizes, notes = with_free_sizes(path, sizes)
    for note in notes:
        _LOG.warning("%s: %s", path, note)
    imported = import_model(path, sizes, say)
    if is_annotated:
        place = with_annotations(path, imported, cluster, place, say)
    options = PlaceOptions(**place, params=imported.params, progress=say)
    with tvm.transform.PassContext(opt_level=OPT_LEVEL):
        _, solution = pipeline.place(imported.mod, cluster, options, limits)
    return solution


@interruptible
def compile_model(
    path: Path,
    sizes: InputSizes,
    cluster: Cluster,
    options: Mapping[str, Any],
    say: Say,
    *,
    is_annotated: bool = True,
    log: StageLog | None = None,
) -> tuple[Executable, About, Digests]:
    """Place and compile a model; return the executable, notes on it, and its digests.

    Parameters
    ----------
    options
        Keywords of `HeteroPlace`.
    is_annotated
        Devices that the model names for its nodes hold.
    log
        Notes the time of each stage; None: nobody wants the times.

    Raises
    ------
    FrontendError
        The model or its weights change in the meantime.
    HeteroPlaceError
        See `HeteroPlace` and `build`.
    """
    begin = time.perf_counter()
    times = [] if log is None else log.times
    check_costs(cluster, options)
    digests = model_digests(path)
    sizes, notes = with_free_sizes(path, sizes)
    imported = import_model(path, sizes, say)
    if is_annotated:
        options = with_annotations(path, imported, cluster, options, say)
    with tvm.transform.PassContext(opt_level=OPT_LEVEL):
        given = {"params": imported.params, "progress": StageLog(say, times=times), **options}
        placed = pipeline.place_module(imported.mod, cluster, *read_options(given), given)
        say("compiling")
        executable = pipeline.build_module(
            placed.mod, log=StageLog(times=times), attached=placed.solution
        )
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
    imported = import_model(path, sizes, say)
    with tvm.transform.PassContext(opt_level=OPT_LEVEL):
        return heteroplace.tune(imported.mod, cluster, imported.params, progress=say, **options)


def check_annotated(path: Path, output: str) -> None:
    """Raise before the work what `write_annotated` would raise of the model and the file."""
    frontend_of(path).check_annotatable(path, output)


def write_annotated(path: Path, output: str, solution: Solution) -> None:
    """Write the model with the devices of a plan; raises as `Frontend.annotate`."""
    frontend_of(path).annotate(path, output, solution)
