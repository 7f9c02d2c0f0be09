"""Fixtures that several test modules share."""

from __future__ import annotations

import pytest

from tests.instances import diamond as make_diamond
from tests.strategies import Instance


@pytest.fixture
def diamond() -> Instance:
    """The worked diamond on two devices; see `tests.instances`."""
    return make_diamond()
