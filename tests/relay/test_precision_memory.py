"""A memory limit: a network that does not fit in float32 fits with smaller weights."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx_models import make_model, node
from relay_models import cpu_cluster, random_costs
from test_bfloat16 import on_bfloat16

import heteroplace as hp
from heteroplace.errors import InfeasibleError

pytestmark = pytest.mark.relay

ROWS, SIZE, LAYERS = 4, 256, 4
FLOAT32_BYTES = 4 * LAYERS * SIZE * SIZE
LIMIT = f"{FLOAT32_BYTES * 2 // 3} B"
TOO_LITTLE = r"memories together lack 3.* It needs 1\.0 MiB of weights and .* has 682\.7 KiB"


def layers(*, is_quantised: bool = False) -> onnx.ModelProto:
    """Products one after the other; quantised: each dequantises its weights of 8 bits first."""
    random = np.random.default_rng(0)
    nodes, weights = [], dict[str, Any]()
    for layer in range(LAYERS):
        source = f"a{layer}" if layer else "x"
        output = f"a{layer + 1}" if layer + 1 < LAYERS else "y"
        weight = (random.standard_normal((SIZE, SIZE)) / 16).astype("float32")
        if is_quantised:
            scale = np.abs(weight).max(0) / 127
            weights[f"q{layer}"] = np.round(weight / scale).astype("int8")
            weights[f"s{layer}"] = scale.astype("float32")
            nodes.append(node("DequantizeLinear", f"q{layer} s{layer}", f"w{layer}", axis=1))
        else:
            weights[f"w{layer}"] = weight
        nodes.append(node("MatMul", f"{source} w{layer}", output))
    return make_model(nodes, {"x": [ROWS, SIZE]}, ["y"], weights)


def compiled(model: onnx.ModelProto, **options: Any) -> hp.Executable:
    cluster = cpu_cluster()
    limits = dict.fromkeys((device.name for device in cluster.devices), LIMIT)
    return hp.compile(
        model, cluster, costs=random_costs, solver="heft", max_memory=limits, **options
    )


def test_float32_does_not_fit_and_the_message_says_what_it_needs() -> None:
    with pytest.raises(InfeasibleError, match=TOO_LITTLE):
        compiled(layers())


@on_bfloat16
@pytest.mark.costly
def test_bfloat16_fits() -> None:
    executable = compiled(layers(), precision="bf16")
    assert executable.memory[0].weights_bytes == FLOAT32_BYTES // 2
    assert executable.verification is not None and executable.verification.is_verified
    (output,) = hp.Executor(executable).run(x=np.ones((ROWS, SIZE), np.float32))
    assert np.isfinite(output).all()


@on_bfloat16
@pytest.mark.parametrize("precision", [{"*": "bf16", "dense.1": "float32"}, "auto"])
def test_a_precision_by_layer_counts_weights_as_in_float32(precision: object) -> None:
    with pytest.raises(InfeasibleError, match=TOO_LITTLE):
        compiled(layers(), precision=precision)


@pytest.mark.costly
def test_dequantised_weights_of_8_bits_fit() -> None:
    executable = compiled(layers(is_quantised=True))
    assert executable.memory[0].weights_bytes < FLOAT32_BYTES * 0.27
    assert executable.verification is not None and executable.verification.is_verified
