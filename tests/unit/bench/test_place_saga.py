"""`benchmarks place --saga`: SAGA's task graphs and networks here, and its makespans."""

from __future__ import annotations

import importlib.util

import pytest

from benchmarks.place import command as place
from benchmarks.place.saga import saga_rows
from heteroplace.errors import MissingPackageError

HAS_SAGA = all(importlib.util.find_spec(name) is not None for name in ("saga", "pysmt"))


@pytest.mark.skipif(not HAS_SAGA, reason="anrg-saga is not installed")
@pytest.mark.costly(20)
@pytest.mark.parametrize("seed", range(6))
def test_schedulers_of_the_same_parts_have_the_same_makespans(seed: int) -> None:
    rows = saga_rows(lambda line: None, (2, 5), seed)
    assert len({row["scheduler"] for row in rows}) == 15
    # Each time is rounded to 1e-9 of a unit; SAGA's loops take as much for a tensor.
    assert [row for row in rows if abs(float(str(row["difference"]))) > 1e-6] == []
    text = place.table(rows)
    assert "sufferage,finish,end" in text


@pytest.mark.skipif(HAS_SAGA, reason="anrg-saga is installed")
def test_without_saga_it_is_said_how_to_have_it() -> None:
    with pytest.raises(MissingPackageError, match="pip install anrg-saga"):
        saga_rows(lambda line: None)
