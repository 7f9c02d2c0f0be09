"""`bench place --scaling`: what it makes of incumbents, and one run."""

from __future__ import annotations

import pytest

from heteroplace.bench.place.command import PlaceOptions
from heteroplace.bench.place.scaling import SEEDS, compare, scaling_rows, scaling_table


def answer(*incumbents: tuple[float, int]) -> dict:
    seconds, makespan = incumbents[-1]
    told = [list(one) for one in incumbents]
    return {"makespan": makespan, "item_ns": None, "incumbents": told, "best_seconds": seconds}


ONE = answer((1.0, 50), (8.0, 40))


def test_a_speedup_is_of_the_times_to_the_plan_of_one_thread() -> None:
    found = compare([ONE], [answer((1.0, 50), (2.0, 40), (7.0, 30))], 2, 10.0, cores=2)
    assert (found["measured_speedup"], found["simulated_speedup"]) == (4.0, None)
    assert (found["reached"], found["plan_ratio"]) == (1, 0.75)


def test_threads_that_take_turns_on_cores_are_simulated() -> None:
    found = compare([ONE], [answer((1.0, 50), (16.0, 40))], 16, 10.0, cores=4)
    assert (found["measured_speedup"], found["simulated_speedup"]) == (None, 2.0)


def test_a_plan_never_reached_counts_as_the_whole_budget() -> None:
    found = compare([ONE], [answer((1.0, 50))], 2, 10.0, cores=2)
    assert (found["measured_speedup"], found["reached"], found["plan_ratio"]) == (0.8, 0, 1.25)


def test_solvers_that_tell_nothing_have_their_plan_at_their_end() -> None:
    alone, together = (answer((seconds, 40)) | {"incumbents": []} for seconds in (6.0, 3.0))
    found = compare([alone], [together], 2, 10.0, cores=2)
    assert (found["measured_speedup"], found["reached"]) == (2.0, 1)


def test_plans_for_throughput_are_compared_by_the_time_of_an_item() -> None:
    one, two = (answer((0.1, 900), (s, 500)) | {"makespan": 2000, "item_ns": 500} for s in (8, 2))
    found = compare([one], [two], 2, 10.0, cores=2)
    assert (found["measured_speedup"], found["plan_ratio"], found["reached"]) == (4.0, 1.0, 1)


def test_a_speedup_is_the_median_over_seeds() -> None:
    several = [answer((4.0, 40)), answer((2.0, 40)), answer((8.0, 40))]
    assert compare([ONE] * 3, several, 2, 10.0, cores=2)["measured_speedup"] == 2.0


def test_without_plans_there_is_no_speedup() -> None:
    none = {"makespan": None, "item_ns": None, "incumbents": None}
    assert compare([ONE], [none], 2, 10.0, cores=2)["measured_speedup"] is None
    assert compare([none], [ONE], 2, 10.0, cores=2)["measured_speedup"] is None


@pytest.mark.costly(4)
def test_the_command_measures_each_number_of_threads() -> None:
    options = PlaceOptions(only="rwnn/er10x1$", solvers=("heft",), budget_s=0.5)
    said: list[str] = []
    rows = scaling_rows(options, said.append, counts=(1, 2))
    assert [(row["threads"], row["plan_ratio"]) for row in rows] == [(1, 1.0), (2, 1.0)]
    assert rows[0]["seeds"] == SEEDS
    assert "rwnn/er10x1" in scaling_table(rows)
