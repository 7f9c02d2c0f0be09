"""An executable with a model at several sizes -> one that takes calls of any length, if it can.

A call is padded with zeros to the next entry. Its outputs must not depend on that. So equal inputs
run through two entries, with zeros and with other numbers in the padded places, and the outputs are
compared at the places that are real. Masks alone are always zeros in padded places.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np

from heteroplace.errors import PaddingError
from heteroplace.files.call_lengths import CallLengths
from heteroplace.listed_sizes import ListedSizes
from heteroplace.lower.executable import Executable
from heteroplace.pipeline.low_precision import low_precision_text
from heteroplace.relay.expressions import element_types
from heteroplace.relay.ranges.drawn import array_in
from heteroplace.relay.ranges.interval import Interval
from heteroplace.relay.ranges.legal import legal_inputs
from heteroplace.run.executor import Executor
from heteroplace.run.missing_devices import missing_devices

_Arrays = dict[str, np.ndarray]
_Run = Callable[[_Arrays], list[np.ndarray]]
_TOLERANCES = {"float16": 5e-3, "bfloat16": 2e-2}
_TOLERANCE = 1e-4
"""What outputs may differ by, relative to their largest value, by the type of what is computed."""
_BFLOAT16_ONE = 0x3F80
_OTHER_NUMBERS = 3
"""What floating-point numbers in padded places are scaled by, to be unlike those in real ones."""
_ZEROS, _OTHERS = "zeros", "other numbers"


@dataclass(frozen=True)
class _Case:
    """A call that two entries run."""

    length: int
    sizes: tuple[int, int]
    """Of both entries; the first may be as long as the call."""
    padding: str = _OTHERS
    is_masked: bool = False
    """Whether its mask, or its number of places, leaves out a third of its own places too."""

    @property
    def count(self) -> int:
        """How many places are compared."""
        return max(1, 2 * self.length // 3) if self.is_masked else self.length


def with_lengths(
    joined: Executable, parts: Mapping[str, Executable], listed: ListedSizes, max_error: float
) -> Executable:
    """Return the executable, marked as one that takes calls of any length up to the largest size.

    Parameters
    ----------
    joined
        With an entry for each size.
    parts
        The executables that it was made of, by the names of the entries.
    max_error
        What outputs may differ by where the plan multiplies in less than float32.

    Raises
    ------
    PaddingError
        An output depends on padding, has another size than the inputs, or nothing can be run here.
    """
    lengths = _axes(joined, listed)
    _check_devices(joined, listed)
    tolerance = max(_tolerance(part, max_error) for part in parts.values())
    legal = {name: _legal(part) for name, part in parts.items()}
    with Executor(joined) as executor:
        for case in _cases(lengths.entries):
            results = []
            for size in case.sizes:
                entry = executor.entries[str(size)]
                arrays = _inputs(lengths, entry.inputs, case, size, legal[str(size)])
                results.append(_real_parts(lengths, entry.outputs, entry.run(arrays), case.count))
            names = [name for name, _, _ in joined.manifest.outputs]
            for name, one, other in zip(names, *results, strict=True):
                _check_equal(lengths, case, name, (one, other), tolerance)
    return replace(joined, manifest=replace(joined.manifest, lengths=lengths))


def _axes(joined: Executable, listed: ListedSizes) -> CallLengths:
    """The axes of inputs and outputs that have the size.

    Raises
    ------
    PaddingError
        No input has it, or a shape depends on it in another way.
    """
    manifests = [joined.manifest, *(each.manifest for each in joined.entries.values())]
    inputs = _axes_of([each.inputs for each in manifests], listed, "input")
    outputs = _axes_of([each.outputs for each in manifests], listed, "output")
    if not inputs:
        raise PaddingError(f"no input has the size {listed.name!r}; give it one value")
    return CallLengths(listed.name, listed.values, inputs, outputs)


def _axes_of(
    ports: Sequence[Sequence[tuple[str, tuple[int, ...], str]]], listed: ListedSizes, kind: str
) -> tuple[tuple[str, tuple[int, ...]], ...]:
    named = []
    for several in zip(*ports, strict=True):
        name = several[0][0]
        shapes = [shape for _, shape, _ in several]
        columns = list(zip(*shapes, strict=True)) if len(set(map(len, shapes))) == 1 else []
        axes = tuple(at for at, column in enumerate(columns) if column == listed.values)
        others = [column for column in columns if column != listed.values and len(set(column)) > 1]
        if others or (not columns and any(shapes)):
            texts = " and ".join(
                f"{list(shape)} at {value}"
                for value, shape in list(zip(listed.values, shapes, strict=True))[:2]
            )
            raise PaddingError(
                f"{listed.name}={_sizes_text(listed)}: {kind} {name!r} has shape {texts}; only "
                f"axes as long as {listed.name} itself can be padded and cut. {_remedy(listed)}"
            )
        if axes:
            named.append((name, axes))
    return tuple(named)


def _check_devices(joined: Executable, listed: ListedSizes) -> None:
    """Raise PaddingError where the entries cannot be run here."""
    for each in (joined, *joined.entries.values()):
        absent = missing_devices(each.solution.cluster, each.solution.devices_used)
        if absent:
            raise PaddingError(
                f"{listed.name}={_sizes_text(listed)}: whether padding changes results is checked "
                f"by running the entries, and the plan needs devices that are not in this machine: "
                f"{'; '.join(absent)}. Compile on the machine that has them. {_remedy(listed)}"
            )


def _tolerance(part: Executable, max_error: float) -> float:
    """What outputs may differ by, relative to their largest value."""
    if part.verification is not None and part.verification.is_verified:
        return part.verification.tolerance
    if low_precision_text(part.solution):
        return max_error
    dtypes = {tensor.dtype for tensor in part.lowered.program.tensors}
    if part.source is not None:  # a value that is rounded within a kernel is no tensor
        dtypes |= element_types(part.source.mod)
    return max(_TOLERANCES.get(dtype, _TOLERANCE) for dtype in (*dtypes, ""))


def _legal(part: Executable) -> dict[str, Interval]:
    """The numbers that ops admit, by input; inputs that are not named take any."""
    if part.source is None:
        return {}
    return {var.name_hint: each for var, each in legal_inputs(part.source.mod["main"]).items()}


def _cases(sizes: Sequence[int]) -> Iterator[_Case]:
    """Calls for each two neighbours: as long as the smaller entry, and shorter ones."""
    shortest = 1
    for pair in pairwise(sizes):
        smaller = pair[0]
        yield _Case(smaller, pair, _ZEROS)
        yield _Case(smaller, pair)
        yield _Case(smaller, pair, is_masked=True)
        for length in dict.fromkeys((shortest, (shortest + smaller) // 2)):
            yield _Case(length, pair)
        shortest = smaller + 1


def _inputs(
    lengths: CallLengths,
    ports: Sequence[tuple[str, tuple[int, ...], str]],
    case: _Case,
    size: int,
    legal: Mapping[str, Interval],
) -> _Arrays:
    """The inputs of a call, padded to the size of an entry."""
    axes = dict(lengths.inputs)
    real_ports = lengths.input_ports(ports, case.length)
    real, padding = np.random.default_rng(case.length), np.random.default_rng(size)
    arrays = {}
    for (name, shape, dtype), (_, real_shape, _) in zip(ports, real_ports, strict=True):
        own = axes.get(name, ())
        array = array_in(legal.get(name), real_shape, dtype, real)
        if not own:
            is_count = "len" in name.lower() and "int" in dtype
            arrays[name] = np.full_like(array, case.count) if is_count else array
        elif is_mask(name, dtype):
            one: Any = _BFLOAT16_ONE if dtype == "bfloat16" else 1
            arrays[name] = np.zeros(shape, array.dtype)
            arrays[name][_places(own, case.count, len(shape))] = one
        else:
            arrays[name] = _around(shape, dtype, case.padding, legal.get(name), padding)
            arrays[name][_places(own, case.length, len(shape))] = array
    return arrays


def is_mask(name: str, dtype: str) -> bool:
    """Return whether an input says which places are real: by its name, or as it is of type bool."""
    return "mask" in name.lower() or dtype == "bool"


def _around(
    shape: tuple[int, ...],
    dtype: str,
    padding: str,
    interval: Interval | None,
    random: np.random.Generator,
) -> np.ndarray:
    """What is in the padded places of an input."""
    array = array_in(interval, shape, dtype, random)
    if padding == _ZEROS:
        return np.zeros_like(array)
    is_free = interval is None and array.dtype.kind == "f"
    return array * array.dtype.type(_OTHER_NUMBERS) if is_free else array


def _places(axes: Sequence[int], count: int, rank: int) -> tuple[slice, ...]:
    return tuple(slice(count) if axis in axes else slice(None) for axis in range(rank))


def _real_parts(
    lengths: CallLengths,
    ports: Sequence[tuple[str, tuple[int, ...], str]],
    outputs: Sequence[np.ndarray],
    count: int,
) -> list[np.ndarray]:
    axes = dict(lengths.outputs)
    parts = []
    for (name, shape, dtype), output in zip(ports, outputs, strict=True):
        part = output[_places(axes.get(name, ()), count, len(shape))]
        is_bits = dtype == "bfloat16"  # the upper halves of float32
        parts.append((part.astype("uint32") << 16).view("float32") if is_bits else part)
    return parts


def _check_equal(
    lengths: CallLengths,
    case: _Case,
    name: str,
    outputs: tuple[np.ndarray, np.ndarray],
    tolerance: float,
) -> None:
    """Raise PaddingError unless two entries agree on an output."""
    one, other = (np.asarray(each, "float64") for each in outputs)
    both_nan = np.isnan(one) & np.isnan(other)
    with np.errstate(invalid="ignore"):
        gaps = np.where(both_nan | (one == other), 0, np.abs(one - other))
    difference = float(np.nan_to_num(gaps, nan=np.inf).max(initial=0))
    largest = float(np.abs(one[np.isfinite(one)]).max(initial=0)) or 1.0
    is_float = outputs[0].dtype.kind == "f"
    allowed = tolerance * largest if is_float else 0
    if difference <= allowed:
        return
    listed = ListedSizes(lengths.size, lengths.entries)
    by = f"{difference / largest:.2g} of its largest value (allowed {tolerance:.2g})"
    raise PaddingError(
        f"{lengths.size}={_sizes_text(listed)}: padding changes output {name!r}. At length "
        f"{case.length} the entries for {case.sizes[0]} and {case.sizes[1]}, padded with "
        f"{case.padding}, differ by {by if is_float else f'{difference:g}'}. {_remedy(listed)}"
    )


def _sizes_text(listed: ListedSizes) -> str:
    return ",".join(map(str, listed.values))


def _remedy(listed: ListedSizes) -> str:
    value = listed.values[0]
    return (
        f"Compile each size as an entry, which is not padded (entries={{'{value}': "
        f"{{{listed.name!r}: {value}}}}} and so on, or --entry {value}:{listed.name}={value}), or "
        f"give the model a mask: an input of type bool, or one with 'mask' in its name"
    )
