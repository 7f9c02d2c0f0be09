"""`python -OO` strips docstrings, and TVM reads some while it is imported."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.programs import environment


def run_stripped(program: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-OO", "-c", program],
        capture_output=True,
        text=True,
        check=False,
        env=environment() | variables,
    )


def test_a_module_that_reads_docstrings_has_them_and_others_have_none(tmp_path: Path) -> None:
    folder = tmp_path / "tvm" / "topi"
    folder.mkdir(parents=True)
    (tmp_path / "tvm" / "__init__.py").touch()
    (folder / "__init__.py").touch()
    (folder / "generic_op_impl.py").write_text('def f():\n    "Of {op}."\nf.__doc__.format(op=1)\n')
    (folder / "other.py").write_text('def f():\n    "Of {op}."\n')
    program = "import heteroplace, tvm.topi.generic_op_impl as one, tvm.topi.other as other\n"
    program += "print(one.f.__doc__, other.f.__doc__)"
    path = os.pathsep.join([str(tmp_path), environment().get("PYTHONPATH", "")])
    done = run_stripped(program, PYTHONPATH=path)
    assert (done.stdout, done.stderr) == ("Of {op}. None\n", "")


@pytest.mark.relay
@pytest.mark.costly(8)
def test_a_module_is_placed_without_docstrings() -> None:
    program = """
import heteroplace, tvm
from tvm import relay
x = relay.var("x", shape=(2, 3))
mod = tvm.IRModule.from_expr(relay.Function([x], relay.nn.relu(x + relay.const(1.0))))
built = heteroplace.build(mod, "local", solver="heft", store="off")
print(len(built.solution.plan.steps) > 0)
"""
    done = run_stripped(program)
    assert done.stdout == "True\n", done.stderr
