"""Networks in full size have as many parameters as the published ones."""

from __future__ import annotations

import math

import pytest

pytest.importorskip("onnx")

from zoo.models.full_size import FULL_SIZE

PUBLISHED = {
    "efficientnet_b0": 5_288_548,
    "mobilenet_v3_large": 5_483_032,
    "convnext_tiny": 28_589_128,
    "vit_b_16": 86_567_656,
    "swin_t": 28_288_354,
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_are_as_many_as_published(name: str) -> None:
    # The gates' inner layers are rounded otherwise in some implementations.
    assert num_parameters(name) == pytest.approx(PUBLISHED[name], rel=1e-2)


def num_parameters(name: str) -> int:
    """Weights and biases; the statistics of batch norms are no parameters."""
    graph = FULL_SIZE[name](None).graph
    sizes = {
        each.name: math.prod(size.dim_value for size in each.type.tensor_type.shape.dim)
        for each in graph.input
    }
    statistics = (".mean", ".var")
    return sum(size for at, size in sizes.items() if at != "image" and not at.endswith(statistics))


def test_sizes_of_the_quicker_networks() -> None:
    sizes = {
        name: [
            tuple(size.dim_value for size in each.type.tensor_type.shape.dim) for each in outputs
        ]
        for name in ("unet_128", "yolo_320", "t5_encoder_small")
        if (outputs := FULL_SIZE[name](0).graph.output)
    }
    assert sizes == {
        "unet_128": [(1, 2, 128, 128)],
        "yolo_320": [(1, 84, 2000), (1, 80, 2000)],
        "t5_encoder_small": [(1, 128, 512)],
    }
