"""The networks that are made in place: seeded, typed, compilable."""

from __future__ import annotations

import numpy as np
import onnx_models as om
import pytest
import tvm
from tvm import relay

from heteroplace.demo.networks import randomly_wired, small_cnn
from heteroplace.errors import GraphError
from heteroplace.parts.onnx.importer import count_calls
from heteroplace.relay.tasks.fold import fold_constants

pytestmark = pytest.mark.relay


@pytest.mark.parametrize("kind", ["ws", "er", "ba"])
@pytest.mark.parametrize("separable", [True, False])
def test_randomly_wired_network_is_typed(kind: str, separable: bool) -> None:
    net = randomly_wired(kind, nodes=12, channels=8, size=6, separable=separable, batch=2)
    result = net.mod["main"].body.checked_type
    assert [int(size) for size in result.shape] == [2, 8, 6, 6]
    assert net.input_shapes == {"image": (2, 3, 12, 12)}
    names = [var.name_hint for var in net.mod["main"].params]
    assert names == ["image", *net.params]


def test_randomly_wired_network_depends_on_the_seed_only() -> None:
    first, again = randomly_wired(nodes=12, channels=8), randomly_wired(nodes=12, channels=8)
    other = randomly_wired(nodes=12, channels=8, seed=2)
    assert tvm.ir.structural_equal(first.mod, again.mod)
    assert not tvm.ir.structural_equal(first.mod, other.mod)
    for name, value in first.params.items():
        np.testing.assert_array_equal(value.numpy(), again.params[name].numpy())


def test_every_node_of_the_random_graph_is_there() -> None:
    net = randomly_wired("ws", nodes=32, channels=8, size=4)
    convolutions = [name for name in net.params if name.endswith("pointwise.weight")]
    assert len(convolutions) == 32


@pytest.mark.costly(8)
def test_randomly_wired_network_compiles_at_full_optimisation_and_computes() -> None:
    net = randomly_wired("er", nodes=3, channels=8, size=4)
    bound = relay.build_module.bind_params_by_name(net.mod["main"], net.params)
    simple = relay.transform.SimplifyInference()(tvm.IRModule.from_expr(bound))
    image = np.random.default_rng(0).standard_normal((1, 3, 8, 8), dtype=np.float32)
    out = om.run_tvm(fold_constants(simple), {}, {"image": image}, opt_level=3)[0]
    assert np.all(np.isfinite(out))
    assert np.std(out) > 1e-3


def test_unknown_wiring_is_refused() -> None:
    with pytest.raises(GraphError, match="'xx': expected one of ws, er, ba"):
        randomly_wired("xx")


@pytest.mark.costly
def test_small_cnn_has_fewer_than_ten_ops() -> None:
    net = small_cnn()
    assert count_calls(net.mod["main"]) < 10
    out = om.run_tvm(net.mod, net.params, {"image": np.ones((1, 3, 16, 16), np.float32)})[0]
    assert out.shape == (1, 8, 16, 16)
    assert out.max() > 0
