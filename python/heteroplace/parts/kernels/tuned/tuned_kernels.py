"""A fused function + what a tuner found -> its kernel: TVM's MetaSchedule, a trace at a time.

MetaSchedule schedules the function's tensor program before any schedule of TVM or of ours: a trace
is the list of the steps, with what was drawn for each. It is replayed on the program that the
function has here, so whatever a trace is, the kernel computes what the function does; where it does
not fit, it is an error.
"""

from __future__ import annotations

import hashlib
import json

import tvm
from tvm import relay
from tvm.relay.backend.te_compiler import lower_to_primfunc

from heteroplace.errors import LoweringError
from heteroplace.lower.kernels import structural_hash
from heteroplace.tir.exact_floats import exact_floats

_DIGEST_BYTES, _TARGET_BYTES = 12, 6
_ENTRY = "main"


def tuning_digest(function: relay.Function) -> str:
    """Return what equal fused functions have in common, under one version of TVM, in hex."""
    text = f"{structural_hash(function):016x} {tvm.__version__}"
    return hashlib.blake2b(text.encode(), digest_size=_DIGEST_BYTES).hexdigest()


def tuned_symbol(digest: str, target: tvm.target.Target) -> str:
    """Return the name of the kernel of a `tuning_digest` for a target: each has its own code."""
    text = str(target).encode()
    return f"tuned_{digest}_{hashlib.blake2b(text, digest_size=_TARGET_BYTES).hexdigest()}"


def tensor_program(function: relay.Function, target: tvm.target.Target) -> tvm.IRModule | None:
    """Return the unscheduled program of a fused function; None: no tuner of TVM can schedule it.

    That is so where an op is written as a loop nest of its own, or has no strategy for the target.
    """
    try:
        with target:
            lowered = lower_to_primfunc(function, target)
    except (RuntimeError, ValueError, TypeError, AttributeError):
        return None  # as in `lower_kernel`: TVM fails by all of these where it knows no way
    if lowered is None:
        return None
    return tvm.IRModule({_ENTRY: lowered.with_attr("global_symbol", _ENTRY)})


def tuned_functions(
    function: relay.Function, target: tvm.target.Target, trace: str, symbol: str
) -> tvm.IRModule:
    """Return the lowered functions of a kernel under a name.

    Raises
    ------
    LoweringError
        The trace is of another function, or is damaged.
    """
    program = tensor_program(function, target)
    try:
        if program is None:
            raise ValueError("the function has no program that could be scheduled")
        schedule = tvm.tir.Schedule(program)
        tvm.tir.schedule.Trace.apply_json_to_schedule(json.loads(trace), schedule)
    except (RuntimeError, ValueError, TypeError, AttributeError, IndexError) as err:
        raise LoweringError(
            f"the tuned kernel {symbol} cannot be made: its trace does not fit the function "
            f"({str(err).strip().splitlines()[-1]}); remove what was tuned (heteroplace "
            f"costs forget --tuned), or give tuned='off'"
        ) from err
    return lowered_schedule(schedule, symbol)


def lowered_schedule(schedule: tvm.tir.Schedule, symbol: str) -> tvm.IRModule:
    """Return the lowered functions of a schedule, the entry under a name."""
    with exact_floats():
        lowered = tvm.lower(schedule.mod)
    entry = lowered[_ENTRY].with_attr("global_symbol", symbol)
    return tvm.IRModule({symbol: entry})
