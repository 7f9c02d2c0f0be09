"""TVM as heteroplace imports it: the same names, in less time."""

from __future__ import annotations

import json
import subprocess
import sys

_PRINT = """
import json, sys
import tvm.relay, tvm.contrib.graph_executor
modules = {name: sorted(vars(module)) for name, module in sorted(sys.modules.items())
           if name.startswith("tvm") and module is not None}
print(json.dumps([modules, "setuptools" in sys.modules, "distutils" in sys.modules]))
"""


def _printed(program: str) -> str:
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_no_name_is_missing_and_setuptools_is_left_out() -> None:
    plain, *_ = json.loads(_printed(_PRINT))
    ours, *others = json.loads(_printed(f"import heteroplace\n{_PRINT}"))
    assert others == [False, False]
    # The pass of heteroplace is one more name.
    plain["tvm.relay.transform"] = ours["tvm.relay.transform"]
    assert ours == plain


def test_versions_of_drivers_can_be_compared() -> None:
    program = (
        "import heteroplace; from tvm.relay.op.contrib.ethosn import LooseVersion as V"
        "; print(V('1.9') < V('1.10'))"
    )
    assert _printed(program) == "True\n"


def test_functions_that_are_added_later_are_listed() -> None:
    program = (
        "import heteroplace, tvm; tvm.register_func('later', print)"
        "; print('later' in tvm._ffi.registry.list_global_func_names())"
    )
    assert _printed(program) == "True\n"
