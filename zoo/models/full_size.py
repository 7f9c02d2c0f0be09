"""The published sizes of networks whose builders are in the files beside.

- `efficientnet_b0`: EfficientNet, table 1; `mobilenet_v3_large`: MobileNetV3, table 1
- `convnext_tiny`: ConvNet for the 2020s, section 3; `swin_t`: Swin Transformer, section 3.3
- `vit_b_16`: ViT, table 1, base, patches of 16
- `t5_encoder_small`: T5, section 3.1.2, small
- `mobilenet_int8`: MobileNet v1 with QDQ
- `unet_128` and `yolo_320`: of a size that a CPU runs in 10 ms
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import onnx

from zoo.models import attention, convolutional, low_precision
from zoo.models.convolutional import EfficientRow, MobileRow

T5_VOCABULARY = 8192
"""Token ids of the `t5_encoder_small` are below it."""


def _efficientnet_b0_rows() -> list[EfficientRow]:
    stages = [
        (1, 3, 1, 16, 1),
        (6, 3, 2, 24, 2),
        (6, 5, 2, 40, 2),
        (6, 3, 2, 80, 3),
        (6, 5, 1, 112, 3),
        (6, 5, 2, 192, 4),
        (6, 3, 1, 320, 1),
    ]
    rows: list[EfficientRow] = []
    channels = 32
    for expansion, kernel, stride, num_out, count in stages:
        for index in range(count):
            wide = channels * expansion
            rows.append(((channels, wide, num_out), kernel, 1 if index else stride))
            channels = num_out
    return rows


_MOBILENET_V3_LARGE_ROWS: tuple[MobileRow, ...] = (
    ((16, 16, 16), 3, 1, "Relu", False),
    ((16, 64, 24), 3, 2, "Relu", False),
    ((24, 72, 24), 3, 1, "Relu", False),
    ((24, 72, 40), 5, 2, "Relu", True),
    ((40, 120, 40), 5, 1, "Relu", True),
    ((40, 120, 40), 5, 1, "Relu", True),
    ((40, 240, 80), 3, 2, "HardSwish", False),
    ((80, 200, 80), 3, 1, "HardSwish", False),
    ((80, 184, 80), 3, 1, "HardSwish", False),
    ((80, 184, 80), 3, 1, "HardSwish", False),
    ((80, 480, 112), 3, 1, "HardSwish", True),
    ((112, 672, 112), 3, 1, "HardSwish", True),
    ((112, 672, 160), 5, 2, "HardSwish", True),
    ((160, 960, 160), 5, 1, "HardSwish", True),
    ((160, 960, 160), 5, 1, "HardSwish", True),
)

FULL_SIZE: Mapping[str, Callable[[int], onnx.ModelProto]] = {
    "efficientnet_b0": partial(
        convolutional.efficientnet,
        size=224,
        rows=_efficientnet_b0_rows(),
        ends=(1280, 1000),
        squeeze=24,
    ),
    "mobilenet_v3_large": partial(
        convolutional.mobilenet_v3,
        size=224,
        rows=_MOBILENET_V3_LARGE_ROWS,
        ends=(960, 1280, 1000),
    ),
    "convnext_tiny": partial(
        convolutional.convnext,
        size=224,
        widths=(96, 192, 384, 768),
        depths=(3, 3, 9, 3),
        classes=1000,
    ),
    "unet_128": partial(convolutional.unet, size=128, widths=(16, 32, 64, 128)),
    "yolo_320": partial(convolutional.yolo, size=320, widths=(16, 32, 64, 128), classes=80),
    "vit_b_16": partial(
        attention.vit, size=224, patch=16, width=768, heads=12, layers=12, classes=1000
    ),
    "swin_t": partial(
        attention.swin,
        size=224,
        window=7,
        width=96,
        heads=(3, 6, 12, 24),
        depths=(2, 2, 6, 2),
        classes=1000,
    ),
    "t5_encoder_small": partial(
        attention.t5_encoder, width=512, heads=8, tokens=128, layers=6, vocabulary=T5_VOCABULARY
    ),
    "mobilenet_int8": low_precision.mobilenet_int8,
}
"""By name the maker of an ONNX model from a seed."""
