"""Kernels that must not run on a kind of device, whatever they would cost there."""

from __future__ import annotations

from heteroplace.model.op_traits.op_table import ops_where

UNSAFE_ON_CUDA = ops_where(lambda op: not op.is_safe_on_cuda)
"""Relay ops whose CUDA kernels in TVM may never end."""


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
