"""The package of the guide about plugins takes the arguments that heteroplace gives."""

from __future__ import annotations

import inspect

import pytest

from heteroplace.lower.kernel_provider import KernelProvider
from tests.plugin.heteroplace_toy.kernels import NO_DOUBLE_NEGATION

pytestmark = pytest.mark.relay


@pytest.mark.parametrize("name", ["register", "segment_passes", "finish", "with_held_weights"])
def test_its_kernel_provider_takes_what_the_protocol_says(name: str) -> None:
    expected = inspect.signature(getattr(KernelProvider, name))
    own = inspect.signature(getattr(NO_DOUBLE_NEGATION, name))
    assert list(own.parameters) == list(expected.parameters)[1:]
