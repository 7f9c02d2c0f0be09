"""Kernel calls of a network: the values that they exchange, and the lowered kernels behind them."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import tvm
from tvm import tir

from heteroplace.lower.weight_blob import WeightLayout
from heteroplace.lower.workspace import Workspace
from heteroplace.model.graph import tensor_bytes
from heteroplace.model.routed.routers import Router
from heteroplace.relay.ranges.interval import Interval

_Bytes = bytes  # below, the name is that of a size
_NAME_ATTRIBUTE = "global_symbol"
_NUM_SAMPLES = 256


@dataclass(frozen=True)
class Joined:
    """How a value holds items that others hold: `outer` times, one after the other, all items."""

    outer: int
    """Product of the extents before the axis along which items lie."""
    parts: tuple[int, ...]
    """For each item the value that holds it, itself not joined."""


@dataclass(frozen=True)
class Rows:
    """Which rows of a routed buffer a value is: those of a branch, where its router says."""

    buffer: int
    """The value that is the whole buffer."""
    router: str
    branch: int


@dataclass(frozen=True)
class Value:
    """A tensor of the compiled program."""

    shape: tuple[int, ...]
    dtype: str
    input_name: str | None = None
    """Name of the model input that it is; None: it is something else."""
    constant: np.ndarray | None = None
    """Its content if it is a weight."""
    alias_of: int | None = None
    """The value whose bytes it shares under another shape (a reshape), or None."""
    range: Interval | None = None
    """Of an input, what its readers need it to be in; None: whatever it is, it is legal."""
    example: np.ndarray | None = None
    """Of an input, what it is when kernels are measured; None: anything in `range`."""
    items: tuple[int, ...] = (0,)
    """Of a plan for several items, those that it holds, in this order."""
    joined: Joined | None = None
    """Set if it has other items than any one value that is made, but is made of such."""
    is_kept: bool = False
    """Whether it is an input that sessions keep from call to call."""
    memory: int | None = None
    """Of state, an input that the program replaces, the memory in which it lies."""
    initial: np.ndarray | None = None
    """What state is at first; None: it has to be set."""
    in_place_of: int | None = None
    """The value whose bytes it takes over, once all who read those are done; None: of nobody."""
    rows: Rows | None = None
    """Set if it is rows of a routed buffer, whose shape it has: [rows, elements of a row]. At each
    capacity it has aliases of that capacity's shape. None: it is whole."""

    @property
    def bytes(self) -> int:
        """Size in bytes."""
        return tensor_bytes(self.shape, self.dtype)

    @cached_property
    def content(self) -> np.ndarray:
        """The bytes of a weight; uint8 [bytes]."""
        assert self.constant is not None
        return np.ascontiguousarray(self.constant).reshape(-1).view(np.uint8)

    @cached_property
    def digest(self) -> _Bytes:
        """What equal weights, and no others, have in common."""
        return hashlib.blake2b(self.content.data, digest_size=16).digest()

    @cached_property
    def sample(self) -> _Bytes:
        """What equal weights have in common: their size and some bytes all over them. Kept: every
        plan of a network asks for it again."""
        step = len(self.content) // _NUM_SAMPLES | 1  # odd: all bytes of its elements are met
        some = np.concatenate((self.content[::step], self.content[-_NUM_SAMPLES:]))
        return hashlib.blake2b(some.data, digest_size=16, key=b"%d" % len(self.content)).digest()


@dataclass(frozen=True)
class Variant:
    """What a call in a branch is at one capacity."""

    capacity: int
    """0: cells are whole tensors, and there are no rows; the only one then."""
    kernel: str
    reads: tuple[int, ...]
    """Values in the order of the kernel's arguments, in the shapes of that capacity."""
    writes: tuple[int, ...]
    kernel_in_place: str = ""
    """Symbol of the kernel for where it writes what it reads; "": there is none."""


@dataclass(frozen=True)
class KernelCall:
    """One kernel call."""

    kernel: str
    """Symbol in the library; "": what it reads is copied to what it writes."""
    segment: int
    task: str
    """The task it belongs to."""
    reads: tuple[int, ...]
    """Values in the order of the kernel's arguments; weights among them."""
    writes: tuple[int, ...]
    workspace: Workspace = Workspace()  # noqa: RUF009  (a frozen value)
    """Scratch memory of the kernel."""
    items: tuple[int, ...] = (0,)
    """Of a plan for several items, those that it serves as one batch."""
    at: tuple[int, int] | None = None
    """(step of the plan, device); None: those of the run of its task for its items."""
    exchange: int | None = None
    """The step of the collective whose members' values it reads; None: it reads its own."""
    in_place: tuple[tuple[int, int], ...] = ()
    """(place of an input, of an output) that may be the same bytes, if nobody else reads them."""
    kernel_in_place: str = ""
    """Symbol of the kernel for such a place; "": it is the same kernel."""
    branch: tuple[str, int] | None = None
    """(router's name, branch) of a call in a branch; None: it is in none."""
    variants: tuple[Variant, ...] = ()
    """Of a call in a branch, by ascending capacity. Its own kernel is the last one's, and it reads
    and writes what any of them does."""


@dataclass(frozen=True)
class RouterValues:
    """What a router makes, as values of the program."""

    router: Router
    loads: int
    offsets: int | None
    """None: its cells are whole tensors."""
    seats: int | None
    """None: there is no place that has them all, as that of a nested router."""
    num_rows: int
    """Of a routed buffer; 0 without offsets."""


@dataclass(frozen=True)
class LoadedWeight:
    """A weight that a step of the plan brings to where it is read."""

    weight: int
    value: int
    """What it is there."""
    memory: int
    step: int
    offset: int | None = None
    """First byte in the room for weights of that memory; None: in bytes of its own."""


@dataclass(frozen=True)
class KernelCalls:
    """The whole network as kernel calls; within a segment their order respects dependencies."""

    values: tuple[Value, ...]
    calls: tuple[KernelCall, ...]
    outputs: tuple[int, ...]
    """Values of the model's results."""
    kernels: dict[str, Kernel]
    """By symbol."""
    routers: tuple[RouterValues, ...] = ()
    """In the order of the graph."""
    loads: tuple[LoadedWeight, ...] = ()
    kept_states: tuple[tuple[int, int], ...] = ()
    """(value of an input, position of the output that replaces it) of what sessions keep."""
    max_sessions: int = 1
    """How many sessions memory is counted for."""

    @cached_property
    def weights(self) -> WeightLayout:
        """All weights, in one blob for all programs of these calls that are measured."""
        layout = WeightLayout()
        for value in self.values:
            if value.constant is not None:
                layout.offset(value)
        return layout

    @property
    def weight_offsets(self) -> dict[tuple[int, int], int]:
        """Where loaded weights lie that have a place in the room of their memory, by (value,
        memory), in bytes."""
        loads = self.loads
        return {(w.value, w.memory): w.offset for w in loads if w.offset is not None}


@dataclass(frozen=True)
class KernelCode:
    """The compiled code of one kernel of a CPU."""

    object_file: _Bytes
    hashes: tuple[int, ...]
    """As `Kernel.hashes`."""
    arguments: str = ""
    """As `Kernel.arguments`."""


@dataclass(frozen=True)
class Kernel:
    """One lowered kernel."""

    symbol: str
    functions: tvm.IRModule | None
    """None: only the compiled code is left, or a library of NVIDIA's computes it."""
    target: tvm.target.Target
    workspace: Workspace
    """Scratch memory that it allocates while it runs; none is known of a GPU's."""
    op: str = ""
    """Its ops in order, e.g. "nn.conv2d+add+nn.relu"; layouts are those of the target. Empty: it is
    no part of the network."""
    flops: int = 0
    """Floating-point operations of a call; 0: it only moves data, or they are not known."""
    ranges: tuple[Interval | None, ...] = ()
    """As `Value.range`, for each value that it reads; empty: not known."""
    function: tvm.relay.Function | None = field(default=None, compare=False, repr=False)
    """The fused Relay function that it was lowered from; None: it is from none, or it is lost."""
    code: KernelCode | None = field(default=None, compare=False, repr=False)
    """None: it is not compiled yet, or only a library has its code."""

    @cached_property
    def hashes(self) -> tuple[int, ...]:
        """The structural hashes of its lowered functions without their names, 64 bits each, in
        ascending order."""
        if self.code is not None:
            return self.code.hashes
        assert self.functions is not None  # it was lowered here
        return tuple(sorted(map(structural_hash, self.functions.functions.values())))

    @cached_property
    def arguments(self) -> str:
        """The device and the tensors that it takes: "cpu; float32 (1, 64); float32 (1, 64)".

        The executor compares them with all calls when it loads a program (`DescribeTensor` of
        `src/exec/devices/tvm_abi.h` writes tensors in this way). "": it checks its arguments in
        each call, because it has other checks too, or a shape that is not fixed.
        """
        if self.code is not None:
            return self.code.arguments
        if self.functions is None or any(map(_has_checks, self.functions.functions.values())):
            return ""
        entry = self.functions[self.symbol]
        buffers = [entry.buffer_map.get(parameter) for parameter in entry.params]
        if not all(buffer is not None and _is_plain(buffer) for buffer in buffers):
            return ""
        device = "cpu" if self.target.kind.name == "llvm" else self.target.kind.name
        return "; ".join([device, *map(_tensor_text, buffers)])


def structural_hash(function: tvm.ir.BaseFunc) -> int:
    """Return the hash of the code and parameters of a function of Relay or TIR, whatever its name;
    64 bits."""
    if function.attrs is not None and _NAME_ATTRIBUTE in function.attrs:
        function = function.without_attr(_NAME_ATTRIBUTE)
    return int(tvm.ir.structural_hash(function, map_free_vars=True)) % 2**64


def _has_checks(function: tir.PrimFunc) -> bool:
    nodes: list[tvm.Object] = []
    tir.stmt_functor.post_order_visit(function.body, nodes.append)
    return any(isinstance(node, tir.AssertStmt) for node in nodes)


def _is_plain(buffer: tir.Buffer) -> bool:
    """Whether it is a whole tensor of a fixed shape."""
    return not buffer.strides and all(isinstance(extent, tir.IntImm) for extent in buffer.shape)


def _tensor_text(buffer: tir.Buffer) -> str:
    return f"{buffer.dtype} ({', '.join(str(int(extent)) for extent in buffer.shape)})"
