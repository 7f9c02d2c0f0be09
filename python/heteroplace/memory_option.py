"""The options that limit memory: their texts on a command line become names and bytes."""

from __future__ import annotations

from heteroplace.errors import SolverError
from heteroplace.model.demands import memory_limit
from heteroplace.model.units import parse_bytes
from heteroplace.options import key_value


def memory_pair(text: str) -> tuple[str, str]:
    """Read DEVICE=SIZE.

    >>> memory_pair("gpu0=10 GiB")
    ('gpu0', '10 GiB')
    """
    name, size = key_value("DEVICE=SIZE, such as 'gpu0=10GiB'")(text)
    try:
        memory_limit(name, size)
    except SolverError as err:
        raise ValueError(str(err)) from err
    return name, size


def budget_bytes(budget: int | str | None) -> int | None:
    """Return the option `weights_budget` in bytes.

    Raises
    ------
    SolverError
        It is no size.

    Examples
    --------
    >>> budget_bytes("40 MiB")
    41943040
    """
    try:
        return None if budget is None else parse_bytes(budget)
    except ValueError as err:
        raise SolverError(f"weights_budget={budget!r}: expected {err}") from err
