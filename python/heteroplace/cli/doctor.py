"""`heteroplace doctor` and `completion`: what of this machine is usable, what is missing, and how
to get it; which plugins are installed; a completion script for a shell."""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import os
import shutil
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path

import heteroplace
from heteroplace.argument_checks import did_you_mean
from heteroplace.cli.models.model_cache import cache_folder
from heteroplace.cli.shared import Parsers, add_command, add_json, show
from heteroplace.command_parser import START
from heteroplace.costs.store import default_path
from heteroplace.errors import (
    CostStoreUnavailableError,
    HeteroPlaceError,
    MissingPackageError,
    PluginError,
    cause_of,
    error_types,
)
from heteroplace.machine.cpu import read_cpus
from heteroplace.machine.gpu import has_nvidia_driver, read_gpus
from heteroplace.model.units import format_bytes
from heteroplace.nvrtc import has_tensor_cores, load_nvrtc, nvrtc_version
from heteroplace.place_options import cost_model_names
from heteroplace.registry import load_plugin, own_seams, package_of, plugins_of_others
from heteroplace.report.tables import format_table
from heteroplace.solve import SOLVERS
from heteroplace.tvm_bridge import llvm_cpu_target, require_tvm

OK, LACKS, NONE, BROKEN = "ok", "missing", "none", "broken"
"""It is there; it is not, and something does not work without it; it is not, and need not be; it is
there and cannot be used."""
SHELLS = ("bash", "zsh", "tcsh")
_CACHE_REMEDY = "set XDG_CACHE_HOME to a folder of yours"
_MAIN, _SHTAB = "heteroplace.cli.main", "shtab"
"""Imported when they are asked for: `main` loads this module, and shtab may be missing."""
_LIST_NAMES: Mapping[str, Callable[[], Collection[str]]] = {
    "solvers": lambda: SOLVERS,
    "cost_models": cost_model_names,
    "commands": lambda: importlib.import_module(_MAIN).command_names(),
}
"""A seam that has names of ours -> all its names, or a PluginError where two are the same."""


@dataclass(frozen=True)
class Finding:
    """One thing that heteroplace uses."""

    name: str
    state: str
    """OK, LACKS, NONE or BROKEN."""
    found: str
    """What is there; else what does not work without it."""
    remedy: str = ""
    """How to get it."""


def add_commands(commands: Parsers) -> None:
    """Add the subcommands `doctor` and `completion`."""
    parser = add_command(
        commands,
        "doctor",
        "say what this machine can use, and what is missing",
        run,
        description="Say which processors of this machine can be used and which programs and "
        "packages are missing, what does not work without them, and how to get them. Exit code 5 "
        "if models cannot be compiled and run. With the code of an error: what it means, and how "
        "such errors are mended.",
        group=START,
    )
    parser.add_argument("code", nargs="?", metavar="CODE", help="of an error, such as HP101")
    add_json(parser)
    parser = add_command(
        commands,
        "completion",
        "print a completion script for a shell",
        run_completion,
        description="Print a completion script, e.g. for bash: heteroplace completion bash > "
        "~/.local/share/bash-completion/completions/heteroplace",
    )
    parser.add_argument("shell", choices=SHELLS, help="which shell")


def run(arguments: argparse.Namespace) -> None:
    """Print a row for each thing.

    Raises
    ------
    MissingPackageError
        Models cannot be compiled and run without something that is missing.
    """
    if arguments.code is not None:
        _explain_error(arguments)
        return
    findings = [finding for check in _CHECKS for finding in check()]
    rows = [[each.name, each.state, each.found] for each in findings]
    remedies = [f"\nto get {each.name}: {each.remedy}" for each in findings if each.remedy]
    show(
        arguments,
        lambda: list(map(asdict, findings)),
        lambda: format_table(["what", "state", "found"], rows, "<<<") + "\n" + "".join(remedies),
    )
    lacking = [each.name for each in findings if each.state == LACKS]
    if lacking:
        raise MissingPackageError(
            f"models cannot be compiled and run here without {', '.join(lacking)}; plans can be "
            f"made and simulated"
        )


def _explain_error(arguments: argparse.Namespace) -> None:
    code = arguments.code.upper()
    types = {cls.code: cls for cls in error_types()}
    if code not in types:
        near = did_you_mean(code, types) or f"; there are: {', '.join(types)}"
        raise HeteroPlaceError(f"no error has the code {code!r}{near}")
    cls = types[code]
    fields = {"code": code, "name": cls.__name__, "cause": cause_of(cls), "remedy": cls.remedy}
    show(
        arguments,
        lambda: fields,
        lambda: f"{code} {cls.__name__}: {fields['cause']}\nremedy: {cls.remedy}",
    )


def _version_of_this() -> Iterator[Finding]:
    python = sys.version.partition(" ")[0]
    yield Finding("heteroplace", OK, f"{heteroplace.__version__}, with Python {python}")


def _cpu() -> Iterator[Finding]:
    try:
        cpu = read_cpus()
    except HeteroPlaceError as err:
        yield Finding("cores", LACKS, str(err))
        return
    threads = len(cpu.threads)
    text = f"{cpu.model or 'CPU'}: {threads} of {os.cpu_count()} hardware threads may be used"
    yield Finding("cores", OK, f"{text}, as {llvm_cpu_target()}")
    if cpu.quota_cores is not None:
        yield Finding(
            "quota",
            OK if cpu.quota_cores >= threads else NONE,
            f"{cpu.quota_cores:g} cores' worth of time: plans on more run slower than predicted",
            ""
            if cpu.quota_cores >= threads
            else "raise the container's limit (--cpus), or use "
            f"fewer cores: heteroplace probe --cores 0-{max(0, int(cpu.quota_cores) - 1)}",
        )
    limited = " (limited by a control group)" if cpu.is_limited else ""
    yield Finding("memory", OK, f"{format_bytes(cpu.memory_bytes)}{limited}")


def _compiling() -> Iterator[Finding]:
    try:
        tvm = require_tvm()
        yield Finding("TVM", OK, f"{tvm.__version__} in {tvm.__path__[0]}")
    except HeteroPlaceError as err:
        yield Finding("TVM", LACKS, f"nothing can be compiled or run: {err}", str(err))
    compiler = next((name for name in ("g++", "clang++", "c++") if shutil.which(name)), None)
    yield Finding(
        "C++ compiler",
        OK if compiler else LACKS,
        str(shutil.which(compiler)) if compiler else "compiled models cannot be linked",
        "" if compiler else "apt-get install g++",
    )
    yield _package("onnx", "onnx", "ONNX models cannot be read", LACKS)
    yield _package(
        "onnxruntime",
        "onnxruntime",
        "models are not simplified before they are placed, and not compared with it",
        NONE,
    )


def _gpus() -> Iterator[Finding]:
    if not has_nvidia_driver():
        yield Finding(
            "GPU driver", NONE, "no NVIDIA driver: plans for GPUs can be made, not run here"
        )
        return
    try:
        gpus = read_gpus()
    except HeteroPlaceError as err:
        yield Finding("GPU driver", NONE, f"it is there, but: {err}", str(err))
        return
    yield Finding("GPU driver", OK, ", ".join(gpu.name for gpu in gpus) or "no GPU may be used")
    try:
        compiler = load_nvrtc()
        version = ".".join(map(str, nvrtc_version(compiler)))
        has_headers = has_tensor_cores(compiler, "sm_90")
        yield Finding(
            "NVRTC",
            OK,
            f"{version}, {'with' if has_headers else 'without'} headers for tensor cores",
            "" if has_headers else "pip install 'heteroplace[nvrtc]'",
        )
    except HeteroPlaceError as err:
        yield Finding("NVRTC", NONE, "kernels of GPUs cannot be compiled", str(err))


def _others() -> Iterator[Finding]:
    yield _package("mpi4py", "mpi4py", "no plans over several hosts", NONE, "heteroplace[mpi]")
    launcher = shutil.which("mpiexec")
    yield Finding(
        "mpiexec",
        OK if launcher else NONE,
        launcher or "no plans over several hosts",
        "" if launcher else "pip install 'heteroplace[mpi]', or the MPI of your cluster",
    )
    yield _package("Gurobi", "gurobipy", "moirai's programmes are solved by CP-SAT", NONE)
    yield _package("METIS", "pymetis", "the solver metis cannot be used", NONE)
    yield _package(
        "server", "uvicorn", "models cannot be served over HTTP", NONE, "heteroplace[serve]"
    )
    yield _package(
        "text", "tokenizers", "decoders write tokens, not text", NONE, "heteroplace[generate]"
    )
    yield _package("completion", "shtab", "no completion scripts for shells", NONE)


def _folders() -> Iterator[Finding]:
    for name, folder_of in (("cost store", default_path), ("compiled models", cache_folder)):
        try:
            path = folder_of()
        except CostStoreUnavailableError:
            yield Finding(name, NONE, "nothing is kept: the user has no home", _CACHE_REMEDY)
            continue
        nearest = next(folder for folder in (path, *path.parents) if folder.exists())
        is_usable = os.access(nearest, os.W_OK)
        held = f"{path}: {format_bytes(_bytes_of(path))}" if path.exists() else str(path)
        yield Finding(
            name,
            OK if is_usable else NONE,
            held if is_usable else f"nothing is kept: {nearest} cannot be written to",
            "" if is_usable else _CACHE_REMEDY,
        )


def _plugins() -> Iterator[Finding]:
    """A row for each entry point of another package; each is loaded. Our own parts have none."""
    for seam, entry in plugins_of_others():
        name, package = f"{entry.name} in heteroplace.{seam}", package_of(entry)
        try:
            if seam not in (seams := {*_LIST_NAMES, *own_seams()}):
                near = did_you_mean(seam, sorted(seams))
                raise PluginError(f"{package} uses a group that heteroplace does not read{near}")
            len(_LIST_NAMES[seam]() if seam in _LIST_NAMES else ())
            load_plugin(seam, entry.name)
        except PluginError as err:
            yield Finding(name, BROKEN, str(err), f"pip uninstall {package.partition(' ')[0]}")
        else:
            yield Finding(name, OK, package)


def _bytes_of(path: Path) -> int:
    """What a file, or all files of a folder, hold."""
    files = path.rglob("*") if path.is_dir() else [path]
    sizes = []
    for file in files:
        with suppress(OSError):  # another process has just removed it, or it may not be read
            sizes.append(0 if file.is_dir() else file.stat().st_size)
    return sum(sizes)


_CHECKS: tuple[Callable[[], Iterator[Finding]], ...] = (
    _version_of_this,
    _cpu,
    _compiling,
    _gpus,
    _others,
    _folders,
    _plugins,
)


def _package(name: str, module: str, without: str, state: str, extra: str = "") -> Finding:
    """What is known of a Python package, which is not loaded."""
    if importlib.util.find_spec(module) is None:
        return Finding(name, state, without, f"pip install '{extra or module}'")
    return Finding(name, OK, _version(module))


def _version(module: str) -> str:
    """Of the distribution that brings a module, which may be called otherwise: onnxruntime-gpu."""
    try:
        return metadata.version(module)
    except metadata.PackageNotFoundError:
        names = metadata.packages_distributions().get(module, ())
        return ", ".join(f"{name} {metadata.version(name)}" for name in names) or "no distribution"


def run_completion(arguments: argparse.Namespace) -> None:
    """Print the completion script.

    Raises
    ------
    MissingPackageError
        shtab is not installed.
    """
    try:
        shtab = importlib.import_module(_SHTAB)
    except ImportError as err:
        raise MissingPackageError(
            "the package shtab, which writes completion scripts, is not installed; run: pip "
            "install shtab"
        ) from err
    make_parser = importlib.import_module(_MAIN).make_parser
    sys.stdout.write(shtab.complete(make_parser(), arguments.shell) + "\n")
