"""The program of an executor as values, and its text form.

The text is what the artefact stores and the C++ executor reads (grammar:
`src/exec/program/README.md`).
Ids are positions in the tuples. A plan over several hosts has a program for each, and their texts
stand one after the other (`bundle_text`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import tvm

ALIGNMENT_BYTES = 128
"""Every tensor starts at a multiple of this: two cache lines, so that cores never share one."""

KERNEL_ALIGNMENT_BYTES = 64
"""A kernel takes tensors only at multiples of this; copies take parts of them from anywhere."""

PAGE_BYTES = 4096
"""The executor takes host memory in pages of this size, one at least for an arena."""


def aligned(num_bytes: int) -> int:
    """Return what a tensor takes; one without bytes has an address of its own too."""
    return -(-max(num_bytes, 1) // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


def in_pages(num_bytes: int) -> int:
    """Return what a block of host memory takes."""
    return -(-num_bytes // PAGE_BYTES) * PAGE_BYTES


@dataclass(frozen=True)
class Space:
    """One memory and the arena that holds the values of a run."""

    name: str
    dl_device: tuple[int, int]
    """DLPack device type and ordinal."""
    arena_bytes: int


@dataclass(frozen=True)
class Constant:
    """Weights in one space."""

    space: int
    blob_offset: int
    bytes: int


@dataclass(frozen=True)
class ProgramTensor:
    """A view of a part of an arena, or of a constant."""

    space: int
    storage: str
    """"arena" or "constant"."""
    place: int
    """Byte offset in the arena, or id of the constant."""
    dtype: str
    shape: tuple[int, ...]


@dataclass
class QueueInstruction:
    """One line of a queue."""

    kind: str
    """"call", "join", "copy", "send" or "recv"."""
    step: int
    """Position of the plan's step that it carries out."""
    fields: tuple[str, ...]
    """What stands between the step and the waits, as text."""
    waits: tuple[tuple[int, int], ...] = ()
    """(queue, count): start only when `queue` has finished its first `count` instructions."""


@dataclass
class Queue:
    """One worker and its instructions in order."""

    name: str
    kind: str
    """"cpu", "cuda", "copy", "send" or "recv"."""
    dl_device: tuple[int, int]
    space: int
    core: int | None
    workspace_bytes: int = 0
    """Scratch memory that its kernels need."""
    instructions: list[QueueInstruction] = field(default_factory=list)
    host: int = 0
    """Rank of the host that it is on."""
    peer: int | None = None
    """Rank of the other host of a queue of messages; None: it is for something else."""


@dataclass(frozen=True)
class Rank:
    """Which program of a bundle it is."""

    rank: int
    num_ranks: int
    host: str


Port = tuple[str, int]
"""Name and tensor."""


@dataclass(frozen=True)
class Program:
    """Everything the executor needs beside the compiled kernels and the weights."""

    spaces: tuple[Space, ...]
    queues: tuple[Queue, ...]
    constants: tuple[Constant, ...]
    tensors: tuple[ProgramTensor, ...]
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    kernels: tuple[str, ...]
    rank: Rank | None = None
    """None: it stands alone."""

    def to_text(self, step_names: Sequence[str] = ()) -> str:
        """Return the text form; `step_names` are what recordings call the steps of the plan."""
        lines = ["heteroplace-program 1"]
        if self.rank is not None:
            place = f"{self.rank.rank} {self.rank.num_ranks} {_quote(self.rank.host)}"
            lines = [f"heteroplace-program 2 {place}"]
        for index, space in enumerate(self.spaces):
            device = f"{space.dl_device[0]} {space.dl_device[1]}"
            lines.append(f"space {index} {_quote(space.name)} {device} {space.arena_bytes}")
        for index, queue in enumerate(self.queues):
            core = "-" if queue.core is None else str(queue.core)
            if queue.peer is not None:
                core = str(queue.peer)
            device = f"{queue.dl_device[0]} {queue.dl_device[1]}"
            name = _quote(queue.name)
            lines.append(f"queue {index} {name} {queue.kind} {device} {queue.space} {core}")
        lines += [
            f"workspace {index} {queue.workspace_bytes}"
            for index, queue in enumerate(self.queues)
            if queue.workspace_bytes
        ]
        for index, constant in enumerate(self.constants):
            place = f"{constant.blob_offset} {constant.bytes}"
            lines.append(f"constant {index} {constant.space} {place}")
        for index, tensor in enumerate(self.tensors):
            code, bits = _dl_type(tensor.dtype)
            shape = ",".join(map(str, tensor.shape)) or "-"
            place = f"{tensor.space} {tensor.storage} {tensor.place}"
            lines.append(f"tensor {index} {place} {code} {bits} {shape}")
        lines += [f"input {_quote(name)} {tensor}" for name, tensor in self.inputs]
        lines += [f"output {_quote(name)} {tensor}" for name, tensor in self.outputs]
        lines += [f"kernel {index} {symbol}" for index, symbol in enumerate(self.kernels)]
        # A line each: whatever ends one is a blank in a name.
        names = (" ".join(name.split()) for name in step_names)
        lines += [f"step {index} {_quote(name)}" for index, name in enumerate(names)]
        for index, queue in enumerate(self.queues):
            for instruction in queue.instructions:
                waits = ",".join(f"{other}:{count}" for other, count in instruction.waits) or "-"
                fields = " ".join(instruction.fields)
                head = f"{instruction.kind} {index} {instruction.step}"
                lines.append(f"{head} {fields} {waits}")
        return "\n".join([*lines, "end", ""])


def bundle_text(programs: Sequence[Program], step_names: Sequence[str] = ()) -> str:
    """Return the text of the programs of all ranks; of one alone it is its own."""
    texts = [program.to_text(step_names) for program in programs]
    head = [] if len(texts) == 1 else [f"heteroplace-programs 2 {len(texts)}\n"]
    return "".join([*head, *texts])


def _quote(name: str) -> str:
    escaped = name.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _dl_type(dtype: str) -> tuple[int, int]:
    """DLPack type code and bits, as TVM numbers them (bool is a one-bit unsigned integer)."""
    data_type = tvm.DataType(dtype)
    return int(data_type.type_code), int(data_type.bits)
