"""Compiled kernels as object files, and the linking of shared libraries from them.

Code is generated once, into object files, and linked once into a library of kernels alone. That
library is loaded to measure and to run in this process, and it is the first part of the file that
is exported. (TVM's own JIT would compile again, and its parallel loops cannot be given to our
workers.)
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import tvm
from tvm.contrib import cc

from heteroplace.errors import ArtifactError, LoweringError
from heteroplace.lower.fused_functions import last_cause
from heteroplace.lower.kernels import Kernel
from heteroplace.lower.library_symbols import is_library_kernel
from heteroplace.native.compiled_file import SealedCode
from heteroplace.stage_log import Count

_LIBRARY = "kernels.so"
_GROUP = 8
"""Kernels of a CPU that become one object file. All in one take as long, and count as one."""
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
        Content of the files that it was linked from, by name; TVM decides how many there are.
    image
        The library of kernels alone.
    """

    def __init__(self, objects: Mapping[str, bytes], image: bytes) -> None:
        self.objects = dict(objects)
        self.image = image
        self._sealed: weakref.ref[SealedCode] | None = None

    @classmethod
    def from_module(cls, module: tvm.runtime.Module) -> KernelLibrary:
        """Generate the object files of what TVM has compiled, and link them.

        Raises
        ------
        ArtifactError
            There is no linker, it fails, or there is no folder for temporary files.
        """
        objects: list[Path] = []

        def link_and_note(target: str, files: Sequence[str], **_: object) -> None:
            objects.extend(Path(file) for file in files)
            link(objects, Path(target))

        with temporary_folder() as folder:
            path = folder / _LIBRARY
            module.export_library(str(path), fcompile=link_and_note, workspace_dir=str(folder))
            return cls({file.name: file.read_bytes() for file in objects}, path.read_bytes())

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


def compile_kernels(kernels: Sequence[Kernel], on_kernel: Count | None = None) -> KernelLibrary:
    """Compile all kernels that have code, of all targets, into one library.

    Parameters
    ----------
    on_kernel
        Counts the compiled kernels.

    Raises
    ------
    LoweringError
        TVM cannot generate code for a kernel.
    """
    kernels = [kernel for kernel in kernels if not is_library_kernel(kernel.symbol)]
    if not kernels:  # of a model of reshapes alone, or of kernels by NVIDIA's libraries
        return KernelLibrary.empty()
    compiled: list[tvm.runtime.Module] = []
    num_compiled = 0
    for group in _groups(kernels):
        if on_kernel is not None:
            on_kernel(num_compiled, len(kernels))
        num_compiled += len(group)
        functions: dict[tvm.ir.GlobalVar, tvm.tir.PrimFunc] = {}
        for kernel in group:
            assert kernel.functions is not None  # what is left of a compiled kernel has a library
            functions.update(dict(kernel.functions.functions.items()))
        try:
            compiled.append(tvm.build({group[0].target: tvm.IRModule(functions)}))
        except (RuntimeError, ValueError) as err:
            raise LoweringError(
                f"TVM cannot generate code for target {group[0].target}: {last_cause(str(err))}"
            ) from err
    # A kernel is looked up in a module and in what it imports.
    for module in compiled[1:]:
        compiled[0].import_module(module)
    return KernelLibrary.from_module(compiled[0])


def _groups(kernels: Sequence[Kernel]) -> Iterator[list[Kernel]]:
    """The kernels of each target, those of CPUs a few at a time.

    Kernels of a GPU stay together, as its compiler takes longer to start than to compile one.
    """
    by_target: dict[str, list[Kernel]] = {}
    for kernel in kernels:
        by_target.setdefault(f"{kernel.target} host {kernel.target.host}", []).append(kernel)
    for of_target in by_target.values():
        size = _GROUP if of_target[0].target.kind.name == "llvm" else len(of_target)
        for begin in range(0, len(of_target), size):
            yield of_target[begin : begin + size]


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
