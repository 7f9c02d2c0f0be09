"""The options `precision` and `verify`: their values, and what they say of a whole network."""

from __future__ import annotations

from collections.abc import Mapping

from heteroplace.errors import SolverError
from heteroplace.options import key_value

Precision = str | Mapping[str, str]
"""One for all layers, or by pattern of tasks, ops or layers."""

PRECISIONS = ("float32", "bf16", "int8", "auto")
"""Values for a whole network."""
LAYER_PRECISIONS = PRECISIONS[:2]
"""Values for the layers that match a pattern."""

VERIFY_MODES = ("auto", "on", "off")
"""Values of the option `verify`."""

_ALL_LAYERS = "*"


def precision_entry(text: str) -> tuple[str, str]:
    """Read PRECISION, for all layers, or PATTERN=PRECISION.

    >>> precision_entry("bf16"), precision_entry("encoder.*=bf16")
    (('*', 'bf16'), ('encoder.*', 'bf16'))
    """
    if text in PRECISIONS:
        return _ALL_LAYERS, text
    if "=" not in text:
        raise ValueError(f"{text!r} is none of {', '.join(PRECISIONS)}, nor PATTERN=PRECISION")
    return key_value("PATTERN=PRECISION, such as 'encoder.*=bf16'")(text)


def precision_by_pattern(precision: Precision) -> Mapping[str, str]:
    """Return the precisions by pattern.

    >>> precision_by_pattern("bf16"), precision_by_pattern({})
    ({'*': 'bf16'}, {'*': 'float32'})
    """
    if isinstance(precision, str):
        return {_ALL_LAYERS: precision}
    return precision or {_ALL_LAYERS: "float32"}


def network_precision(precision: Precision) -> str | None:
    """Return the precision of the whole network; None: it is given by layer.

    >>> network_precision({"*": "bf16"}), network_precision({"head": "float32"})
    ('bf16', None)
    """
    by_pattern = precision_by_pattern(precision)
    return by_pattern[_ALL_LAYERS] if set(by_pattern) == {_ALL_LAYERS} else None


def is_auto(precision: Precision) -> bool:
    """Say whether layers are chosen by how far they move the outputs."""
    return network_precision(precision) == "auto"


def check_verify(value: object) -> None:
    """Raise SolverError unless the option `verify` has this value."""
    if value not in VERIFY_MODES:
        raise SolverError(f"verify must be one of {', '.join(VERIFY_MODES)}, got {value!r}")


def check_has_use(verify: str, precision: Precision) -> None:
    """Raise SolverError if nothing reads the option `verify_inputs`."""
    if verify == "off" and not is_auto(precision):
        raise SolverError(
            "verify_inputs are inputs on which outputs are compared, and verify='off' compares "
            "none; leave one of both out"
        )


def check_precision(precision: Precision, max_error: float, kernels: str) -> None:
    """Raise SolverError if one of these options is wrong, or if they exclude each other."""
    by_pattern = precision_by_pattern(precision)
    is_whole = network_precision(precision) is not None
    values = PRECISIONS if is_whole else LAYER_PRECISIONS
    for pattern, value in by_pattern.items():
        if value not in values:
            where = "" if is_whole else f" for {pattern!r}"
            raise SolverError(f"precision is {value!r}{where}; expected one of {', '.join(values)}")
    if max_error <= 0:
        raise SolverError(f"max_error={max_error}; expected a ratio above 0")
    if kernels == "tvm" and set(by_pattern.values()) != {"float32"}:
        raise SolverError(
            f"precision={precision!r} and kernels='tvm' exclude each other: TVM has no such "
            f"kernels for CPUs; give one of them"
        )
