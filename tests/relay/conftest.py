"""What all tests of the Relay layers share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="module", autouse=True)
def short_rounds() -> Iterator[None]:
    """How tasks disturb each other is measured in as few runs as it allows."""
    from heteroplace.measure import measured_interference

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(measured_interference, "_ROUND_NS", 1)
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
