"""Ops with windows, and samples of maps, for random chains: convolutions, pools, resizes."""

from __future__ import annotations

from typing import Any

import numpy as np
from random_onnx import Chain


def _divisors(number: int) -> list[int]:
    return [size for size in range(1, number + 1) if number % size == 0]


def _window(chain: Chain, kernel: list[int]) -> dict[str, Any]:
    """Strides, dilations and padding of a window."""
    attributes: dict[str, Any] = {}
    if chain.maybe():
        attributes["strides"] = [chain.one_of((1, 1, 2, 3)) for _ in kernel]
    if chain.maybe(0.3):
        attributes["dilations"] = [chain.one_of((1, 2)) for _ in kernel]
    way = chain.one_of(("pads", "same pads", "auto", "none"))
    if way == "pads":
        attributes["pads"] = [chain.random.randint(0, min(2, size - 1)) for size in kernel * 2]
    elif way == "same pads":
        attributes["pads"] = [(size - 1) // 2 for size in kernel * 2]
    elif way == "auto":
        attributes["auto_pad"] = chain.one_of(("SAME_UPPER", "SAME_LOWER", "VALID"))
    return attributes


def conv(chain: Chain) -> bool:
    """Of one to three axes, in groups."""
    if chain.rank < 3:
        return False
    channels = chain.shape[1]
    group = chain.one_of([*_divisors(channels), 1, 1, 1, channels])
    made = group * chain.one_of((1, 1, 2, 3, 4, 8))
    kernel = [chain.one_of((1, 1, 2, 3, 3, 3, 5)) for _ in chain.shape[2:]]
    scale = float(np.prod(kernel) * channels / group) ** -0.5
    operands = [chain.value, chain.floats(made, channels // group, *kernel, scale=scale)]
    if chain.maybe():
        operands.append(chain.floats(made))
    attributes = _window(chain, kernel)
    if group != 1:
        attributes["group"] = group
    if chain.maybe():
        attributes["kernel_shape"] = kernel
    return chain.then("Conv", operands, **attributes)


def conv_transpose(chain: Chain) -> bool:
    """Padded in any of its ways; dilated kernels are refused."""
    if chain.rank < 3:
        return False
    channels = chain.shape[1]
    group = chain.one_of([*_divisors(channels), 1, 1, 1])
    made = chain.one_of((1, 2, 3, 4, 8))
    kernel = [chain.one_of((1, 2, 3, 3, 4)) for _ in chain.shape[2:]]
    strides = [chain.one_of((1, 2, 2, 3)) for _ in kernel]
    attributes: dict[str, Any] = {"strides": strides}
    way = chain.one_of(("pads", "auto", "shape", "none"))
    if way == "pads":
        most = max(0, min(kernel) - 1)
        attributes["pads"] = [chain.random.randint(0, most) for _ in kernel * 2]
    elif way == "auto":
        attributes["auto_pad"] = chain.one_of(("SAME_UPPER", "SAME_LOWER", "VALID"))
    elif way == "shape":
        sizes = zip(chain.shape[2:], strides, strict=True)
        attributes["output_shape"] = [
            size * stride + chain.random.randint(0, 1) for size, stride in sizes
        ]
    if way != "shape" and chain.maybe(0.3):
        attributes["output_padding"] = [chain.random.randint(0, stride - 1) for stride in strides]
    if group != 1:
        attributes["group"] = group
    operands = [chain.value, chain.floats(channels, made, *kernel, scale=0.4)]
    if chain.maybe():
        operands.append(chain.floats(made * group))
    return chain.then("ConvTranspose", operands, **attributes)


def pool(chain: Chain) -> bool:
    """The largest, the mean or the norm of windows."""
    if chain.rank < 3:
        return False
    op_type = chain.one_of(("MaxPool", "AveragePool", "LpPool"))
    kernel = [chain.one_of((1, 2, 2, 3, 3)) for _ in chain.shape[2:]]
    attributes = {**_window(chain, kernel), "kernel_shape": kernel}
    since = {"MaxPool": 10, "AveragePool": 19, "LpPool": 18}[op_type]
    if chain.opset < since:
        attributes.pop("dilations", None)
    if (chain.opset >= since or op_type == "AveragePool") and chain.maybe(0.4):
        attributes["ceil_mode"] = 1
    if op_type == "AveragePool" and chain.maybe():
        attributes["count_include_pad"] = 1
    if op_type == "LpPool":
        attributes["p"] = chain.one_of((1, 2, 3))
    if "dilations" in attributes and op_type != "MaxPool":
        attributes.pop("auto_pad", None)  # onnxruntime pads as if it were not dilated
    return chain.then(op_type, [chain.value], **attributes)


def global_pool(chain: Chain) -> bool:
    """Over all places; rare, as little is left behind it."""
    if chain.rank < 3 or chain.maybe(0.7):
        return False
    kinds = ("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool")
    return chain.then(chain.one_of(kinds), [chain.value])


def resize(chain: Chain) -> bool:
    """By scales or to sizes, of one axis or two."""
    if chain.rank not in (3, 4):
        return False
    mode = chain.one_of(("nearest", "linear", "cubic") if chain.rank == 4 else ("nearest",))
    coordinates = ["half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel"]
    attributes: dict[str, Any] = {"mode": mode}
    attributes["coordinate_transformation_mode"] = chain.one_of(coordinates)
    if mode == "nearest":
        ways = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")
        attributes["nearest_mode"] = chain.one_of(ways)
    if mode == "cubic":
        attributes["cubic_coeff_a"] = chain.one_of((-0.75, -0.5))
    if chain.maybe():
        scales = [1, 1, *(chain.one_of((0.5, 0.75, 1, 1.5, 2, 2, 3)) for _ in chain.shape[2:])]
        sizes = np.multiply(chain.shape, scales)
        if "align" in attributes["coordinate_transformation_mode"] and (sizes % 1).any():
            return False  # onnxruntime rounds the sizes first, which the standard's suite does not
        operands = [chain.value, "", chain.constant(np.asarray(scales, np.float32))]
    else:
        sizes = [chain.random.randint(1, 2 * size + 1) for size in chain.shape[2:]]
        operands = [chain.value, "", "", chain.integers([*chain.shape[:2], *sizes])]
    return chain.then("Resize", operands, **attributes)


def grid_sample(chain: Chain) -> bool:
    """At places within the map and around it."""
    if chain.rank != 4 or chain.opset < 16:
        return False
    height, width = chain.random.randint(2, 6), chain.random.randint(2, 6)
    places = chain.numbers.uniform(-1.2, 1.2, (chain.shape[0], height, width, 2))
    old, new = ("bilinear", "nearest", "bicubic"), ("linear", "nearest", "cubic")
    return chain.then(
        "GridSample",
        [chain.value, chain.constant(places.astype(np.float32))],
        mode=chain.one_of(old if chain.opset < 20 else new),
        padding_mode=chain.one_of(("zeros", "border", "reflection")),
        align_corners=chain.random.randint(0, 1),
    )


def depth_and_space(chain: Chain) -> bool:
    """DepthToSpace, or back."""
    if chain.rank != 4:
        return False
    _, channels, height, width = chain.shape
    if chain.maybe():
        sizes = [size for size in (2, 3) if channels % size**2 == 0]
        attributes = {"mode": chain.one_of(("DCR", "CRD"))}
    else:
        sizes = [size for size in (2, 3) if height % size == width % size == 0]
        attributes = {}
    if not sizes:
        return False
    op_type = "DepthToSpace" if attributes else "SpaceToDepth"
    return chain.then(op_type, [chain.value], blocksize=chain.one_of(sizes), **attributes)


WINDOWS = (conv, conv, conv, conv, conv_transpose, pool, pool, global_pool, resize, resize)
MAPS = (*WINDOWS, grid_sample, depth_and_space)
