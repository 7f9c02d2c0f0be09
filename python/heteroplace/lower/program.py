"""The program of an executor as values, and its text form.

The text is what the artefact stores and the C++ executor reads (grammar:
`src/exec/program/format.md`, with routers `src/exec/program/routers.md`).
Ids are positions in the tuples. A plan over several hosts has a program for each, and their texts
stand one after the other (`bundle_text`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import tvm

ALIGNMENT_BYTES = 128
"""Every tensor starts at a multiple of this: two cache lines, so that cores never share one."""

KERNEL_ALIGNMENT_BYTES = 64
"""A kernel takes tensors only at multiples of this; copies take parts of them from anywhere."""

SIDE_STREAMS = 4
"""On a GPU, streams for the branches of groups (`src/exec/workers/worker.h`)."""

PAGE_BYTES = 4096
"""The executor takes host memory in pages of this size, one at least for an arena."""


def aligned(num_bytes: int) -> int:
    """Return what a tensor takes; one without bytes has an address of its own too."""
    return -(-max(num_bytes, 1) // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


def packed(num_bytes: int) -> int:
    """Return what a tensor takes that is only read, and by kernels."""
    return -(-num_bytes // KERNEL_ALIGNMENT_BYTES) * KERNEL_ALIGNMENT_BYTES


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
    """A view of a part of an arena, of what a session keeps, or of a constant."""

    space: int
    storage: str
    """"arena", "session" or "constant"."""
    place: int
    """Byte offset in the arena or in what a session keeps, or id of the constant."""
    dtype: str
    shape: tuple[int, ...]


Waits = tuple[tuple[int, int], ...]
"""(queue, count): when `queue` has finished its first `count` instructions."""

When = Literal["active", "predicted", "missed"]
"""Its load is not 0; it was predicted and may still be so; its load is not 0, and it was not."""


@dataclass(frozen=True)
class ProgramRouter:
    """A router's decision as it is in one memory of a host; routers of one name are one.

    Lines of one name differ in `loads`, `offsets`, `seats` and `there` alone.
    """

    name: str
    loads: int
    """Tensor, int32 [branches]: cells of each branch."""
    offsets: int | None
    """Tensor, int32 [branches]: first row of each branch in routed buffers; None: no rows move."""
    seats: int | None
    """Tensor, int32 [cells, branches], for recordings; None: not here."""
    overflow: Literal["rounds", "drop", "error"]
    num_cells: int
    """No load is larger."""
    rows: int
    """Rows of a routed buffer; 0 without offsets."""
    quantum: int
    """Every offset is a multiple of it."""
    capacities: tuple[tuple[int, ...], ...]
    """Of each branch, ascending."""
    there: Waits
    """Loads and offsets are there when these are done; empty: they are inputs."""

    def to_text(self, index: int) -> str:
        """Return the line that declares it as router `index`."""
        offsets, seats = (
            "-" if tensor is None else str(tensor) for tensor in (self.offsets, self.seats)
        )
        capacities = ";".join(",".join(map(str, sizes)) for sizes in self.capacities)
        return (
            f"router {index} {_quote(self.name)} {self.loads} {offsets} {seats} {self.overflow} "
            f"{self.num_cells} {self.rows} {self.quantum} {capacities} {_waits_text(self.there)}"
        )


@dataclass(frozen=True)
class RouterPrediction:
    """What is predicted of a router from the first run on."""

    router: int
    """Position in `Program.routers`."""
    branches: tuple[int, ...]
    """Ascending; empty: nothing."""
    least_hits: int
    """It is predicted as long as more than so many of 1000 runs are right."""

    def to_text(self) -> str:
        """Return its line."""
        branches = ",".join(map(str, self.branches)) or "-"
        return f"predict {self.router} {branches} {self.least_hits}"


@dataclass(frozen=True)
class BranchGuard:
    """When a guarded instruction is done; else it is skipped, and counts as done."""

    router: int
    """Position in `Program.routers`: where the decision is read."""
    branch: int
    when: When


@dataclass(frozen=True)
class Operand:
    """A tensor of a guarded instruction."""

    tensor: int
    is_rows: bool = False
    """Whether it is rows of a routed buffer, which begins where the tensor does: those of the
    branch, from its offset on. Of a call it has as many as the capacity, wherever they are in its
    shape, and each round takes the next ones; of a copy its shape begins with the buffer's."""

    def to_text(self) -> str:
        """Return it as the text has it."""
        return f"{self.tensor}{'@' if self.is_rows else ''}"


@dataclass(frozen=True)
class CapacityCall:
    """What a guarded call does at one capacity; nothing is done at those that have none."""

    capacity: int
    """0: it is done once, whatever the load, and has no rows; the only one then."""
    kernel: int
    operands: tuple[Operand, ...]

    def to_text(self) -> str:
        """Return it as the text has it."""
        return (
            f"{self.capacity}={self.kernel}({','.join(each.to_text() for each in self.operands)})"
        )


@dataclass
class QueueInstruction:
    """One line of a queue."""

    kind: str
    """"call", "join", "copy", "send", "recv", "branch_call", "branch_copy" or "group"."""
    step: int
    """Position of the plan's step that it carries out."""
    fields: tuple[str, ...]
    """What stands between the step and the waits, as text."""
    waits: Waits = ()
    """What must be done before it starts."""


def branch_call(
    step: int,
    guard: BranchGuard,
    num_threads: int,
    calls: Sequence[CapacityCall],
    waits: Waits = (),
) -> QueueInstruction:
    """Return a guarded kernel call; `calls` are of ascending capacities."""
    what = ";".join(call.to_text() for call in calls)
    fields = (*_guard_fields(guard), str(num_threads), what)
    return QueueInstruction("branch_call", step, fields, waits)


def branch_copy(
    step: int, guard: BranchGuard, source: Operand, destination: Operand, waits: Waits = ()
) -> QueueInstruction:
    """Return a guarded copy: of the rows of the load where both operands have rows, else of all."""
    fields = (*_guard_fields(guard), source.to_text(), destination.to_text())
    return QueueInstruction("branch_copy", step, fields, waits)


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

    @property
    def held_workspace_bytes(self) -> int:
        """Scratch memory that it holds: of a GPU that of each stream on which branches of groups
        run beside it, too."""
        has_groups = any(each.kind == "group" for each in self.instructions)
        return self.workspace_bytes * (1 + SIDE_STREAMS * (has_groups and self.kind == "cuda"))


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
    routers: tuple[ProgramRouter, ...] = ()
    kept_states: tuple[tuple[int, int], ...] = ()
    """(input, output that replaces it in the next call of a session), as positions."""
    predictions: tuple[RouterPrediction, ...] = ()
    """Of a router without one all branches are predicted that the program has predicted work of."""

    def to_text(self, step_names: Sequence[str] = ()) -> str:
        """Return the text form; `step_names` are what recordings call the steps of the plan."""
        version = 3 if self.routers else 1 if self.rank is None else 2
        lines = [f"heteroplace-program {version}"]
        if self.rank is not None:
            lines[0] += f" {self.rank.rank} {self.rank.num_ranks} {_quote(self.rank.host)}"
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
        lines += [
            f"state {_quote(self.inputs[input_][0])} {_quote(self.outputs[output][0])}"
            for input_, output in self.kept_states
        ]
        lines += [f"kernel {index} {symbol}" for index, symbol in enumerate(self.kernels)]
        lines += [router.to_text(index) for index, router in enumerate(self.routers)]
        lines += [prediction.to_text() for prediction in self.predictions]
        # A line each: whatever ends one is a blank in a name.
        names = (" ".join(name.split()) for name in step_names)
        lines += [f"step {index} {_quote(name)}" for index, name in enumerate(names)]
        for index, queue in enumerate(self.queues):
            for instruction in queue.instructions:
                waits = _waits_text(instruction.waits)
                fields = " ".join(instruction.fields)
                head = f"{instruction.kind} {index} {instruction.step}"
                lines.append(f"{head} {fields} {waits}")
        return "\n".join([*lines, "end", ""])


def bundle_text(programs: Sequence[Program], step_names: Sequence[str] = ()) -> str:
    """Return the text of the programs of all ranks; of one alone it is its own."""
    texts = [program.to_text(step_names) for program in programs]
    head = [] if len(texts) == 1 else [f"heteroplace-programs 2 {len(texts)}\n"]
    return "".join([*head, *texts])


def _guard_fields(guard: BranchGuard) -> tuple[str, str, str]:
    return str(guard.router), str(guard.branch), guard.when


def _waits_text(waits: Waits) -> str:
    return ",".join(f"{queue}:{count}" for queue, count in waits) or "-"


def _quote(name: str) -> str:
    escaped = name.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _dl_type(dtype: str) -> tuple[int, int]:
    """DLPack type code and bits, as TVM numbers them (bool is a one-bit unsigned integer)."""
    data_type = tvm.DataType(dtype)
    return int(data_type.type_code), int(data_type.bits)
