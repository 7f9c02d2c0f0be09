"""What a compiled file says about itself, as JSON: versions, solution, ports, memory.

It is one part of the file; `src/exec/file/parts.h` has the others, and reads it.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct

from heteroplace.entries import load_entry
from heteroplace.errors import ArtifactError
from heteroplace.files.fields.fields import Count
from heteroplace.files.placement import Placement, UsedDevice
from heteroplace.files.reader import parse_json
from heteroplace.model.verification import Verification
from heteroplace.terminal import listed

if TYPE_CHECKING:
    from heteroplace.files.call_lengths import CallLengths
    from heteroplace.model.memory_use.memory import MemoryUse
    from heteroplace.model.solution import Solution

_CALL_LENGTHS = "heteroplace.files.call_lengths:CallLengths"
"""Loaded for a file that takes calls of any length."""
FORMAT_VERSION = 5
"""Version of the manifest, and of the file that holds it (`kFileFormat` of exec/file/parts.h)."""

ELF_MAGIC = b"\x7fELF"


def is_library(path: str | os.PathLike[str]) -> bool:
    """Tell whether a file is a shared library, as compiled files are."""
    with Path(path).open("rb") as file:
        return file.read(len(ELF_MAGIC)) == ELF_MAGIC


_Port = tuple[str, tuple[Count, ...], str]


@dataclass(frozen=True)
class TokenizerText:
    """The tokenizer of a model, as text."""

    text: str
    """The content of its `tokenizer.json`."""
    stop_ids: tuple[Count, ...] = ()
    """The tokens that end a text; empty: no file says it."""


class _ManifestFile(Struct, forbid_unknown_fields=True):
    """The JSON of a manifest; `placement` is that of a solution, as text."""

    format: int
    tvm: str
    placement: str
    inputs: tuple[_Port, ...]
    outputs: tuple[_Port, ...]
    memory: tuple[tuple[Count, Count, Count], ...]
    verification: Verification | None
    state: tuple[tuple[str, tuple[str, ...], Count | None], ...] = ()
    model: str = ""
    session_state: tuple[tuple[str, str], ...] = ()
    max_sessions: int = 1
    entry: str = ""
    entries: tuple[_EntryFile, ...] = ()
    tokenizer: TokenizerText | None = None
    lengths: dict[str, Any] | None = None
    devices: tuple[UsedDevice, ...] | None = None
    steps: Count | None = None


class _EntryFile(Struct, forbid_unknown_fields=True):
    """The JSON of an entry."""

    name: str
    code: tuple[Count, Count]
    program: str
    manifest: _ManifestFile


@dataclass(frozen=True)
class State:
    """An input that the program replaces in every run, and keeps."""

    name: str
    ports: tuple[str, ...]
    """Inputs and outputs of the program by which it is set and read, one for each memory."""
    blob_offset: int | None = None
    """Where the weights have what it is at first; None: it has to be set."""


@dataclass(frozen=True)
class Manifest:
    """What a compiled file says about itself."""

    tvm_version: str
    program_text: str
    placement: Placement
    inputs: tuple[tuple[str, tuple[int, ...], str], ...]
    """Name, shape and dtype of every input."""
    outputs: tuple[tuple[str, tuple[int, ...], str], ...]
    verification: Verification | None = None
    """How its outputs compare with those of the ONNX model; None: it was made of none."""
    state: tuple[State, ...] = ()
    """Not among `inputs` and `outputs`."""
    model_digest: str = ""
    """Of a network with routers: whose route decisions recordings are; "": it has none."""
    session_state: tuple[tuple[str, str], ...] = ()
    """(input, output that replaces it in the next call of a session); both are among `inputs` and
    `outputs`."""
    max_sessions: int = 1
    """How many sessions `memory` counts."""
    entry: str = ""
    """Name of the program among the entries; "": it is the only one."""
    entries: tuple[ProgramEntry, ...] = ()
    """The others."""
    tokenizer: TokenizerText | None = None
    """Of a model that reads and writes text; None: there is none."""
    lengths: CallLengths | None = None
    """The size that each call chooses; None: shapes are those of the entries."""

    @property
    def solution(self) -> Solution:
        """The plan and all it refers to.

        Raises
        ------
        ArtifactError
            It is first read now, and damaged.
        """
        return self.placement.solution

    @property
    def memory(self) -> tuple[MemoryUse, ...]:
        """For each memory of the solution's cluster what the program is predicted to hold in it."""
        return self.placement.memory

    @property
    def properties(self) -> dict[str, str]:
        """What people are told of it: versions, inputs, outputs."""
        properties = {"TVM": self.tvm_version}
        for kind, ports in (("inputs", self.inputs), ("outputs", self.outputs)):
            properties[kind] = "; ".join(
                f"{name} {dtype} [{','.join(map(str, shape))}]" for name, shape, dtype in ports
            )
        if self.session_state:
            pairs = [f"{name} <- {output}" for name, output in self.session_state]
            properties["state"] = listed(pairs, "; ")
        if self.lengths is not None:
            properties["lengths"] = self.lengths.text
        if self.max_sessions > 1:
            properties["sessions"] = f"memory is counted for {self.max_sessions}"
        if self.verification is not None:
            properties["outputs compared"] = self.verification.text
        return properties

    def to_json(self) -> bytes:
        """Return the JSON bytes."""
        return json.dumps(self._value(), allow_nan=False).encode()

    def _value(self) -> dict[str, Any]:
        value: dict[str, Any] = {
            "format": FORMAT_VERSION,
            "tvm": self.tvm_version,
            "placement": self.placement.text,
            "inputs": [[name, list(shape), dtype] for name, shape, dtype in self.inputs],
            "outputs": [[name, list(shape), dtype] for name, shape, dtype in self.outputs],
            "memory": [
                [use.weights_bytes, use.values_bytes, use.workspace_bytes] for use in self.memory
            ],
            "verification": None if self.verification is None else asdict(self.verification),
        }
        value["devices"] = [msgspec.structs.astuple(each) for each in self.placement.devices]
        value["steps"] = self.placement.num_steps
        if self.state:  # else the file is as before there was any
            value["state"] = [[each.name, each.ports, each.blob_offset] for each in self.state]
        if self.model_digest:
            value["model"] = self.model_digest
        if self.session_state:
            value["session_state"] = self.session_state
        if self.max_sessions > 1:
            value["max_sessions"] = self.max_sessions
        if self.tokenizer is not None:
            value["tokenizer"] = asdict(self.tokenizer)
        if self.lengths is not None:
            value["lengths"] = asdict(self.lengths)
        if self.entries:
            value["entry"] = self.entry
            value["entries"] = [
                {
                    "name": each.name,
                    "code": (each.code_offset, each.code_bytes),
                    "program": each.manifest.program_text,
                    "manifest": each.manifest._value(),
                }
                for each in self.entries
            ]
        return value

    @classmethod
    def from_json(cls, data: bytes, program_text: str, source: str) -> Manifest:
        """Read the JSON bytes of a manifest that stands beside a program.

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
        return _manifest(file, program_text, source)


@dataclass(frozen=True)
class ProgramEntry:
    """Another program in a file: the same model at other sizes, over the same weights."""

    name: str
    code_offset: int
    """Of its library of kernels in the array of weights."""
    code_bytes: int
    manifest: Manifest


def _manifest(file: _ManifestFile, program_text: str, source: str) -> Manifest:
    placement = Placement.of_file(file.placement, file.memory, source, file.devices, file.steps)
    return Manifest(
        *(file.tvm, program_text, placement, file.inputs, file.outputs),
        file.verification,
        tuple(State(*parts) for parts in file.state),
        file.model,
        file.session_state,
        file.max_sessions,
        file.entry,
        tuple(
            ProgramEntry(each.name, *each.code, _manifest(each.manifest, each.program, source))
            for each in file.entries
        ),
        file.tokenizer,
        _lengths(file.lengths, source),
    )


def _lengths(value: dict[str, Any] | None, source: str) -> CallLengths | None:
    if value is None:
        return None
    try:
        lengths: CallLengths = msgspec.convert(value, load_entry(_CALL_LENGTHS))
    except ValueError as err:
        raise ArtifactError(f"{source}: the manifest is damaged ({err})") from err
    return lengths
