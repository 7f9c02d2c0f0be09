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
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import tvm
from tvm.contrib import cc

from heteroplace.errors import ArtifactError, LoweringError
from heteroplace.forked_jobs import ForkedJobs
from heteroplace.lower.fused_functions import last_cause
from heteroplace.lower.kernels import Kernel
from heteroplace.lower.library_symbols import is_library_kernel
from heteroplace.native.compiled_file import SealedCode
from heteroplace.stage_log import Count

_LIBRARY = "kernels.so"
_EMPTY_ASSEMBLY = '.section .note.GNU-stack,"",@progbits\n'
"""Says that the stack need not be executable; without it linkers warn."""

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
        Content of the files that it was linked from, by name: one for each kernel of a CPU, and
        what TVM makes of those of GPUs.
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


class KernelCompiler:
    """Generates the code of kernels, on all cores, from the moment when they are lowered.

    TVM's code generator takes one thread, so kernels of CPUs are compiled in forks of this process.
    All are compiled in the pass context that is in force when this object is made.
    """

    def __init__(self) -> None:
        self._context = tvm.transform.PassContext.current()
        self._jobs = ForkedJobs()
        self._symbols: set[str] = set()
        self._others: dict[str, list[Kernel]] = {}
        """Kernels of each target that is no CPU. They stay together, as a compiler of GPU code
        takes longer to start than to compile one."""

    def add(self, kernel: Kernel) -> None:
        """Take a kernel; one of a CPU is compiled as soon as a core is free."""
        if is_library_kernel(kernel.symbol):
            return
        self._symbols.add(kernel.symbol)
        if kernel.target.kind.name == "llvm":
            self._jobs.submit(lambda: self._object_of(kernel))
        else:
            target = f"{kernel.target} host {kernel.target.host}"
            self._others.setdefault(target, []).append(kernel)

    def pause(self) -> None:
        """Leave all cores to what follows; `library` goes on."""
        self._jobs.pause()

    def library(self, kernels: Iterable[Kernel], on_kernel: Count | None = None) -> KernelLibrary:
        """Link the code of kernels: of these, and of all that were added before.

        Parameters
        ----------
        on_kernel
            Counts the compiled kernels.

        Raises
        ------
        LoweringError
            TVM cannot generate code for a kernel.
        ArtifactError
            There is no linker, it fails, or there is no folder for temporary files.
        """
        for kernel in kernels:
            if kernel.symbol not in self._symbols:
                self.add(kernel)
        if not self._symbols:
            return KernelLibrary.empty()  # of reshapes alone, or kernels of NVIDIA's libraries

        def count(num_done: int, _: int) -> None:
            if on_kernel is not None:
                on_kernel(num_done, len(self._symbols))

        results = self._jobs.results(count)
        with temporary_folder() as folder:
            objects = [folder / f"kernels{index}.o" for index in range(len(results))]
            for path, content in zip(objects, results, strict=True):
                path.write_bytes(content)
            if self._others:
                count(len(results), len(results))
                with self._context:
                    objects += _exported([_built(group) for group in self._others.values()], folder)
            path = folder / _LIBRARY
            link(objects, path)
            return KernelLibrary(
                {file.name: file.read_bytes() for file in objects}, path.read_bytes()
            )

    def _object_of(self, kernel: Kernel) -> bytes:
        # A file in memory: a fork that is ended leaves nothing.
        with self._context, os.fdopen(os.memfd_create("kernel.o"), "rb") as file:
            _built([kernel]).save(f"/proc/self/fd/{file.fileno()}", "o")
            return file.read()


def compile_kernels(kernels: Sequence[Kernel], on_kernel: Count | None = None) -> KernelLibrary:
    """Compile all kernels that have code, of all targets, into one library.

    Parameters and errors are those of `KernelCompiler.library`.
    """
    return KernelCompiler().library(kernels, on_kernel)


def _built(kernels: Sequence[Kernel]) -> tvm.runtime.Module:
    """Generate code for kernels of one target."""
    functions: dict[tvm.ir.GlobalVar, tvm.tir.PrimFunc] = {}
    for kernel in kernels:
        assert kernel.functions is not None  # what is left of a compiled kernel has a library
        functions.update(dict(kernel.functions.functions.items()))
    target = kernels[0].target
    try:
        with target:  # a fork begins within the target of a segment
            return tvm.build({target: tvm.IRModule(functions)})
    except (RuntimeError, ValueError) as err:
        raise LoweringError(
            f"TVM cannot generate code for target {target}: {last_cause(str(err))}"
        ) from err


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
