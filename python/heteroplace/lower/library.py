"""Compiled kernels as object files, and the linking of shared libraries from them.

Code is generated once, into object files, and linked once into a library of kernels alone. That
library is loaded to measure and to run in this process, and it is the first part of the file that
is exported. (TVM's own JIT would compile again, and its parallel loops cannot be given to our
workers.)
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import weakref
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from pathlib import Path
from typing import Protocol

import msgspec
import tvm
from tvm import relay
from tvm.contrib import cc

from heteroplace.errors import ArtifactError, LoweringError
from heteroplace.forked_jobs import Job, run_forked
from heteroplace.lower.kernels import Kernel, KernelCode
from heteroplace.lower.library_symbols import is_library_kernel
from heteroplace.lower.lower_kernel import config_texts, kernel_of, last_cause, lower_kernel
from heteroplace.lower.workspace import Workspace
from heteroplace.native.compiled_file import SealedCode
from heteroplace.relay.opt_level import inner_context
from heteroplace.relay.targets import float_lanes, has_stock_kernels
from heteroplace.stage_log import Count

_LIBRARY = "kernels.so"
_Made = tuple[int, int, KernelCode]
"""Of a kernel the bytes of its `Workspace`, and its code."""
_EMPTY_ASSEMBLY = '.section .note.GNU-stack,"",@progbits\n'
"""Says that the stack need not be executable; without it linkers warn."""
_ARGUMENTS = "heteroplace_kernel_arguments"
"""Symbol of a text in the library: a line "symbol; arguments" for each kernel that does not check
its arguments. The executor reads it (`src/exec/engine/kernel_arguments.h`)."""
_WITHOUT_CHECKS = "tir.disable_assert"
_LLVM_OPTIONS = "cl-opt"
_FEWER_PROMOTIONS = "-licm-mssa-max-acc-promotion:uint=60"
"""An option of LLVM: loops with more than 60 accesses to memory write results in each iteration.

LLVM would keep these in registers until the loop ends. For that it compares all accesses of a loop
with each other, those of inner loops too. Sums stay in registers: the innermost loop adds them up,
and has about 45 accesses where vectors have 8 numbers.
"""
_MEASURED_LANES = 8
"""Numbers in a vector of the targets for which `_FEWER_PROMOTIONS` was measured (AVX2)."""

_LINK_OPTIONS = (
    *("-shared", "-fPIC", "-nostartfiles", "-s"),
    *("-Wl,-z,now", "-Wl,-z,noexecstack", "-Wl,--as-needed", "-Wl,--hash-style=gnu"),
    "-Wl,--build-id=none",
)
"""No constructors, no notes, no names that nobody looks up. All functions are found at load, so
that none is missing when a kernel runs."""


class KernelLibrary:
    """Compiled kernels: their object files and the shared library made of them, as bytes.

    Nothing of it lies in a folder, so that nothing is left there by a process that is killed.

    Parameters
    ----------
    objects
        Content of the files that it was linked from, by name: one for each kernel of a CPU, what
        TVM makes of those of GPUs, and a table of the arguments of all.
    image
        The library of kernels alone.
    """

    def __init__(self, objects: Mapping[str, bytes], image: bytes) -> None:
        self.objects = dict(objects)
        self.image = image
        self._sealed: weakref.ref[SealedCode] | None = None

    @classmethod
    def empty(cls) -> KernelLibrary:
        """Link a library without any kernel."""
        with temporary_folder() as folder:
            source, path = folder / "empty.s", folder / _LIBRARY
            source.write_text(_EMPTY_ASSEMBLY)
            link([source], path)
            return cls({source.name: source.read_bytes()}, path.read_bytes())

    @classmethod
    def from_files(cls, files: Mapping[str, bytes]) -> KernelLibrary:
        """Make the library anew from what `files` of another one returned."""
        objects = {name: content for name, content in files.items() if name != _LIBRARY}
        return cls(objects, files[_LIBRARY])

    def files(self) -> dict[str, bytes]:
        """Return the library's files by name: object files in order, then the library itself."""
        return {**self.objects, _LIBRARY: self.image}

    def sealed(self) -> SealedCode:
        """Return the library as memory that can be loaded; one for all who hold it at a time."""
        held = None if self._sealed is None else self._sealed()
        if held is None:
            held = SealedCode(_LIBRARY, self.image)
            self._sealed = weakref.ref(held)
        return held


class KeptKernels(Protocol):
    """Kernels that were made before, by symbol and by the options of the pass context."""

    def find(self, symbols: Collection[str], options: str) -> Mapping[str, bytes]:
        """Return those of these kernels that are there, by symbol."""

    def add(self, kernels: Mapping[str, bytes], options: str) -> None:
        """Keep kernels, given by symbol."""


KEPT_KERNELS: ContextVar[KeptKernels | None] = ContextVar("KEPT_KERNELS", default=None)
"""Where `KernelCompiler` looks for kernels before it makes them. It may be set only where nothing
but known programs runs: a schedule that somebody has changed means other kernels."""


class KernelCompiler:
    """Lowers kernels of CPUs and generates their code, on all cores.

    TVM does both in one thread, so forks of this process do them. Code is generated in the pass
    context that is in force when this object is made.
    """

    def __init__(self) -> None:
        self._context = tvm.transform.PassContext.current()
        self._kernels: dict[str, tuple[relay.Function, tvm.target.Target]] = {}
        """What they are made of, by symbol."""

    def add(self, symbol: str, function: relay.Function, target: tvm.target.Target) -> None:
        """Add a kernel to those that are to be made; parameters as of `lower_kernel`."""
        self._kernels[symbol] = function, target

    def kernels(self, on_kernel: Count | None = None) -> dict[str, Kernel]:
        """Return all kernels with their code, by symbol.

        Parameters
        ----------
        on_kernel
            Counts those that are made now.

        Raises
        ------
        LoweringError
            A kernel cannot be lowered, or TVM cannot generate code for it.
        """
        cache, options = KEPT_KERNELS.get(), _options_text(self._context)
        contents = {} if cache is None else dict(cache.find(self._kernels, options))
        missing = [symbol for symbol in self._kernels if symbol not in contents]
        jobs = [partial(_made, symbol, *self._kernels[symbol], self._context) for symbol in missing]
        results = dict(zip(missing, run_forked(jobs, on_kernel), strict=True))
        if cache is not None and results:
            cache.add(results, options)
        contents.update(results)
        kernels = {}
        for symbol, (function, target) in self._kernels.items():
            caller_bytes, helper_bytes, code = msgspec.msgpack.decode(contents[symbol], type=_Made)
            workspace = Workspace(caller_bytes, helper_bytes)
            kernels[symbol] = kernel_of(symbol, None, function, target, workspace, code)
        return kernels


def _made(
    symbol: str,
    function: relay.Function,
    target: tvm.target.Target,
    context: tvm.transform.PassContext,
) -> bytes:
    """Lower a kernel and generate its code in a context; return `_Made` as bytes."""
    kernel = lower_kernel(symbol, function, target)
    with context:
        code = KernelCode(_object_file(kernel), kernel.hashes, kernel.arguments)
    workspace = kernel.workspace
    return msgspec.msgpack.encode((workspace.caller_bytes, workspace.helper_bytes, code))


def _options_text(context: tvm.transform.PassContext) -> str:
    """What a pass context says that may change kernels."""
    passes = [sorted(map(str, each)) for each in (context.required_pass, context.disabled_pass)]
    return str([int(context.opt_level), *passes, *config_texts(context)])


def compile_kernels(kernels: Iterable[Kernel], on_kernel: Count | None = None) -> KernelLibrary:
    """Link all kernels into one library, of all targets; those without code are compiled.

    Parameters
    ----------
    on_kernel
        Counts the kernels that are compiled.

    Raises
    ------
    LoweringError
        TVM cannot generate code for a kernel.
    ArtifactError
        There is no linker, it fails, or there is no folder for temporary files.
    """
    jobs: list[Job] = []
    compiled: list[bytes] = []
    # Kernels of a GPU stay together: its compiler takes longer to start than to compile one.
    others: dict[str, list[Kernel]] = {}
    kernels = list(kernels)
    for kernel in kernels:
        if kernel.code is not None:
            compiled.append(kernel.code.object_file)
        elif kernel.target.kind.name == "llvm":
            jobs.append(partial(_object_file, kernel))
        elif not is_library_kernel(kernel.symbol):
            target = f"{kernel.target} host {kernel.target.host}"
            others.setdefault(target, []).append(kernel)
    compiled += run_forked(jobs, on_kernel)
    if not compiled and not others:
        return KernelLibrary.empty()  # of reshapes alone, or kernels of NVIDIA's libraries
    with temporary_folder() as folder:
        objects = [folder / f"kernels{index}.o" for index in range(len(compiled))]
        for path, content in zip(objects, compiled, strict=True):
            path.write_bytes(content)
        if others:
            objects += _exported([generate_code(group) for group in others.values()], folder)
        objects.append(folder / "arguments.s")
        objects[-1].write_text(_arguments_table(kernels))
        path = folder / _LIBRARY
        link(objects, path)
        return KernelLibrary({file.name: file.read_bytes() for file in objects}, path.read_bytes())


def _arguments_table(kernels: Sequence[Kernel]) -> str:
    """Return the text at `_ARGUMENTS`, as assembly."""
    lines = [f"{each.symbol}; {each.arguments}\\n" for each in kernels if each.arguments]
    texts = [f'.ascii "{line}"\n' for line in lines]
    return (
        f"{_EMPTY_ASSEMBLY}.section .rodata\n.globl {_ARGUMENTS}\n{_ARGUMENTS}:\n"
        f"{''.join(texts)}.byte 0\n"
    )


def _object_file(kernel: Kernel) -> bytes:
    # A file in memory: a fork that is ended leaves nothing.
    with os.fdopen(os.memfd_create("kernel.o"), "rb") as file:
        generate_code([kernel]).save(f"/proc/self/fd/{file.fileno()}", "o")
        return file.read()


def generate_code(kernels: Sequence[Kernel]) -> tvm.runtime.Module:
    """Generate the code of kernels of one target.

    TVM's kernels check the type and shape of each argument in each call. Here the executor checks
    all calls when it loads a program, by `Kernel.arguments`, and kernels with such a line do not.
    (`tvm.build` would also lower the kernels a second time, which takes a third of its time.)

    Raises
    ------
    LoweringError
        TVM cannot generate code for a kernel.
    """
    functions: dict[tvm.ir.GlobalVar, tvm.tir.PrimFunc] = {}
    for kernel in kernels:
        assert kernel.functions is not None  # what is left of a compiled kernel has a library
        functions.update(dict(kernel.functions.functions.items()))
    target, context = _code_target(kernels[0].target), tvm.transform.PassContext.current()
    if all(kernel.arguments for kernel in kernels) and not context.instruments:
        context = inner_context({_WITHOUT_CHECKS: True, **dict(context.config.items())})
    try:
        with target, context:
            targets, host = tvm.target.Target.canon_target_map_and_host(
                {target: tvm.IRModule(functions)}
            )
            return tvm.get_global_func("driver.tir_to_runtime")(targets, host)
    except (RuntimeError, ValueError) as err:
        raise LoweringError(
            f"TVM cannot generate code for target {target}: {last_cause(str(err))}"
        ) from err


def _code_target(target: tvm.target.Target) -> tvm.target.Target:
    """Return the target that code is generated for: LLVM takes less time, and code is as fast."""
    if has_stock_kernels(target) or _LLVM_OPTIONS in target.attrs:
        return target
    if float_lanes(target) != _MEASURED_LANES:
        return target
    own, host = (
        tvm.target.Target({**each.export(), _LLVM_OPTIONS: [_FEWER_PROMOTIONS]})
        for each in (target, target.host or target)
    )
    return tvm.target.Target(own, host)


def _exported(modules: Sequence[tvm.runtime.Module], folder: Path) -> list[Path]:
    """Write modules of GPUs as object files: the code of the host, and that of the device as data.

    A kernel is looked up in the first module and in what that imports.
    """
    objects: list[Path] = []

    def note(_: str, files: Sequence[str], **__: object) -> None:
        objects.extend(Path(file) for file in files)

    for module in modules[1:]:
        modules[0].import_module(module)
    modules[0].export_library(str(folder / _LIBRARY), fcompile=note, workspace_dir=str(folder))
    return objects


def find_compiler() -> str:
    """Return the compiler that links.

    Raises
    ------
    ArtifactError
        There is none.
    """
    compiler = cc.get_cc()
    if compiler is None or shutil.which(compiler) is None:
        raise ArtifactError(
            "no C++ compiler found, and compiled files are linked with it; install the package g++"
        )
    return str(compiler)


@contextmanager
def temporary_folder(beside: Path | None = None) -> Iterator[Path]:
    """Make a folder that is gone at the end: in `beside`, or where temporary files lie.

    Raises
    ------
    ArtifactError
        It cannot be made.
    """
    try:
        folder = tempfile.TemporaryDirectory(dir=beside, prefix="heteroplace-")
    except OSError as err:
        raise ArtifactError(
            f"no folder for temporary files can be made ({err}); give one by the environment "
            f"variable TMPDIR, or free space"
        ) from err
    with folder as name:
        yield Path(name)


def link(objects: Sequence[Path], target: Path) -> None:
    """Link object files (and sources) into a shared library.

    Parameters
    ----------
    objects, target
        Absolute paths.

    Raises
    ------
    ArtifactError
        The compiler is missing or fails; all that it says is quoted.
    """
    command = [find_compiler(), *_LINK_OPTIONS, "-o", str(target), *map(str, objects)]
    done = subprocess.run(command, capture_output=True, check=False)
    if done.returncode != 0:
        said = done.stderr.decode(errors="backslashreplace").strip() or "it says nothing"
        raise ArtifactError(f"{target}: the linker failed with {done.returncode}: {said}")
