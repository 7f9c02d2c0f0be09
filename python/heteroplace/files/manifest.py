"""Read and write what stands behind the ELF part of a compiled file. Needs no TVM, maps no code.

    [ELF: kernels of all targets, weights in a section of their own, page aligned]
    [manifest: JSON with format, versions, program text, solution]
    [footer, 64 bytes: magic, manifest size, library size, SHA-256 of all before it]

The loader of the operating system ignores what follows the ELF part; `read_manifest` checks it
before anything is mapped, so a truncated or foreign file never reaches the loader.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from heteroplace.errors import ArtifactError
from heteroplace.files.fields import Count
from heteroplace.files.reader import parse_json
from heteroplace.files.solution import solution_from_json, solution_to_json
from heteroplace.model.memory import MemoryUse
from heteroplace.model.solution import Solution
from heteroplace.model.verification import Verification

FORMAT_VERSION = 3
"""Version of manifest and footer."""

ELF_MAGIC = b"\x7fELF"
_MAGIC = b"HETEROPLACE\0"
_FOOTER = struct.Struct("<12sIQQ32s")


_Port = tuple[str, tuple[Count, ...], str]


class _ManifestFile(Struct, forbid_unknown_fields=True):
    """The JSON of a manifest; `placement` is that of a solution, as text."""

    format: int
    tvm: str
    program: str
    placement: str
    inputs: tuple[_Port, ...]
    outputs: tuple[_Port, ...]
    memory: tuple[tuple[Count, Count, Count], ...]
    verification: Verification | None


@dataclass(frozen=True)
class Manifest:
    """What a compiled file says about itself."""

    tvm_version: str
    program_text: str
    solution: Solution
    inputs: tuple[tuple[str, tuple[int, ...], str], ...]
    """Name, shape and dtype of every input."""
    outputs: tuple[tuple[str, tuple[int, ...], str], ...]
    memory: tuple[MemoryUse, ...]
    """For each memory of the solution's cluster what the program is predicted to hold in it."""
    verification: Verification | None = None
    """How its outputs compare with those of the ONNX model; None: it was made of none."""

    def to_json(self) -> bytes:
        """Return the JSON bytes."""
        value = {
            "format": FORMAT_VERSION,
            "tvm": self.tvm_version,
            "program": self.program_text,
            "placement": solution_to_json(self.solution),
            "inputs": [[name, list(shape), dtype] for name, shape, dtype in self.inputs],
            "outputs": [[name, list(shape), dtype] for name, shape, dtype in self.outputs],
            "memory": [
                [use.weights_bytes, use.values_bytes, use.workspace_bytes] for use in self.memory
            ],
            "verification": None if self.verification is None else asdict(self.verification),
        }
        return json.dumps(value).encode()

    @classmethod
    def from_json(cls, data: bytes, source: str) -> Manifest:
        """Read the JSON bytes.

        Raises
        ------
        ArtifactError
            Another format version, or a field is missing.
        """
        try:
            value: Any = parse_json(data.decode())
            if value["format"] != FORMAT_VERSION:
                raise ArtifactError(
                    f"{source}: format {value['format']}, this heteroplace reads "
                    f"{FORMAT_VERSION}; compile the model again"
                )
            file = msgspec.convert(value, _ManifestFile)
        except (KeyError, TypeError, ValueError) as err:
            raise ArtifactError(f"{source}: the manifest is damaged ({err})") from err
        solution = solution_from_json(file.placement, source)
        memory = tuple(MemoryUse(*parts) for parts in file.memory)
        if len(memory) != len(solution.cluster.memories):
            raise ArtifactError(
                f"{source}: the manifest is damaged (it has the use of {len(memory)} memories, and "
                f"the cluster has {len(solution.cluster.memories)})"
            )
        return cls(
            *(file.tvm, file.program, solution, file.inputs, file.outputs, memory),
            file.verification,
        )


def append_manifest(part: Path, manifest: bytes) -> None:
    """Write a manifest and the footer behind the library in `part`."""
    library_bytes = part.stat().st_size
    with part.open("r+b") as file:
        digest = hashlib.file_digest(file, "sha256") if hasattr(hashlib, "file_digest") else None
        if digest is None:
            digest = hashlib.sha256(part.read_bytes())
        digest.update(manifest)
        file.seek(0, os.SEEK_END)
        file.write(manifest)
        footer = _FOOTER.pack(_MAGIC, FORMAT_VERSION, len(manifest), library_bytes, digest.digest())
        file.write(footer)


def read_manifest(path: str | os.PathLike[str]) -> Manifest:
    """Read and check what a compiled file says about itself, without mapping its code.

    Raises
    ------
    ArtifactError
        The file is missing, truncated, damaged, or not one of ours.
    """
    source = os.fspath(path)
    try:
        data = Path(source).read_bytes()
    except OSError as err:
        raise ArtifactError(f"{source}: cannot be read: {err.strerror}") from err
    if not data.startswith(ELF_MAGIC):
        raise ArtifactError(f"{source}: not a shared library (it does not start with ELF's magic)")
    if len(data) < _FOOTER.size or data[-_FOOTER.size :][: len(_MAGIC)] != _MAGIC:
        raise ArtifactError(
            f"{source}: no heteroplace footer at its end: the file is truncated, or it is a "
            f"library of another program; compile or copy it again"
        )
    _, version, manifest_bytes, library_bytes, digest = _FOOTER.unpack(data[-_FOOTER.size :])
    if version != FORMAT_VERSION:
        raise ArtifactError(
            f"{source}: format {version}, this heteroplace reads {FORMAT_VERSION}; compile the "
            f"model again"
        )
    expected = library_bytes + manifest_bytes + _FOOTER.size
    if len(data) != expected:
        raise ArtifactError(
            f"{source}: {len(data)} bytes, its footer says {expected}; copy it again"
        )
    body = memoryview(data)[: -_FOOTER.size]
    if hashlib.sha256(body).digest() != digest:
        raise ArtifactError(
            f"{source}: the SHA-256 of its content differs from the footer's; the "
            f"file was changed or damaged, copy or compile it again"
        )
    return Manifest.from_json(bytes(body[library_bytes:]), source)
