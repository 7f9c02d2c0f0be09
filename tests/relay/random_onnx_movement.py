"""Ops that move elements, for random chains: pads, slices, gathers, scatters, joins."""

from __future__ import annotations

import numpy as np
from random_onnx import Chain


def pad(chain: Chain) -> bool:
    """In every mode, of all axes or some; negative pads cut."""
    modes = ["constant", "constant", "reflect", "edge"]
    mode = chain.one_of(modes + ["wrap"] * (chain.opset >= 19))
    axes = list(range(chain.rank))
    has_axes = chain.opset >= 18 and chain.maybe(0.3)
    if has_axes:
        axes = sorted(chain.random.sample(axes, chain.random.randint(1, chain.rank)))
    least = -1 if mode == "constant" else 0
    pads = [chain.random.randint(least, 2) for _ in axes * 2]
    if mode in ("reflect", "wrap"):
        sizes = [chain.shape[axis] for axis in axes * 2]
        pads = [min(pad, size - 1) for pad, size in zip(pads, sizes, strict=True)]
    if mode == "constant" and chain.maybe(0.3):  # more is cut than is there
        size = chain.shape[axes[0]]
        begin = chain.one_of((-size - 1, 2, 3))
        pads[0], pads[len(axes)] = begin, 1 + chain.random.randint(0, 1) - size - begin
    operands = [chain.value, chain.integers(pads)]
    if mode == "constant" and chain.maybe():
        operands.append(chain.scalar(chain.one_of((0, 1.5))))
    if has_axes:
        operands += [""] * (3 - len(operands))
        operands.append(chain.integers([chain.either_side(axis) for axis in axes]))
    return chain.then("Pad", operands, mode=mode)


def slice_some(chain: Chain) -> bool:
    """Forward and backward, with ends far outside."""
    axes = chain.random.sample(range(chain.rank), chain.random.randint(1, chain.rank))
    starts, ends, steps = [], [], []
    for axis in axes:
        size = chain.shape[axis]
        if chain.maybe(0.25):
            starts.append(chain.one_of((size - 1, -1, size + 5)))
            ends.append(chain.one_of((-size - 1, -(10**9))))
            steps.append(chain.one_of((-1, -2)))
        else:
            starts.append(chain.one_of((0, 0, min(1, size - 1), -size, -size - 3)))
            ends.append(chain.one_of((size, size, 2**31, 2**62, -1 if size > 2 else size)))
            steps.append(chain.one_of((1, 1, 2, 3)))
    named = [chain.either_side(axis) for axis in axes]
    operands = [chain.integers(value) for value in (starts, ends, named, steps)]
    return chain.then("Slice", [chain.value, *operands])


def transpose(chain: Chain) -> bool:
    """To any order, or without one."""
    order = chain.random.sample(range(chain.rank), chain.rank)
    return chain.then("Transpose", [chain.value], **({"perm": order} if chain.maybe(0.8) else {}))


def reshape(chain: Chain) -> bool:
    """To sizes that divide all, one of them left open or taken over."""
    left, sizes = int(np.prod(chain.shape)), []
    for _ in range(chain.random.randint(1, 3)):
        sizes.append(chain.one_of([n for n in range(1, min(left, 40) + 1) if left % n == 0]))
        left //= sizes[-1]
    sizes.append(left)
    chain.random.shuffle(sizes)
    if chain.maybe(0.4):
        sizes[chain.random.randrange(len(sizes))] = -1
    elif chain.maybe(0.3):
        same = [i for i, size in enumerate(sizes[: chain.rank]) if size == chain.shape[i]]
        for i in same:
            sizes[i] = 0
    return chain.then("Reshape", [chain.value, chain.integers(sizes)])


def flatten(chain: Chain) -> bool:
    """At any axis; rare, as two axes are left behind it."""
    if chain.maybe(0.6):
        return False
    axis = chain.random.randint(-chain.rank, chain.rank)
    return chain.then("Flatten", [chain.value], axis=axis)


def ones_in_and_out(chain: Chain) -> bool:
    """Squeeze or Unsqueeze."""
    ones = [axis for axis, size in enumerate(chain.shape) if size == 1]
    if ones and chain.rank > 2 and chain.maybe():
        operands, attributes = chain.integers_for("axes", [chain.either_side(chain.one_of(ones))])
        return chain.then("Squeeze", [chain.value, *operands], **attributes)
    axis = chain.random.randint(-chain.rank - 1, chain.rank)
    operands, attributes = chain.integers_for("axes", [axis])
    return chain.rank < 5 and chain.then("Unsqueeze", [chain.value, *operands], **attributes)


def concat(chain: Chain) -> bool:
    """With a constant, and now and then with itself."""
    axis = chain.random.randrange(chain.rank)
    sizes = list(chain.shape)
    sizes[axis] = chain.random.randint(1, 3)
    parts = [chain.value, chain.floats(*sizes), *[chain.value] * chain.maybe(0.3)]
    chain.random.shuffle(parts)
    return chain.then("Concat", parts, axis=chain.either_side(axis))


def split(chain: Chain) -> bool:
    """In two, one of which goes on, or both."""
    axes = [axis for axis, size in enumerate(chain.shape) if size > 1]
    if not axes:
        return False
    axis = chain.one_of(axes)
    first = chain.random.randint(1, chain.shape[axis] - 1)
    sizes = [first, chain.shape[axis] - first]
    operands, attributes = chain.integers_for("split", sizes)
    attributes["axis"] = chain.either_side(axis)
    parts = chain.nodes_of("Split", [chain.value, *operands], 2, **attributes)
    if sizes[0] == sizes[1] and chain.maybe():
        return chain.then("Mul", parts)
    chain.value = chain.one_of(parts)
    return True


def gather(chain: Chain) -> bool:
    """Of one index, some, or a table of them, from either side."""
    axis = chain.random.randrange(chain.rank)
    size = chain.shape[axis]
    indices = chain.numbers.integers(-size, size, chain.random.randint(1, 5))
    form = chain.one_of(("scalar", "row", "table", "row"))
    if form == "scalar":
        indices = indices[0]
    elif form == "table":
        indices = indices.reshape(1, -1)
    operands = [chain.value, chain.integers(indices)]
    return chain.then("Gather", operands, axis=chain.either_side(axis))


def _corner(chain: Chain) -> tuple[slice, ...]:
    """Of all axes some of the first elements, of most axes all."""
    return tuple(
        slice(chain.random.randint(1, size) if chain.maybe(0.3) else size) for size in chain.shape
    )


def gather_elements(chain: Chain) -> bool:
    """Along any axis, from either side."""
    axis = chain.random.randrange(chain.rank)
    sizes = list(chain.shape)
    sizes[axis] = chain.random.randint(1, 4)
    indices = chain.numbers.integers(-chain.shape[axis], chain.shape[axis], sizes)
    operands = [chain.value, chain.integers(indices[_corner(chain)])]
    return chain.then("GatherElements", operands, axis=chain.either_side(axis))


def gather_nd(chain: Chain) -> bool:
    """By coordinates of some of the first axes, or of those behind the first ones."""
    batch = chain.random.randint(0, chain.rank - 1) if chain.opset > 11 and chain.maybe(0.3) else 0
    end = chain.random.randint(batch + 1, chain.rank)
    sizes = [*chain.shape[:batch], 3]
    columns = [chain.numbers.integers(-size, size, sizes) for size in chain.shape[batch:end]]
    operands = [chain.value, chain.integers(np.stack(columns, -1))]
    return chain.then("GatherND", operands, **({"batch_dims": batch} if batch else {}))


def _reduction(chain: Chain) -> dict[str, str]:
    ways = ["none", "add", "mul"] + ["max", "min"] * (chain.opset >= 18)
    way = chain.one_of(ways)
    return {} if way == "none" or chain.opset < 16 else {"reduction": way}


def scatter_elements(chain: Chain) -> bool:
    """To places that differ, along any axis."""
    axis = chain.random.randrange(chain.rank)
    count = chain.random.randint(1, chain.shape[axis])
    places = np.argsort(chain.numbers.random(chain.shape), axis)
    places = np.take(places, range(count), axis)[_corner(chain)]
    operands = [chain.value, chain.integers(places), chain.floats(*places.shape)]
    axis = chain.either_side(axis)
    return chain.then("ScatterElements", operands, axis=axis, **_reduction(chain))


def scatter_nd(chain: Chain) -> bool:
    """To places that differ, by coordinates of some of the first axes."""
    depth = chain.random.randint(1, chain.rank)
    extent = chain.shape[:depth]
    num_places = int(np.prod(extent))
    places = chain.numbers.choice(num_places, min(3, num_places), replace=False)
    coordinates = np.stack(np.unravel_index(places, extent), -1)
    updates = chain.floats(len(places), *chain.shape[depth:])
    operands = [chain.value, chain.integers(coordinates), updates]
    return chain.then("ScatterND", operands, **_reduction(chain))


def expand_or_tile(chain: Chain) -> bool:
    """The same again along some axes."""
    if chain.maybe():
        repeats = [chain.one_of((1, 1, 2)) for _ in chain.shape]
        return chain.then("Tile", [chain.value, chain.integers(repeats)])
    sizes = [
        chain.one_of((1, size)) if size > 1 else chain.one_of((1, 2, 3)) for size in chain.shape
    ]
    if chain.maybe(0.3) and chain.rank < 5:
        sizes.insert(0, 2)
    return chain.then("Expand", [chain.value, chain.integers(sizes)])


def top_k(chain: Chain) -> bool:
    """The largest or smallest, or where they are."""
    axis = chain.random.randrange(chain.rank)
    count = chain.integers([chain.random.randint(1, chain.shape[axis])])
    attributes = {"axis": chain.either_side(axis), "largest": chain.random.randint(0, 1)}
    values, places = chain.nodes_of("TopK", [chain.value, count], 2, **attributes)
    if chain.maybe(0.3):
        return chain.then("Cast", [places], to=1)
    chain.value = values
    return True


def arg_max(chain: Chain) -> bool:
    """Where the largest or the smallest is."""
    attributes = {"axis": chain.axis(), "keepdims": chain.one_of((1, 1, 0))}
    if chain.opset >= 12:
        attributes["select_last_index"] = chain.random.randint(0, 1)
    places = chain.node(chain.one_of(("ArgMax", "ArgMin")), [chain.value], **attributes)
    return chain.then("Cast", [places], to=1)


def triangle(chain: Chain) -> bool:
    """Trilu."""
    diagonal = chain.constant(np.int64(chain.random.randint(-2, 3)))
    return (
        chain.opset >= 14
        and chain.rank > 1
        and chain.then("Trilu", [chain.value, diagonal], upper=chain.random.randint(0, 1))
    )


SHAPES = (transpose, reshape, flatten, ones_in_and_out, concat, split, expand_or_tile)
INDICES = (gather, gather_elements, gather_nd, scatter_elements, scatter_nd, top_k, arg_max)
MOVEMENT = (*SHAPES, *INDICES, pad, slice_some, triangle)
