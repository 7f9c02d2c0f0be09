"""Kernels that must not run on a kind of device, whatever they would cost there."""

from __future__ import annotations

UNSAFE_ON_CUDA = frozenset(
    {
        "sort",
        "argsort",
        "topk",
        "unique",
        "vision.non_max_suppression",
        "vision.all_class_non_max_suppression",
        "vision.proposal",
    }
)
"""Relay ops whose CUDA kernels in TVM call `__syncthreads` in branches that not all threads of a
block take, or call such a kernel. CUDA leaves the result undefined; on an H100 they never end."""


def why_barred(op: str, kind: str) -> str:
    """Return why a task must not run on a kind of device; "": it may.

    Parameters
    ----------
    op
        Of the task: the ops inside, joined by "+".
    kind
        Of the device.

    Examples
    --------
    >>> why_barred("multiply+topk", "cuda")
    "TVM's CUDA kernel for topk may never end; run it on a CPU"
    >>> why_barred("multiply+topk", "cpu")
    ''
    """
    if kind != "cuda":
        return ""
    unsafe = [name for name in op.split("+") if name in UNSAFE_ON_CUDA]
    if not unsafe:
        return ""
    names = ", ".join(dict.fromkeys(unsafe))
    return f"TVM's CUDA kernel for {names} may never end; run it on a CPU"
