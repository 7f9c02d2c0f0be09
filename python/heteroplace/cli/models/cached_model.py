"""An ONNX model and options of the command line -> its compiled file, cached or new."""

from __future__ import annotations

import argparse
import importlib
import logging
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from heteroplace.cli.models.given_inputs import InputSizes
from heteroplace.cli.models.kernel_cache import keeping_kernels
from heteroplace.cli.models.model_cache import (
    About,
    Digests,
    NewEntry,
    digest_of,
    look_up,
    settings_digest,
)
from heteroplace.cli.models.onnx_model import BUILDER, check_model
from heteroplace.cli.shared import progress_display
from heteroplace.costs.store import CostStore, default_path
from heteroplace.costs.tunings import kept_digest
from heteroplace.errors import ArtifactError, CostStoreUnavailableError
from heteroplace.machine.local import LOCAL, open_cluster
from heteroplace.model.cluster import Cluster
from heteroplace.place_options import STORE_OFF, STORE_ON
from heteroplace.progress import SolverProgress
from heteroplace.stage_log import StageLog

if TYPE_CHECKING:  # it loads TVM
    from heteroplace.lower.executable import Executable

_LOG = logging.getLogger("heteroplace")
Result = TypeVar("Result")
WRITING = "write", "Write the compiled file."
"""The name and the purpose of that stage."""


@dataclass(frozen=True)
class Program:
    """A compiled model."""

    path: Path
    origin: str
    """A line that says where it comes from."""
    legal: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    """Both: see `About`."""


def chosen_cluster(arguments: argparse.Namespace) -> Cluster:
    """Return the cluster that --cluster names; by default this machine."""
    return open_cluster(LOCAL if arguments.cluster is None else arguments.cluster)


def run_cached(
    model: Path,
    sizes: InputSizes,
    options: dict[str, Any],
    arguments: argparse.Namespace,
    run: Callable[[Program], Result],
    log: StageLog,
) -> tuple[Program, Result]:
    """Run the compiled form of a model: that in the cache, or one that is compiled now.

    Parameters
    ----------
    sizes
        Sizes and values of inputs that the command line and the given arrays fix.
    options
        Options of placing, as keywords of `HeteroPlace`.
    run
        Runs a compiled file; a cached one that turns out to be damaged is compiled again.
    log
        Notes the time of each stage.

    Raises
    ------
    HeteroPlaceError
        The model cannot be placed, compiled or run.
    """
    cluster = chosen_cluster(arguments)
    settings = settings_digest(cluster, _cached_options(sizes, options, arguments))
    cached = None if arguments.rebuild else look_up(model, settings)
    if cached is not None:
        file, about = cached
        program = Program(file, f"{model}: compiled before ({file})", about.legal, about.notes)
        try:
            return program, run(program)
        except ArtifactError as err:
            _LOG.warning("%s; it is compiled again", err)
    load_compiler(model, log)
    with NewEntry() as entry:
        executable, about, digests = compile_onnx(
            model, sizes, cluster, options, arguments, log, makes_all=arguments.rebuild
        )
        with log.timed(*WRITING):
            entry.write(executable.export_library)
        if settings_digest(cluster, _cached_options(sizes, options, arguments)) == settings:
            file = entry.keep(settings, digests, about)
        else:  # it is not known which of both the model was compiled with
            entry.problem, file = "options or programs changed meanwhile", entry.path
        where = f"not kept: {entry.problem}" if entry.problem else f"kept as {file}"
        origin = f"{model}: compiled in {about.seconds:.1f} s, {where}"
        program = Program(file, origin, about.legal, about.notes)
        return program, run(program)


def _cached_options(
    sizes: InputSizes, options: dict[str, Any], arguments: argparse.Namespace
) -> dict[str, Any]:
    """Everything on the command line, and in files that it names, that decides what is compiled."""
    chosen_options = {
        **options,
        "inputs of the model": asdict(replace(sizes, command="")),
        "is_annotated": not arguments.ignore_annotations,
        "tuned kernels": _kept_tunings(options),
    }
    for name in ("costs", "inputs", "routes", "plan_in"):
        path = Path(str(options.get(name, "")))
        if name in options and path.is_file():  # its content counts, not its name
            chosen_options[name] = digest_of(path)
    if "verify_inputs" in options:
        chosen_options["verify_inputs"] = [
            digest_of(Path(path)) for path in options["verify_inputs"]
        ]
    return chosen_options


def _kept_tunings(options: dict[str, Any]) -> str:
    """Digest of the tuned kernels in the store; "": there are none, or no store can be used."""
    store = options.get("store") or STORE_ON
    if store == STORE_OFF or options.get("tuned") == "off":
        return ""
    try:
        path = default_path() if store == STORE_ON else Path(store)
        if not path.exists():
            return ""
        with CostStore(path) as opened:
            return kept_digest(opened)
    except CostStoreUnavailableError:  # the compilation goes without it, and says so
        return ""


def load_compiler(model: Path, log: StageLog) -> None:
    """Load what reads and compiles models; parameters and errors as of `check_model`."""
    with log.timed("start", "Load the compiler, and what reads models."):
        check_model(model)
        importlib.import_module(BUILDER)


def compile_onnx(
    model: Path,
    sizes: InputSizes,
    cluster: Cluster,
    options: dict[str, Any],
    arguments: argparse.Namespace,
    log: StageLog,
    *,
    makes_all: bool = False,
) -> tuple[Executable, About, Digests]:
    """Compile a model with its progress shown; parameters as of `compile_model`.

    `makes_all`: kernels that were made before are made again.
    """
    builder = importlib.import_module(BUILDER)
    is_annotated = not arguments.ignore_annotations
    kernels = nullcontext() if makes_all else keeping_kernels()
    with kernels, progress_display(arguments) as log.display:
        watched = {**options, "solver_progress": SolverProgress(log.display)}
        compiled: tuple[Executable, About, Digests] = builder.compile_model(
            model, sizes, cluster, watched, log, is_annotated=is_annotated
        )
    return compiled
