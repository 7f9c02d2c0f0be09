"""Compiled files as they are read: the checks of the C++ core, and what the manifest says.

There is one reader of these files (`src/exec/file`); a program without Python reads them by it too.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

import heteroplace._core as _core
from heteroplace.argument_checks import check_path
from heteroplace.errors import ArtifactError, ExecutionError
from heteroplace.files.manifest import Manifest

SealedCode = _core.SealedCode
machine_name = _core.machine_name
cuda_capability = _core.cuda_capability
needs_tvm = _core.needs_tvm

DL_DEVICE_TYPES = {"cpu": 1, "cuda": 2}
"""Kinds of devices that can be compiled for, with their DLPack device types."""
SIGNATURE_BYTES = 96
"""Of a public key and a signature (`kSignatureBytes` in src/exec/file/signature.h)."""


class CompiledFile(_core.CompiledFile):
    """An open compiled file; its texts are read, and agree with their digests.

    All is read through one descriptor: a file that is replaced meanwhile is the old one or the new
    one as a whole.

    Parameters
    ----------
    trusted_keys
        Files of public Ed25519 keys, PEM: a file that none of them has signed is refused before
        anything of it is read but its end. None: a signature is not looked at.

    Raises
    ------
    ArtifactError
        The file is missing, truncated, damaged, foreign, of another format, or not signed by a
        trusted key; a key cannot be read.
    ExecutionError
        There are trusted keys, and no library for signatures (OpenSSL's libcrypto).
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        trusted_keys: Sequence[str | os.PathLike[str]] | None = None,
    ) -> None:
        check_path("path", path, "the path of a compiled file (.so)", ExecutionError)
        self.path = os.fspath(path)
        """Its path as it was given, for messages."""
        keys = None if trusted_keys is None else _key_paths(trusted_keys)
        try:
            super().__init__(os.fsencode(path), keys)
            self.program_text = self.program_bytes.decode()
        except UnicodeError as err:
            shown = ascii(self.path)
            raise ArtifactError(f"{shown}: a path or a program that is no text ({err})") from err

    def manifest(self) -> Manifest:
        """Return what the file says about itself.

        Raises
        ------
        ArtifactError
            The manifest is damaged.
        """
        return Manifest.from_json(self.manifest_bytes, self.program_text, self.path)


def read_manifest(path: str | os.PathLike[str]) -> Manifest:
    """Read what a compiled file says about itself; nothing of it is mapped.

    Raises
    ------
    ArtifactError
        The file is missing, truncated, damaged, or not one of ours.
    """
    return CompiledFile(path).manifest()


def sign_tail(key: str | os.PathLike[str], tail: bytes) -> bytes:
    """Return what stands between table and tail of a signed file: public key and signature.

    Parameters
    ----------
    key
        A file with a private Ed25519 key, PEM, without a password.
    tail
        The last bytes of the file.

    Raises
    ------
    ArtifactError
        There is no such key.
    ExecutionError
        There is no library for signatures.
    """
    return _core.sign_tail(os.fsencode(key), tail)


def _key_paths(keys: Sequence[str | os.PathLike[str]]) -> list[bytes]:
    if isinstance(keys, (str, bytes, os.PathLike)):
        raise ArtifactError(
            f"trusted_keys is {os.fspath(keys)!r}; expected a list of files of public keys"
        )
    return [os.fsencode(key) for key in keys]


def known_features() -> frozenset[str]:
    """Return the features of processors that code may need, by LLVM's names."""
    return frozenset(_core.known_features())


def present_features() -> frozenset[str]:
    """Return those that this processor has."""
    return frozenset(_core.present_features())
