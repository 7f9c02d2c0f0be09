"""Turn text such as "44.26 Gbit/s" into whole bytes, bytes per second or nanoseconds, and back.

Arithmetic is exact (fractions, not floating point). Where a quantity is not whole it is rounded
against optimism: sizes and speeds down, durations up.
"""

from __future__ import annotations

import re
from fractions import Fraction

MAX_INTEGER = 2**63 - 1
"""Largest number of bytes, nanoseconds or anything else that is counted: the core has 64 bits."""
_QUANTITY = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?([^0-9. ].*)")
_DECIMAL = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15}
IN_63_BITS = "that 63 bits hold"
"""What is expected of a number that is too large."""
_BINARY = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}
_MAX_DIGITS = 1000
"""Longer texts are no quantities of anything: `int` refuses 4,300 digits by an error of its own."""
_BYTES = {f"{prefix}B": Fraction(factor) for prefix, factor in (_DECIMAL | _BINARY).items()}
_BYTES_PER_SECOND = {f"{unit}/s": factor for unit, factor in _BYTES.items()} | {
    f"{prefix}bit/s": Fraction(factor, 8) for prefix, factor in _DECIMAL.items()
}
_NANOSECONDS = {
    "ns": Fraction(1),
    "us": Fraction(10**3),
    "µs": Fraction(10**3),
    "ms": Fraction(10**6),
    "s": Fraction(10**9),
}
_FLOPS_PER_SECOND = {f"{prefix}FLOP/s": Fraction(factor) for prefix, factor in _DECIMAL.items()}

_EXACT: dict[str, dict[str, int]] = {
    "B": {"B": 1, **{f"{prefix}B": factor for prefix, factor in _BINARY.items()}},
    "B/s": {f"{prefix}B/s": factor for prefix, factor in _DECIMAL.items()},
    "FLOP/s": {f"{prefix}FLOP/s": factor for prefix, factor in _DECIMAL.items()},
    "ns": {"ns": 1, "us": 10**3, "ms": 10**6, "s": 10**9},
}
"""Units of `format_exactly` by the smallest one, ascending."""


def parse_bytes(value: object) -> int:
    """Return the number of bytes in a size: a whole number of bytes, or text such as "16 GiB".

    Raises
    ------
    ValueError
        The text says what was expected.

    >>> parse_bytes("1.5 KiB")
    1536
    """
    if is_integer(value):
        return _not_negative(value, 'a size such as "16 GiB", or a number of bytes')
    return _quantity(value, _BYTES, 'a size such as "16 GiB" or "800 MB", or a number of bytes')


def parse_bandwidth(value: object) -> int:
    """Return the bytes per second in text such as "44.26 Gbit/s" or "5.5 GB/s".

    The unit is obligatory, since bits are easily taken for bytes.

    >>> parse_bandwidth("44.26 Gbit/s")
    5532500000
    """
    expected = 'a bandwidth with its unit, such as "44.26 Gbit/s" or "5.5 GB/s"'
    return _quantity(value, _BYTES_PER_SECOND, expected)


def parse_duration(value: object) -> int:
    """Return the nanoseconds in text such as "5 us" (units: ns, us, ms, s)."""
    expected = 'a duration with its unit (ns, us, ms, s), such as "5 us"'
    return _quantity(value, _NANOSECONDS, expected, round_up=True)


def parse_flops_per_second(value: object) -> int:
    """Return the operations per second in a whole number or text such as "14.1 TFLOP/s"."""
    expected = 'a speed such as "14.1 TFLOP/s", or a number of operations per second'
    if is_integer(value):
        return _not_negative(value, expected)
    return _quantity(value, _FLOPS_PER_SECOND, expected)


def is_integer(value: object) -> bool:
    """Say whether a parsed JSON value is a whole number (1.0 is one, as in JSON Schema)."""
    if isinstance(value, bool):
        return False
    return isinstance(value, int) or (isinstance(value, float) and value.is_integer())


def format_bytes(num_bytes: int) -> str:
    """Return a size for people, e.g. "7.1 GiB".

    >>> format_bytes(1536)
    '1.5 KiB'
    """
    if num_bytes < 1024:
        return f"{num_bytes} B"
    size = float(num_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def format_exactly(quantity: int, unit: str) -> str:
    """Return a whole quantity of B, B/s, FLOP/s or ns in the largest unit that keeps it whole.

    >>> format_exactly(32 * 2**30, "B"), format_exactly(5_532_500_000, "B/s")
    ('32 GiB', '5532500 kB/s')
    """
    fitting = [(name, factor) for name, factor in _EXACT[unit].items() if quantity % factor == 0]
    name, factor = fitting[-1] if quantity else (unit, 1)
    return f"{quantity // factor} {name}"


def format_ns(duration_ns: float) -> str:
    """Return a duration for people, with three digits, e.g. "3.04 ms".

    >>> format_ns(3_041_000)
    '3.04 ms'
    """
    for unit, factor in (("s", 10**9), ("ms", 10**6), ("us", 10**3)):
        if abs(duration_ns) >= factor:
            value = duration_ns / factor
            digits = 2 if abs(value) < 10 else 1 if abs(value) < 100 else 0
            return f"{value:.{digits}f} {unit}"
    return f"{duration_ns:.0f} ns"


def format_deviation(measured_ns: float, predicted_ns: float) -> str:
    """Return by how much of the predicted time the measured one is longer or shorter.

    >>> format_deviation(102.0, 100), format_deviation(90.0, 100), format_deviation(1.0, 0)
    ('2.0 % longer than predicted', '10.0 % shorter than predicted', 'nothing was predicted')
    """
    if predicted_ns == 0:
        return "nothing was predicted"
    change = (measured_ns - predicted_ns) / predicted_ns
    return f"{100 * abs(change):.1f} % {'shorter' if change < 0 else 'longer'} than predicted"


def format_gap(ratio: float, digits: int = 0) -> str:
    """Return a gap in percent; what is not 0 is not called so, as a gap of 0 is a proof.

    Parameters
    ----------
    ratio
        (objective - bound) / objective.
    digits
        Behind the point.

    >>> format_gap(0.0), format_gap(0.004), format_gap(0.07), format_gap(0.0004, 1)
    ('0 %', '< 1 %', '7 %', '< 0.1 %')
    """
    text = f"{100 * ratio:.{digits}f}"
    is_hidden = ratio > 0 and float(text) == 0
    return f"< {10**-digits:.{digits}f} %" if is_hidden else f"{text} %"


def _not_negative(value: object, expected: str) -> int:
    number = int(value)  # type: ignore[call-overload]
    if number < 0:
        raise ValueError(expected)
    if number > MAX_INTEGER:
        raise ValueError(f"{expected} {IN_63_BITS}")
    return int(number)


def _quantity(
    value: object, factors: dict[str, Fraction], expected: str, round_up: bool = False
) -> int:
    text = value if isinstance(value, str) and len(value) <= _MAX_DIGITS else ""
    match = _QUANTITY.fullmatch(text)
    if match is None or match[2] not in factors:
        raise ValueError(expected)
    amount = Fraction(match[1]) * factors[match[2]]
    whole = amount.numerator // amount.denominator
    whole += 1 if round_up and amount.denominator != 1 else 0
    if whole > MAX_INTEGER:
        raise ValueError(f"{expected} {IN_63_BITS}")
    return whole
