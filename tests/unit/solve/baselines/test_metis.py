"""The solver `metis` on instances whose best parts are known."""

from __future__ import annotations

import sys

import pytest

from heteroplace.errors import InfeasibleError, SolverError
from tests.instances import diamond, gpus, instance
from tests.unit.solve.baselines.test_mapping_solvers import solve


def test_metis_cuts_no_edge_of_four_chains() -> None:
    edges = [(f"a{i}", f"b{i}") for i in range(4)]
    run_ns: dict[str, tuple[int | None, ...]] = {name: (5, 5) for pair in edges for name in pair}
    case = instance(edges, run_ns, gpus({(0, 1): 10, (1, 0): 10}, 2))
    result = solve(case, "metis")
    assert result.plan.copies == ()
    assert result.objective_ns == 20


def test_metis_gives_each_part_the_device_that_suits_it() -> None:
    edges = [("a0", "a1"), ("b0", "b1")]
    run_ns: dict[str, tuple[int | None, ...]] = {
        "a0": (9, 1),
        "a1": (9, 1),
        "b0": (1, 9),
        "b1": (1, 9),
    }
    case = instance(edges, run_ns, gpus({(0, 1): 10, (1, 0): 10}, 2))
    assert solve(case, "metis").objective_ns == 2


def test_metis_balances_memory_where_run_times_alone_would_overflow() -> None:
    # By run time alone the one long task is a part by itself, and the other nine do not fit.
    run_ns: dict[str, tuple[int | None, ...]] = {"long": (900, 900)}
    run_ns.update({f"t{i}": (100, 100) for i in range(9)})
    cluster = gpus({(0, 1): 10, (1, 0): 10}, 2, capacity=6 * 110)
    # Six tasks fit on either device, so three are with the long one at least.
    assert solve(instance([], run_ns, cluster, weight_bytes=100), "metis").objective_ns == 1200


def test_metis_on_six_devices_gives_parts_greedily() -> None:
    pairs = {(src, dst): 10 for src in range(6) for dst in range(6) if src != dst}
    edges = [(f"a{i}", f"b{i}") for i in range(6)]
    run_ns: dict[str, tuple[int | None, ...]] = {
        f"{letter}{i}": tuple(1 if device == (i + 2) % 6 else 9 for device in range(6))
        for i in range(6)
        for letter in "ab"
    }
    assert solve(instance(edges, run_ns, gpus(pairs, 6)), "metis").objective_ns == 2


def test_metis_without_pymetis_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pymetis", None)
    with pytest.raises(SolverError, match=r"pip install 'heteroplace\[metis\]'"):
        solve(diamond(), "metis")


def test_metis_of_parts_that_overflow_is_infeasible() -> None:
    run_ns: dict[str, tuple[int | None, ...]] = {"a": (5, 5), "b": (5, 5), "c": (5, 5)}
    case = instance([], run_ns, gpus({}, 2, 140), weight_bytes=100)
    with pytest.raises(InfeasibleError, match=r"fits: for weights .* together lack 20 B"):
        solve(case, "metis")
