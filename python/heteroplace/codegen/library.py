"""Compiled kernels as object files, and the linking of shared libraries from them.

Code is generated once, into object files. They are linked into a library of kernels alone, which
is loaded to measure and to run in this process, and later, together with weights and program, into
the file that is exported. (TVM's own JIT would compile again, and its parallel loops cannot be
given to our workers.)
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path

import tvm
from tvm.contrib import cc

from heteroplace.codegen.kernels import Kernel, last_cause
from heteroplace.errors import ArtifactError, LoweringError

_LIBRARY = "kernels.so"
_EMPTY_ASSEMBLY = '.section .note.GNU-stack,"",@progbits\n'
"""Says that the stack need not be executable; without it linkers warn."""


class KernelLibrary:
    """Object files of compiled kernels and the shared library made of them.

    The files live as long as the object; a library that was loaded stays mapped.
    """

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="heteroplace-kernels-"))
        weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
        self.path = self._folder / _LIBRARY
        """The library of kernels alone."""
        self.objects: tuple[Path, ...] = ()
        """What it was linked from; TVM decides how many files that are."""

    @classmethod
    def from_module(cls, module: tvm.runtime.Module) -> KernelLibrary:
        """Generate the object files of what TVM has compiled, and link them."""
        library = cls()

        def link_and_note(target: str, files: Sequence[str], **_: object) -> None:
            library.objects = tuple(Path(file) for file in files)
            link(library.objects, Path(target))

        folder = str(library._folder)
        module.export_library(str(library.path), fcompile=link_and_note, workspace_dir=folder)
        return library

    @classmethod
    def empty(cls) -> KernelLibrary:
        """Link a library without any kernel."""
        library = cls()
        source = library._folder / "empty.s"
        source.write_text(_EMPTY_ASSEMBLY)
        library.objects = (source,)
        link(library.objects, library.path)
        return library

    @classmethod
    def from_files(cls, files: Mapping[str, bytes]) -> KernelLibrary:
        """Make the library anew from what `files` of another one returned."""
        library = cls()
        for name, content in files.items():
            (library._folder / name).write_bytes(content)
        library.objects = tuple(library._folder / name for name in files if name != _LIBRARY)
        return library

    def files(self) -> dict[str, bytes]:
        """Return the library's files by name: object files in order, then the library itself."""
        return {path.name: path.read_bytes() for path in (*self.objects, self.path)}


def compile_kernels(kernels: Sequence[Kernel]) -> KernelLibrary:
    """Compile all kernels, of all targets, into one library.

    Raises
    ------
    LoweringError
        TVM cannot generate code for a kernel.
    """
    if not kernels:  # of a model of reshapes alone
        return KernelLibrary.empty()
    by_target: dict[str, list[Kernel]] = {}
    for kernel in kernels:
        by_target.setdefault(str(kernel.target), []).append(kernel)
    compiled: list[tvm.runtime.Module] = []
    for group in by_target.values():
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


def link(objects: Sequence[Path], target: Path, folder: Path | None = None) -> None:
    """Link object files (and assembly) into a shared library.

    Parameters
    ----------
    objects, target
        Absolute paths.
    folder
        Where the files lie that assembly includes; None: it includes none.

    Raises
    ------
    ArtifactError
        The compiler is missing or fails; its last line of output is quoted.
    """
    command = [find_compiler(), "-shared", "-fPIC", "-o", str(target), *map(str, objects)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["no output"])[-1]
        raise ArtifactError(f"{target}: the linker failed: {last}")
