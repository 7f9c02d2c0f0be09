"""corner_scatters: a scatter of fewer places than its data has writes where they say."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from relay_models import cpu_cluster, module, random_costs, var
from tvm import relay

import heteroplace as hp
from heteroplace.relay.tasks.corner_scatters import CornerScatters

pytestmark = pytest.mark.relay

SHAPE = (3, 4, 2, 5)


def scatter(axis: int, corner: tuple[int, ...]) -> tuple[tvm.IRModule, np.ndarray]:
    """Ones added to places of a tensor, and how many there are at each."""
    places = np.random.default_rng(axis).integers(0, SHAPE[axis], corner)
    expected = np.zeros(SHAPE, "float32")
    for at, place in np.ndenumerate(places):
        expected[(*at[:axis], place, *at[axis + 1 :])] += 1
    x, ones = var("x", SHAPE), relay.const(np.ones(corner, "float32"))
    return module([x], relay.scatter_elements(x, relay.const(places), ones, axis, "add")), expected


@pytest.mark.costly(8)
@pytest.mark.parametrize("corner", [(2, 3, 1, 4), (3, 4, 1, 5), (3, 4, 2, 4), (3, 2, 2, 5)])
@pytest.mark.parametrize("axis", range(4))
def test_ones_are_added_where_the_places_are(axis: int, corner: tuple[int, ...]) -> None:
    mod, expected = scatter(axis, corner)
    with tvm.transform.PassContext(opt_level=3):
        executable = hp.build(mod, cpu_cluster(), {}, costs=random_costs)
    (found,) = hp.Executor(executable).run(x=np.zeros(SHAPE, "float32"))
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("axis", range(4))
def test_all_places_stay_one_scatter(axis: int) -> None:
    mod = relay.transform.InferType()(scatter(axis, SHAPE)[0])
    assert tvm.ir.structural_equal(CornerScatters()(mod), mod)
    again = relay.transform.InferType()(CornerScatters()(scatter(axis, (2, 3, 1, 4))[0]))
    assert tvm.ir.structural_equal(CornerScatters()(again), again)
