"""What follows the solves of a round of large neighbourhood search, at its deadline."""

from __future__ import annotations

from typing import Any

import pytest

from heteroplace.solve.deadline import NEVER, Deadline
from heteroplace.solve.lns import apply, engine
from heteroplace.solve.lns.apply import EqualNeighbourhoods, improve, task_classes
from heteroplace.solve.lns.engine import run_lns
from heteroplace.solve.lns.fixed_schedule import ProblemLists, SimulatedPlan
from heteroplace.solve.lns.neighbourhood import Neighbourhood, cut_out
from tests.instances import problem_of
from tests.unit.solve.lns.test_lns import SHORT, forks, on_first, solve_cut

OVER = Deadline.after(-1)


def test_one_set_of_changes_is_tried_and_no_equal_ones_are_looked_for_when_the_time_is_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    problem = problem_of(forks(12))
    schedule = SimulatedPlan(ProblemLists(problem), on_first(problem))
    equals = EqualNeighbourhoods(schedule, task_classes(schedule.lists))
    # A fork has 7 tasks; the first one begins behind the input.
    cut = cut_out(schedule, Neighbourhood(8, 15, (0, 1), is_greedy=False))
    solution = solve_cut(schedule.lists, cut, 1)
    assert solution is not None
    assert equals.others(cut, [cut.neighbourhood], OVER) == []
    others = equals.others(cut, [cut.neighbourhood])
    changes = [(cut, solution), *((other, solution) for other in others)]
    assert improve(schedule, changes, schedule, OVER).makespan_ns < schedule.makespan_ns
    tried = []
    monkeypatch.setattr(apply, "merged", lambda _, chosen, __: tried.append(len(chosen)))
    improve(schedule, changes, schedule, NEVER)
    assert len(tried) > 1
    tried.clear()
    improve(schedule, changes, schedule, OVER)
    assert tried == [len(changes)]


def test_a_round_hands_its_deadline_on(monkeypatch: pytest.MonkeyPatch) -> None:
    problem, deadline, seen = problem_of(forks(2)), Deadline.after(60), []
    others = EqualNeighbourhoods.others

    def noted_improve(*arguments: Any) -> SimulatedPlan:
        seen.append(arguments[-1])
        return improve(*arguments)

    def noted_others(*arguments: Any) -> Any:
        seen.append(arguments[-1])
        return others(*arguments)

    monkeypatch.setattr(engine, "improve", noted_improve)
    monkeypatch.setattr(EqualNeighbourhoods, "others", noted_others)
    run_lns(problem, on_first(problem), SHORT, deadline)
    assert len(seen) > 1
    assert set(seen) == {deadline}
