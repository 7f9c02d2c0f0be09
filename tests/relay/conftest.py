"""What all tests of the Relay layers share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.short_measuring import SHORT_PEAKS


@pytest.fixture(scope="module", autouse=True)
def short_rounds() -> Iterator[None]:
    """How tasks disturb each other, and what cores reach at best, is measured in short."""
    from heteroplace.measure import machine_peaks, measured_interference

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(measured_interference, "_ROUND_NS", 1)
        for name, value in SHORT_PEAKS.items():
            patch.setattr(machine_peaks, name, value)
        yield


@pytest.fixture(scope="session", autouse=True)
def quick_stock_builds() -> Iterator[None]:
    """TVM's own builds ask once how its library was made, and not for each extent of a shape,
    which takes half of their time."""
    from tvm.relay.backend import te_compiler

    answer = te_compiler.libinfo()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(te_compiler, "libinfo", lambda: answer)
        yield
