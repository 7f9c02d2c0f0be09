"""Passes within `types_once` make what they make without it, and infer fewer types."""

from __future__ import annotations

import pytest
import tvm
from tvm import relay

from heteroplace.relay.types_once import types_once


def _network() -> tvm.IRModule:
    x = relay.var("x", shape=(1, 4, 8, 8))
    y = relay.reshape(relay.reshape(relay.nn.relu(x + relay.const(0.0)), (1, 256)), (4, 64))
    return tvm.IRModule.from_expr(relay.Function([x], y))


def _passes() -> tvm.transform.Pass:
    transform = relay.transform
    steps = [transform.InferType(), transform.SimplifyExpr(), transform.FoldConstant()]
    return tvm.transform.Sequential([*steps, transform.InferType()])


def test_passes_make_the_same_module() -> None:
    with tvm.transform.PassContext(opt_level=3):
        expected = _passes()(_network())
        with types_once():
            found = _passes()(_network())
    assert tvm.ir.structural_equal(found, expected)
    assert found["main"].body.checked_type == expected["main"].body.checked_type


def test_options_in_force_stay_in_force() -> None:
    config = {"relay.FuseOps.max_depth": 7}
    with tvm.transform.PassContext(opt_level=2, disabled_pass=["FoldConstant"], config=config):
        with types_once():
            inner = tvm.transform.PassContext.current()
            assert int(inner.opt_level) == 2
            assert [str(name) for name in inner.disabled_pass] == ["FoldConstant"]
            assert int(inner.config["relay.FuseOps.max_depth"]) == 7
        assert not len(tvm.transform.PassContext.current().instruments or ())


def test_only_what_is_typed_is_left_as_it_is() -> None:
    infer = relay.transform.InferType()
    with types_once():
        typed = infer(_network())
        assert infer(typed)["main"].same_as(typed["main"])
        body = relay.nn.relu(typed["main"].body)
        other = tvm.IRModule.from_expr(relay.Function(typed["main"].params, body))
        assert infer(other)["main"].ret_type == relay.TensorType((4, 64))


def _calling(count: int) -> tvm.IRModule:
    """Its `main` calls a function that returns `count` numbers."""
    x, y = relay.var("x", shape=(1,)), relay.var("y", shape=(1,))
    called, type_ = relay.GlobalVar("called"), relay.TensorType((count,))
    function = relay.Function([x], relay.tile(x, (count,)), type_)
    main = relay.Function([y], relay.Call(called, [y]))
    return tvm.IRModule({called: function, relay.GlobalVar("main"): main})


def test_a_function_that_calls_another_is_typed_again_when_that_changes() -> None:
    infer = relay.transform.InferType()
    with types_once():
        typed = infer(_calling(2))
        called = typed.get_global_var("called")
        other = tvm.IRModule({**dict(typed.functions.items()), called: _calling(3)["called"]})
        with pytest.raises(tvm.error.DiagnosticError):  # the call was typed as of 2 numbers
            infer(other)


def test_who_looks_at_passes_sees_all_of_them() -> None:
    seen: list[str] = []

    @tvm.instrument.pass_instrument
    class Noted:
        def run_before_pass(self, mod: tvm.IRModule, info: tvm.transform.PassInfo) -> None:
            seen.append(info.name)

    with tvm.transform.PassContext(instruments=[Noted()]), types_once():
        infer = relay.transform.InferType()
        infer(infer(_network()))
    assert seen == ["InferType"] * 2
