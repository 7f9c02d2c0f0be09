"""DFT and STFT ==> a product with the matrix of the transform, in double precision.

ONNX operator specification. The matrix is what numpy's transform makes of unit vectors, so real
and complex, forward and inverse, whole and one-sided transforms of any length are one form.
"""

from __future__ import annotations

from math import prod

import numpy as np
import numpy.typing as npt
from tvm import relay

from heteroplace.errors import FrontendError
from heteroplace.parts.onnx.converters.call import OnnxCall, check_table, const, shape_of

Floats = npt.NDArray[np.float64]


def dft(call: OnnxCall) -> relay.Expr:
    """Convert DFT: [..., n, ..., 1 or 2] -> the same, with n' along the axis and 2 at the end."""
    shape = call.shape(0)
    axis = int(call.number("axis", 1))
    if call.has(2):
        axis = int(call.constant(2, "axis").reshape(-1)[0])
    axis %= len(shape)
    is_inverse, is_one_sided = bool(call.number("inverse", 0)), bool(call.number("onesided", 0))
    length = shape[axis]
    if is_inverse and is_one_sided:
        length = 2 * (length - 1)
    if call.has(1):
        length = int(call.constant(1, "length").reshape(-1)[0])
    matrix = transform_matrix(shape[axis], shape[-1], length, is_inverse, is_one_sided)
    return transform(call.operand(0), axis, matrix, call.dtype(0))


def transform_matrix(
    size: int, parts: int, length: int, is_inverse: bool, is_one_sided: bool
) -> Floats:
    """Return what numpy's transform makes of each unit vector.

    Parameters
    ----------
    size
        Elements along the axis; cut, or filled up by zeros, to `length`.
    parts
        1 for real numbers, 2 for pairs of real and imaginary part.

    Returns
    -------
    [size, parts, size after, parts after]; a one-sided inverse gives real numbers.
    """
    check_table(2 * size * parts * length, "its matrix")
    units = np.eye(size, dtype=np.complex128)
    vectors = np.stack([units, 1j * units][:parts], axis=1)
    if is_inverse and is_one_sided:
        return np.asarray(np.fft.irfft(vectors, n=length, axis=-1))[..., None]
    function = np.fft.ifft if is_inverse else np.fft.fft
    result = function(vectors, n=length, axis=-1)
    if is_one_sided:
        result = result[..., : length // 2 + 1]
    return np.stack([result.real, result.imag], axis=-1)


def transform(data: relay.Expr, axis: int, matrix: Floats, dtype: str) -> relay.Expr:
    """Multiply the last axis and `axis` of `data` with a matrix of `transform_matrix`."""
    shape = shape_of(data)
    rank = len(shape)
    others = [i for i in range(rank - 1) if i != axis]
    moved = relay.transpose(relay.cast(data, "float64"), [*others, axis, rank - 1])
    rows = relay.reshape(moved, [-1, shape[axis] * shape[-1]])
    size, parts, size_after, parts_after = matrix.shape
    weights = matrix.reshape(size * parts, size_after * parts_after).T
    product = relay.nn.dense(rows, const(weights, "float64"))
    other_sizes = [shape[i] for i in others]
    unfolded = relay.reshape(product, [*other_sizes, size_after, parts_after])
    order = [*others, axis, rank - 1]
    back = relay.transpose(unfolded, [order.index(i) for i in range(rank)])
    return relay.cast(back, dtype)


def stft(call: OnnxCall) -> relay.Expr:
    """Convert STFT: (x [batch, n, 1 or 2], step, window, length) -> [batch, frames, bins, 2]."""
    batch, size, parts = call.shape(0)
    step = int(call.constant(1, "frame step").reshape(-1)[0])
    if call.has(3):
        length = int(call.constant(3, "frame length").reshape(-1)[0])
    elif call.has(2):
        length = call.shape(2)[0]
    else:
        raise FrontendError("it has neither a window nor a frame length")
    check_table((size // step + 1) * length, "the positions of its frames")
    starts = np.arange((size - length) // step + 1) * step
    frames = relay.take(
        call.operand(0), const(starts[:, None] + np.arange(length), "int32"), axis=1, mode="clip"
    )
    dtype = call.dtype(0)
    if call.has(2):
        frames = relay.multiply(frames, relay.reshape(call.operand(2), [1, 1, length, 1]))
    is_one_sided = bool(call.number("onesided", 1)) and parts == 1
    matrix = transform_matrix(length, parts, length, False, is_one_sided)
    assert prod(shape_of(frames)) == batch * len(starts) * length * parts
    return transform(frames, 2, matrix, dtype)
