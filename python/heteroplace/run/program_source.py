"""An executable or a compiled file -> what an executor loads, of each entry."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import numpy as np

from heteroplace.files.manifest import Manifest
from heteroplace.native.compiled_file import CompiledFile, SealedCode
from heteroplace.run.missing_devices import check_devices_exist

if TYPE_CHECKING:
    from typing_extensions import TypeIs


class SealedLibrary(Protocol):
    """`heteroplace.lower.library.KernelLibrary`."""

    def sealed(self) -> SealedCode:
        """Return the library as memory that loaders take by a path."""


class Built(Protocol):
    """What `heteroplace.build` returned: `heteroplace.Executable`, which only compilers load."""

    @property
    def library(self) -> SealedLibrary:
        """The kernels."""

    @property
    def manifest(self) -> Manifest:
        """What a file of it would say about itself."""

    @property
    def blob(self) -> np.ndarray:
        """The weights."""

    @property
    def entries(self) -> Mapping[str, Built]:
        """The other programs, by name."""


Runnable = Built | CompiledFile | str | os.PathLike[str]
"""What `heteroplace.build` returned, or an exported file: its path, or opened."""


@dataclass(frozen=True)
class ProgramSource:
    """A program, its kernels and its weights."""

    where: str
    """What messages call it."""
    origin: str
    """Where it is loaded from: "memory", or a file."""
    manifest: Manifest
    code: CompiledFile | SealedCode
    """Loaders know the code by its path, which is another's as soon as the code is gone."""
    code_path: str
    blob: np.ndarray
    entries: Mapping[str, ProgramSource] = field(default_factory=dict)
    """The other entries, by name."""

    @classmethod
    def of(cls, source: Runnable) -> ProgramSource:
        """Open a source, and check that its devices exist.

        Raises
        ------
        ArtifactError
            The file is truncated, damaged, foreign, or of another version.
        MissingDeviceError
            A device of the plan does not exist here, or lacks what the code needs.
        """
        if _is_built(source):
            return _of_built(source)
        file = source if isinstance(source, CompiledFile) else CompiledFile(source)
        manifest, where = file.manifest(), file.path
        check_devices_exist(manifest.placement.devices, file.missing())
        file.load()
        entries = {}
        for each in manifest.entries:
            end = each.code_offset + each.code_bytes
            code = SealedCode(where, file.weights[each.code_offset : end].tobytes())
            own = f"{where}, entry {each.name!r}"
            entries[each.name] = _of_code(own, where, each.manifest, code, file.weights)
        return cls(where, where, manifest, file, file.code_path, file.weights, entries)


def _is_built(source: Runnable) -> TypeIs[Built]:
    # An executor has a manifest too.
    return hasattr(source, "library") and hasattr(source, "manifest")


def _of_built(executable: Built) -> ProgramSource:
    where, code = "the executable", executable.library.sealed()
    entries = {
        name: _of_code(
            f"{where}, entry {name!r}",
            "memory",
            each.manifest,
            each.library.sealed(),
            executable.blob,
        )
        for name, each in executable.entries.items()
    }
    return _of_code(where, "memory", executable.manifest, code, executable.blob, entries)


def _of_code(
    where: str,
    origin: str,
    manifest: Manifest,
    code: SealedCode,
    blob: np.ndarray,
    entries: Mapping[str, ProgramSource] | None = None,
) -> ProgramSource:
    check_devices_exist(manifest.placement.devices)
    return ProgramSource(where, origin, manifest, code, code.path, blob, entries or {})
