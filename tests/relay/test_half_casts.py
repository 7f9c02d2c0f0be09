"""exact_math: float64 becomes float16 by way of float32, in vectors and in single numbers."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from relay_models import cpu_cluster, module, random_costs, var
from tvm import relay

import heteroplace as hp

pytestmark = pytest.mark.relay


@pytest.mark.parametrize("kernels", ["auto", "tvm"])
def test_float64_to_float16(kernels: str) -> None:
    x, one = var("x", (3, 37), "float64"), var("one", (), "float64")
    body = relay.Tuple([relay.cast(relay.add(x, one), "float16"), relay.cast(one, "float16")])
    mod = module([x, one], body)
    with tvm.transform.PassContext(opt_level=3):
        executable = hp.build(
            mod, cpu_cluster(), {}, costs=random_costs, solver="heft", kernels=kernels
        )
    inputs = {"x": np.random.default_rng(0).standard_normal((3, 37)) * 100, "one": np.array(1.5)}
    inputs["x"][0, :4] = [np.nan, np.inf, -1e9, 2e-7]
    found = hp.Executor(executable).run(**inputs)
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(found[0], (inputs["x"] + 1.5).astype(np.float16))
    np.testing.assert_array_equal(found[1], np.float16(1.5))
