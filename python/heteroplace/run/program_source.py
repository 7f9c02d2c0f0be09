"""An executable or a compiled file -> what an executor loads, of each entry."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from heteroplace.files.manifest import Manifest
from heteroplace.lower.artifact import manifest_of
from heteroplace.lower.executable import Executable
from heteroplace.native.compiled_file import CompiledFile, SealedCode
from heteroplace.run.missing_devices import check_devices_exist

Runnable = Executable | CompiledFile | str | os.PathLike[str]
"""What `heteroplace.build` returned, or an exported file: its path, or opened."""


@dataclass(frozen=True)
class ProgramSource:
    """A program, its kernels and its weights."""

    where: str
    """What messages call it."""
    manifest: Manifest
    code: CompiledFile | SealedCode
    """Loaders know the code by its path, which is another's as soon as the code is gone."""
    code_path: str
    blob: np.ndarray
    is_in_memory: bool

    @classmethod
    def of(cls, source: Runnable, libtvm: str) -> ProgramSource:
        """Open a source, and check that its devices exist.

        Raises
        ------
        ArtifactError
            The file is truncated, damaged, foreign, or of another version.
        MissingDeviceError
            A device of the plan does not exist here, or lacks what the code needs.
        """
        if isinstance(source, Executable):
            check_devices_exist(source.solution)
            code = source.library.sealed()
            return cls("the executable", source.manifest, code, code.path, source.blob, True)
        file = source if isinstance(source, CompiledFile) else CompiledFile(source)
        manifest = manifest_of(file)
        check_devices_exist(manifest.solution, file.missing(libtvm))
        file.load(libtvm)
        return cls(file.path, manifest, file, file.code_path, file.weights, False)

    def entries(self, source: Runnable) -> Iterator[tuple[str, ProgramSource]]:
        """Yield the other entries of the source, by name."""
        if isinstance(source, Executable):
            for name, executable in source.entries.items():
                code = executable.library.sealed()
                yield name, self._entry(name, executable.manifest, code)
            return
        for entry in self.manifest.entries:
            end = entry.code_offset + entry.code_bytes
            image = self.blob[entry.code_offset : end].tobytes()
            yield entry.name, self._entry(entry.name, entry.manifest, SealedCode(self.where, image))

    def _entry(self, name: str, manifest: Manifest, code: SealedCode) -> ProgramSource:
        check_devices_exist(manifest.solution)
        where = f"{self.where}, entry {name!r}"
        return ProgramSource(where, manifest, code, code.path, self.blob, self.is_in_memory)
