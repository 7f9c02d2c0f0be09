"""Compiled files as they are read: the checks of the C++ core, and what the manifest says.

There is one reader of these files (`src/exec/file`); a program without Python reads them by it too.
"""

from __future__ import annotations

import os

import numpy as np
import numpy.typing as npt

import heteroplace._core as _core
from heteroplace.errors import ArtifactError
from heteroplace.files.manifest import Manifest


class CompiledFile:
    """An open compiled file; its texts are read, and agree with their digests.

    All is read through one descriptor: a file that is replaced meanwhile is the old one or the new
    one as a whole.

    Raises
    ------
    ArtifactError
        The file is missing, truncated, damaged, foreign or of another format.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.source = os.fspath(path)
        """Its path as it was given, for messages."""
        try:
            self._core = _core.CompiledFile(os.fsencode(path))
            self.program_text = self._core.program_text.decode()
        except UnicodeError as err:
            shown = ascii(self.source)
            raise ArtifactError(f"{shown}: a path or a program that is no text ({err})") from err

    def manifest(self) -> Manifest:
        """Return what the file says about itself.

        Raises
        ------
        ArtifactError
            The manifest is damaged.
        """
        return Manifest.from_json(self._core.manifest, self.program_text, self.source)

    def check(self) -> None:
        """Check code and weights too, of which nothing is loaded.

        Raises
        ------
        ArtifactError
            They are damaged, or do not belong to the program.
        """
        self._core.check()

    def load(self, libtvm_path: str) -> None:
        """Check all, make the private copy of the code and map the weights.

        Raises
        ------
        ArtifactError
            As `check`.
        ExecutionError
            This processor or a GPU cannot run the code.
        """
        self._core.load()
        self._core.check_gpus(libtvm_path)

    @property
    def code_path(self) -> str:
        """What loaders take, as long as this object lives. After `load`."""
        return self._core.code_path

    @property
    def weights(self) -> npt.NDArray[np.uint8]:
        """The weights where they are mapped, as long as the array lives. After `load`."""
        return self._core.weights


class SealedCode:
    """A library of kernels that was checked, as memory which loaders take by a path.

    Parameters
    ----------
    name
        What it is, for messages.
    image
        The shared library.

    Raises
    ------
    ArtifactError
        It is damaged, or has what no library of kernels has.
    ExecutionError
        The system has no memory for it.
    """

    def __init__(self, name: str, image: bytes) -> None:
        self._core = _core.SealedCode(name, image)

    @property
    def path(self) -> str:
        """What loaders take, as long as this object lives."""
        return self._core.path


def read_manifest(path: str | os.PathLike[str]) -> Manifest:
    """Read what a compiled file says about itself; nothing of it is mapped.

    Raises
    ------
    ArtifactError
        The file is missing, truncated, damaged, or not one of ours.
    """
    return CompiledFile(path).manifest()


def machine_name() -> str:
    """Return the name of machines like this one, as in the needs of a file."""
    return _core.machine_name()


def known_features() -> frozenset[str]:
    """Return the features of processors that code may need, by LLVM's names."""
    return frozenset(_core.known_features())


def present_features() -> frozenset[str]:
    """Return those that this processor has."""
    return frozenset(_core.present_features())
