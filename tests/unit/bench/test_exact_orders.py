"""`exact --orders`: settings of Celeritas' comparison, the figures of a plan, and the picture."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.exact import orders
from benchmarks.exact.command import table
from benchmarks.plots import BarPanel
from heteroplace.errors import SolverError
from heteroplace.native.list import evaluate_order
from heteroplace.solve import Problem
from tests.instances import gpus, instance, problem_of


def silent(_: str) -> None:
    """Nobody reads it."""


def chain(capacity: int) -> Problem:
    """a -> b -> c of 10 bytes each and 1, 2 and 4 ms; a byte takes 100 us."""
    ms = 1_000_000
    times: dict[str, tuple[int | None, ...]] = {
        name: (count * ms, count * ms) for name, count in (("a", 1), ("b", 2), ("c", 4))
    }
    cluster = gpus({(0, 1): 1, (1, 0): 1}, 2, capacity)
    links = tuple(replace(link, bytes_per_second=10_000) for link in cluster.links)
    case = instance([("a", "b"), ("b", "c")], times, replace(cluster, links=links))
    return problem_of(case)


def test_figures_are_those_of_the_copies_and_the_runs() -> None:
    """a on device 0, b on 1, c on 0: two copies of 1 ms, one each way. Each device holds two
    tensors at once, 20 bytes."""
    problem = chain(19)
    plan = evaluate_order(problem.native, [0, 1, 0], [0, 1, 2])
    figures = orders.plan_figures(problem, plan)
    assert figures["makespan_ms"] == 1 + 1 + 2 + 1 + 4
    assert (figures["copies"], figures["copied_gb"]) == (2, 0.0)
    assert figures["busiest_link_ms"] == 1
    assert figures["ccr"] == round(2 / 7, 3)
    assert figures["run_ms"] == [5, 2]
    assert figures["excess_gib"] == 0.0  # A byte, which is rounded away.


def test_what_a_plan_lacks_is_said_by_the_rule_of_the_setting() -> None:
    by_lifetime = orders.setting_problem("smallest", orders.SETTINGS["colocated"])
    summed = orders.setting_problem("smallest", orders.SETTINGS["summed-75"])
    assert by_lifetime.frees_tensors and not summed.frees_tensors
    order = list(range(len(summed.graph.tasks)))
    on_one = [0] * len(order)
    plan = evaluate_order(by_lifetime.native, on_one, order)
    figures = orders.plan_figures(summed, plan)
    total = sum(t.bytes for t in summed.graph.tensors if t.producer is not None)
    total += sum(task.weight_bytes for task in summed.graph.tasks)
    lacks = total - summed.cluster.memories[0].bytes
    assert figures["excess_gib"] == round(lacks / 2**30, 2) > 0


def test_settings_change_what_they_name() -> None:
    plain, *others = (
        orders.setting_problem("smallest", orders.SETTINGS[name]).cluster
        for name in ("colocated", "quarter-speed", "latency-1ms", "launch-50us", "no-congestion")
    )
    quarter, late, launched, free = others
    assert 4 * quarter.links[0].bytes_per_second == plain.links[0].bytes_per_second
    assert {link.latency_ns for link in late.links} == {1_000_000}
    assert late.links[0].bytes_per_second == plain.links[0].bytes_per_second
    assert {device.launch_ns for device in launched.devices} == {50_000}
    assert (plain.congestion, free.congestion) == ("port", "none")


def test_gradients_make_the_paper_s_order() -> None:
    """With gradients at their ops Order-Place cuts a pipeline; without, it copies far more."""
    rows = list(orders.order_rows(silent, "^smallest/(free|colocated)$"))
    copied = {(row["setting"], row["solver"]): float(str(row["copied_gb"])) for row in rows}
    assert copied["free", "order-place"] > 3 * copied["colocated", "order-place"]
    assert copied["colocated", "m-etf"] > 3 * copied["colocated", "order-place"]
    assert "colocated" in table(rows)


def test_the_picture_has_a_group_for_the_paper_and_each_setting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    panels: list[BarPanel] = []
    monkeypatch.setattr(orders, "plot_bars", lambda _path, drawn, *_: panels.extend(drawn))
    row = {"graph": "holography", "setting": "free", "solver": "m-etf", "makespan_ms": 2500.0}
    orders.draw_orders(tmp_path / "x.svg", [row, {**row, "setting": "colocated"}])
    (panel,) = panels
    assert panel.groups == ("paper", "free", "colocated")
    assert panel.bars["m-etf"] == (6.376, 2.5, 2.5)
    assert panel.bars["celeritas"] == (1.461, None, None)


def test_a_setting_that_nobody_has_is_refused() -> None:
    with pytest.raises(SolverError, match=r"--only 'nothing' matches no NETWORK/SETTING"):
        orders.order_rows(silent, "nothing")
