"""Passes within `types_once` make what they make without it, and infer fewer types."""

from __future__ import annotations

import pytest
import tvm
from tvm import relay

from heteroplace.relay.types_once import types_once
from tests.programs import run_python


def _network() -> tvm.IRModule:
    x = relay.var("x", shape=(1, 4, 8, 8))
    y = relay.reshape(relay.reshape(relay.nn.relu(x + relay.const(0.0)), (1, 256)), (4, 64))
    return tvm.IRModule.from_expr(relay.Function([x], y))


def _layouts(width: int) -> tvm.IRModule:
    """An op of each kind whose relation is slow."""
    nn, x, line = relay.nn, relay.var("x", shape=(1, 8, width, 8)), relay.var("y", shape=(1, 8, 9))
    block = relay.var("z", shape=(1, 8, 4, 4, 4))
    weights = [relay.var(f"w{rank}", shape=(8, 8, *([3] * rank))) for rank in (1, 2, 3)]
    offsets = relay.var("o", shape=(1, 18, width, 8))
    of_blocks = relay.layout_transform(x, "NCHW", "NCHW4c")
    results = [
        nn.conv1d(line, weights[0]),
        nn.conv2d(x, weights[1], padding=(1, 1)),
        nn.conv2d(x, weights[1], strides=(2, 2)),
        nn.conv3d(block, weights[2]),
        nn.conv1d_transpose(line, weights[0]),
        nn.conv2d_transpose(x, weights[1]),
        nn.conv3d_transpose(block, weights[2]),
        nn.deformable_conv2d(
            *(x, offsets, weights[1]), padding=(1, 1), channels=8, kernel_size=(3, 3)
        ),
        of_blocks,
        nn.contrib_conv2d_nchwc(
            *(of_blocks, relay.var("v", shape=(2, 2, 3, 3, 4, 4))),
            **{"channels": 8, "kernel_size": (3, 3)},
            **{"data_layout": "NCHW4c", "kernel_layout": "OIHW4i4o"},
        ),
        nn.contrib_depthwise_conv2d_nchwc(
            *(of_blocks, relay.var("u", shape=(2, 1, 3, 3, 1, 4))),
            **{"channels": 8, "groups": 8, "kernel_size": (3, 3)},
            **{"data_layout": "NCHW4c", "kernel_layout": "OIHW1i4o"},
        ),
        relay.image.resize2d(x, (16, 16)),
        nn.upsampling(x, 2, 2),
        nn.depth_to_space(x, 2),
    ]
    body = relay.Tuple(results)
    return tvm.IRModule.from_expr(relay.Function(relay.analysis.free_vars(body), body))


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


def test_types_of_ops_with_layouts_are_those_of_tvm() -> None:
    """In a process of its own, as relations stay changed once they are."""
    run_python("import test_types_once; test_types_once.compare_types()")


def compare_types() -> None:
    mods = [_layouts(width) for width in (8, 6, 8)]
    infer = relay.transform.InferType()
    expected = [infer(mod)["main"].ret_type for mod in mods]
    with types_once():
        for _ in range(2):  # inferred, and remembered
            assert [infer(mod)["main"].ret_type for mod in mods] == expected
    assert expected[0] != expected[1]


def test_a_weight_without_a_type_gets_one() -> None:
    x, w = relay.var("x", shape=(1, 4, 8, 8)), relay.var("w")
    with types_once():
        for channels in (3, 5):
            call = relay.nn.conv2d(x, w, channels=channels, kernel_size=(3, 3))
            mod = relay.transform.InferType()(tvm.IRModule.from_expr(relay.Function([x, w], call)))
            assert mod["main"].params[1].checked_type == relay.TensorType((channels, 4, 3, 3))
            assert mod["main"].ret_type == relay.TensorType((1, channels, 6, 6))


def test_a_wrong_weight_is_refused_each_time() -> None:
    x = relay.var("x", shape=(1, 4, 8, 8))
    call = relay.nn.conv2d(x, relay.var("w", shape=(3, 5, 3, 3)), channels=3, kernel_size=(3, 3))
    with types_once():
        for _ in range(2):
            with pytest.raises(tvm.error.DiagnosticError):
                relay.transform.InferType()(tvm.IRModule.from_expr(call))


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
