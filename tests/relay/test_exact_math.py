"""exact_math: kernels for GPUs call functions that are right for all numbers, not short cuts."""

from __future__ import annotations

import pytest
import tvm
from relay_models import CUDA, TARGET, module, var
from tvm import relay, te, tir

from heteroplace.lower.lower_kernel import finished
from heteroplace.tir.exact_math import EXACT

pytestmark = pytest.mark.relay

SHORT_CUTS = {"sin", "cos", "exp", "log", "log2", "log10", "sigmoid"}


def lowered(name: str, dtype: str) -> tvm.IRModule:
    x = te.placeholder((8, 4), dtype, "x")
    y = te.compute(x.shape, lambda *at: getattr(te, name)(x[at]), "y")
    schedule = te.create_schedule(y.op)
    schedule[y].vectorize(schedule[y].op.axis[1])
    return tvm.lower(schedule, [x, y])


def called(functions: tvm.IRModule) -> set[str]:
    """The functions of numbers that are called: intrinsics of TVM, and names of C."""
    found: set[str] = set()

    def visit(node: tvm.Object) -> None:
        if isinstance(node, tir.Call):
            is_extern = node.op.name == "tir.call_pure_extern"
            found.add(node.args[0].value if is_extern else node.op.name)

    for function in functions.functions.values():
        tir.stmt_functor.post_order_visit(function.body, visit)
    return found


@pytest.mark.parametrize("name", sorted(SHORT_CUTS))
def test_kernels_of_gpus_take_no_short_cut(name: str) -> None:
    functions = lowered(name, "float32")
    x = var("x")
    function = module([x], relay.sin(x))["main"]
    on_gpu = called(finished(functions, function, tvm.target.Target(CUDA)))
    exact = EXACT["tir.exp" if name == "sigmoid" else f"tir.{name}"]
    assert exact in on_gpu
    assert not {each for each in on_gpu if each.removeprefix("tir.") in SHORT_CUTS}
    on_cpu = called(finished(functions, function, tvm.target.Target(TARGET)))
    assert exact not in on_cpu


def test_other_types_have_no_short_cut() -> None:
    x = var("x")
    function = module([x], relay.sin(x))["main"]
    functions = lowered("sin", "float64")
    assert called(finished(functions, function, tvm.target.Target(CUDA))) == {"tir.sin"}
