"""Tasks and tensors: what a `TaskGraph` is made of. Ids are positions in its tuples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

_HEAVY_OPS = ("conv", "dense", "matmul", "lstm", "pool", "softmax", "norm")


def main_op(ops: Sequence[str]) -> str:
    """Return the op that names a group of ops: the first heavy one, else the last.

    >>> main_op(["multiply", "nn.conv2d", "nn.relu"]), main_op(["add", "nn.relu"])
    ('nn.conv2d', 'nn.relu')
    """
    heavy_ops = (op for word in _HEAVY_OPS for op in ops if word in op)
    return next(heavy_ops, ops[-1])


@dataclass(frozen=True)
class Task:
    """A group of ops that is placed as one unit."""

    name: str
    """Unique in its graph and stable from run to run."""
    op: str
    """The ops inside, joined by "+", e.g. "nn.conv2d+nn.relu"."""
    members: tuple[str, ...] = ()
    """Names of the ops inside, for provenance."""
    flops: int = 0
    """Floating point operations of one run (a multiply-add counts 2)."""
    weight_bytes: int = 0
    """Constants it reads, resident on its device for as long as the program is loaded. The state
    of sessions that it replaces is among them (`graphs/resident_state.py`)."""
    workspace_bytes: int = 0
    """Scratch memory while it runs."""
    devices: tuple[str, ...] | None = None
    """Names of the devices it may run on; None: any that has a cost for it."""
    together: str | None = None
    """Label shared by the tasks that must be on one device; None: free."""
    adds: bool = False
    """Its shared outputs are added to: each run adds its items' part, the first one in a memory to
    zero. False: each run makes them anew."""
    weights: tuple[tuple[str, int], ...] = ()
    """(name, bytes) of constants that it shares with other tasks (tied embeddings), beside
    `weight_bytes`: they are once in a memory, whatever reads them there."""
    branch: tuple[str, int] | None = None
    """(router's name, branch) if it runs only for the cells that this router sends to this branch,
    or not at all; of nested routers the innermost. None: it is run for every item. It then reads
    the router's loads."""


@dataclass(frozen=True)
class Tensor:
    """A value made by a task, or an input of the model."""

    name: str
    producer: int | None
    """Id of the task that makes it; None: a model input."""
    index: int
    """Which output of its producer (or which input of the model) it is."""
    shape: tuple[int, ...]
    dtype: str
    bytes: int
    consumers: tuple[int, ...] = ()
    """Ids of the tasks that read it, ascending, each once."""
    shared: bool = False
    """One value for all items in a memory: what runs of several items add up to (a gradient), or a
    weight that a step updates."""
    buffer: str | None = None
    """Name of the routed buffer in which it lies: rows of the cells of one branch, which begin
    where the router says in the run. Its bytes are those of as many rows as the router has cells.
    None: a place of its own, always whole."""
