"""`bench layouts` on small convolutions."""

from __future__ import annotations

import pytest
from relay_models import cpu_cluster

from heteroplace.bench import layouts
from heteroplace.bench.layouts import MOST_OF_A_KIND, Convolution
from heteroplace.bench.models.catalogue import load_model
from heteroplace.model.hosts import with_devices

pytestmark = pytest.mark.relay

PRODUCT = Convolution((1, 32, 6, 6), (64, 32, 1, 1), (1, 1), (0, 0, 0, 0), (1, 64, 6, 6))
WIDE = Convolution((1, 32, 6, 6), (24, 32, 3, 3), (2, 2), (1, 1, 1, 1), (1, 24, 3, 3))


def test_convolutions_of_each_kind_have_most_operations() -> None:
    found = layouts.main_convolutions(load_model("mobilenet_v3"))
    for kind, most in MOST_OF_A_KIND.items():
        work = [each.products * count for each, count in found if each.kind == kind]
        assert len(work) <= most
        assert work == sorted(work, reverse=True)
    assert {each.kind for each, _ in found} >= {"product", "strided"}


def test_kinds_and_numbers_of_products() -> None:
    assert (PRODUCT.kind, PRODUCT.products) == ("product", 64 * 32 * 36)
    assert (WIDE.kind, WIDE.products) == ("strided", 24 * 9 * 32 * 9)


@pytest.mark.costly
def test_a_convolution_has_a_time_in_each_layout_in_which_it_can_be() -> None:
    cluster = with_devices(cpu_cluster(), [0])
    product = layouts.measured(PRODUCT, cluster)
    for layout in ("blocks", "double", "rows"):
        assert product[layout] > 0 and product[f"change_{layout}"] > 0
    assert product["planes"] > 0 and product["change_planes"] == 0
    wide = layouts.measured(WIDE, cluster)
    assert wide["blocks"] > 0
    assert [wide[layout] for layout in ("double", "rows", "planes")] == [None] * 3
    assert "64x32x1x1" in layouts.table([product, wide])
