"""What tests with ranks of MPI need."""

from __future__ import annotations

import importlib.util

import pytest

from benchmarks.ranks.launch import find_launcher
from benchmarks.ranks.shaped import why_not
from heteroplace.errors import MissingPackageError


@pytest.fixture(scope="session")
def launcher() -> str:
    """The launcher of ranks."""
    if importlib.util.find_spec("mpi4py") is None:
        pytest.skip("mpi4py is not installed (the extra `mpi`)")
    try:
        return find_launcher()
    except MissingPackageError as missing:
        pytest.skip(str(missing))


@pytest.fixture(scope="session")
def shaped_links(launcher: str) -> str:
    """The launcher, where ranks can be put behind links of a chosen bandwidth and delay."""
    reason = why_not()
    if reason:
        pytest.skip(reason)
    return launcher
