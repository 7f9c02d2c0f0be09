"""quiet_argmax: argmax and argmin compile without TVM's warning, to TVM's own kernels."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import onnx
import onnx_models as om
import pytest
import tvm
from relay_models import cpu_cluster, mixed_cluster, module, random_costs, stock_cluster, var
from tvm import relay, te
from tvm.relay.op.strategy import generic

import heteroplace as hp
from heteroplace.tir.quiet_argmax import reading_both
from tests.programs import environment

pytestmark = pytest.mark.relay


@pytest.mark.parametrize("cluster", [cpu_cluster, stock_cluster, mixed_cluster])
def test_tvm_prints_nothing_while_it_compiles(cluster, capfd: pytest.CaptureFixture[str]) -> None:
    x = var("x", (7, 9))
    first = relay.argmax(relay.exp(x), axis=1, keepdims=True)
    last = relay.cast(relay.argmin(x, axis=[1], select_last_index=True), "float32")
    pins = {"*": "gpu0"} if cluster is mixed_cluster else {}
    with tvm.transform.PassContext(opt_level=3):
        hp.build(
            module([x], relay.Tuple([first, relay.negative(last)])),
            cluster(),
            {},
            costs=random_costs,
            pin=pins,
        )
    assert capfd.readouterr().err == ""


@pytest.mark.costly(5)
def test_the_compile_command_prints_no_path_of_another_computer(tmp_path: Path) -> None:
    model = om.make_model([om.node("ArgMax", "x", "y", axis=1)], {"x": (3, 5)}, ["y"])
    onnx.save(model, tmp_path / "m.onnx")
    done = subprocess.run(
        [sys.executable, "-m", "heteroplace.cli.main", "compile", "m.onnx", "-o", "m.so"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        env=environment(),
    )
    assert done.returncode == 0, done.stderr
    assert ".cc:" not in done.stderr


@pytest.mark.parametrize("target", ["llvm", "cuda -arch=sm_80"])
@pytest.mark.parametrize("name", ["argmax", "argmin"])
@pytest.mark.parametrize("dtype", ["float32", "float16", "uint8", "bool"])
@pytest.mark.parametrize("axes", [None, [1], [0, 2]])
def test_the_kernels_are_those_of_tvm(
    target: str, name: str, dtype: str, axes: list[int] | None
) -> None:
    attrs = getattr(relay, name)(var("x", (3, 5, 7), dtype), axes).attrs
    x = te.placeholder((3, 5, 7), dtype, "x")
    (of_tvm,) = tvm.ir.Op.get(name).get_attr("FTVMCompute")(attrs, [x], None)
    with tvm.target.Target(target, host="llvm") as device:
        first, second = (
            tvm.lower(generic.schedule_reduce(attrs, [result], device), [x, result])["main"].body
            for result in (of_tvm, reading_both(of_tvm))
        )
    assert tvm.ir.structural_equal(first, second, map_free_vars=True)
