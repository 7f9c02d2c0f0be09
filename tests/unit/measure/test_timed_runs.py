"""Taking turns: what is called how often, and which medians come out."""

from __future__ import annotations

import threading

import pytest

from benchmarks.peers.turns import (
    NearCores,
    balanced_rounds,
)
from heteroplace.measure.timed_runs import (
    LONG_RUN_NS,
    MAX_RUNS,
    MIN_RUNS,
    TimedRuns,
    Turn,
    time_in_turns,
    wait_until_quiet,
)


class FakeClock:
    """Pretends to run something; records the number of runs of every turn."""

    def __init__(self, name: str, run_ns: int, turns: list[str]) -> None:
        self.name = name
        self.run_ns = run_ns
        self.turns = turns
        self.num_runs: list[int] = []

    def __call__(self, num_runs: int) -> list[int]:
        self.turns.append(self.name)
        self.num_runs.append(num_runs)
        # The first run of a turn is slow, as with cold caches.
        return [100 * self.run_ns] + [self.run_ns] * (num_runs - 1)


def make_clocks() -> tuple[dict[str, FakeClock], list[str]]:
    turns: list[str] = []
    times = {"slow": 50_000_000, "middle": 1_000_000, "fast": 1_000}
    return {name: FakeClock(name, ns, turns) for name, ns in times.items()}, turns


def test_first_run_of_a_turn_is_not_counted() -> None:
    clocks, _ = make_clocks()
    result = time_in_turns(clocks, num_rounds=3)
    assert {name: result.median_ns(name) for name in clocks} == {
        name: clock.run_ns for name, clock in clocks.items()
    }
    assert all(len(result.rounds_ns(name)) == 3 for name in clocks)


def test_long_runs_do_not_warm_up() -> None:
    times = iter([LONG_RUN_NS] * 3 + [LONG_RUN_NS + 1, LONG_RUN_NS + 2])
    num_runs: list[int] = []

    def timer(count: int) -> list[int]:
        num_runs.append(count)
        return [next(times) for _ in range(count)]

    result = time_in_turns({"long": timer}, num_rounds=2, turn_ns=1, min_runs=1)
    assert num_runs == [3, 1, 1]
    assert result.rounds_ns("long") == (LONG_RUN_NS + 1, LONG_RUN_NS + 2)


def test_number_of_runs_follows_the_time_of_one() -> None:
    clocks, _ = make_clocks()
    time_in_turns(clocks, num_rounds=1, turn_ns=20_000_000)
    # The first entry is the trial; each turn has one run to warm up.
    assert clocks["slow"].num_runs[1:] == [MIN_RUNS + 1]
    assert clocks["middle"].num_runs[1:] == [20 + 1]
    assert clocks["fast"].num_runs[1:] == [MAX_RUNS + 1]


def test_every_round_begins_with_another_timer() -> None:
    clocks, turns = make_clocks()
    time_in_turns(clocks, num_rounds=3)
    trial, *rounds = (turns[i : i + 3] for i in range(0, len(turns), 3))
    assert trial == ["slow", "middle", "fast"]
    assert [one[0] for one in rounds] == ["slow", "middle", "fast"]
    assert all(sorted(one) == sorted(trial) for one in rounds)


def test_core_latencies_are_measured_around_every_turn_and_the_longer_is_kept() -> None:
    clocks, _ = make_clocks()
    latencies = iter([50, 60, None, 70, 200, 40])
    result = time_in_turns(clocks, num_rounds=1, core_to_core_ns=lambda: next(latencies))
    assert [result.turns[name][0].core_to_core_ns for name in clocks] == [60, 70, 200]
    assert result.median_core_to_core_ns == 70
    assert time_in_turns(clocks, num_rounds=1).median_core_to_core_ns is None


def test_rounds_are_reported_one_by_one() -> None:
    clocks, _ = make_clocks()
    done: list[int] = []
    time_in_turns(clocks, num_rounds=3, on_round=done.append)
    assert done == [1, 2, 3]


def test_no_round_is_refused() -> None:
    with pytest.raises(ValueError, match="num_rounds must be at least 1, got 0"):
        time_in_turns({}, num_rounds=0)


def turns(*times: int, latencies: tuple[int, ...] = (), others: tuple[float, ...] = ()) -> tuple:
    return tuple(
        Turn(time, latencies[i] if latencies else None, others[i] if others else 0.0)
        for i, time in enumerate(times)
    )


def test_ratio_is_taken_within_rounds() -> None:
    # The machine was twice as slow in the second round, for both.
    timed = TimedRuns({"a": turns(10, 20, 11), "b": turns(20, 40, 22)})
    assert timed.ratio("a", "b") == 0.5
    assert timed.median_ns("a") == 11


def test_what_a_round_did_to_all_alike_is_divided_out() -> None:
    # The machine slows by 10 % from round to round; c was disturbed once on top.
    timed = TimedRuns(
        {
            "a": turns(1000, 1100, 1210),
            "b": turns(2000, 2200, 2420),
            "c": turns(3000, 3300, 9000),
        }
    )
    found = balanced_rounds(timed)
    assert {name: pytest.approx(values) for name, values in found.items()} == {
        "a": (1100, 1100, 1100),
        "b": (2200, 2200, 2200),
        "c": (3300, 3300, 9000 / 1.1),
    }


def test_rounds_that_do_not_count_are_not_balanced_either() -> None:
    timed = TimedRuns({"a": turns(10, 90, 12, others=(0.0, 2.0, 0.0)), "b": turns(20, 24, 24)})
    found = balanced_rounds(timed)
    assert [len(found[name]) for name in ("a", "b")] == [2, 3]
    # Alone in its round, b says nothing about what was done to others there.
    assert found["b"][1] == timed.median_ns("b")


def test_turns_with_busy_others_are_left_out() -> None:
    others = (0.0, 1.5, 0.01, 1.2, 0.05, 0.9)
    timed = TimedRuns({"a": turns(10, 90, 12, 80, 14, 70, others=others)})
    assert timed.counted("a") == (0, 2, 4)
    assert timed.median_ns("a") == 12
    assert timed.median_others_cores == 0.01


def test_turns_with_far_cores_are_left_out() -> None:
    timed = TimedRuns({"a": turns(10, 19, 12, latencies=(40, 200, 60))})
    assert timed.counted("a") == (0, 2)
    assert timed.median_core_to_core_ns == 50


def test_ratio_takes_rounds_that_count_for_both() -> None:
    left = turns(10, 10, 10, latencies=(40, 200, 40))
    right = turns(10, 20, 40, latencies=(40, 40, 200))
    assert TimedRuns({"a": left, "b": right}).ratio("a", "b") == 1.0


def test_a_third_of_the_turns_counts_if_all_are_disturbed() -> None:
    busy = (2.0, 1.0, 2.0, 2.0, 2.0, 1.5)
    assert TimedRuns({"a": turns(1, 2, 3, 4, 5, 6, others=busy)}).counted("a") == (1, 5)
    far = TimedRuns({"a": turns(1, 2, 3, latencies=(300, 200, 250))})
    assert far.counted("a") == (1,)
    assert far.median_core_to_core_ns == 200


def test_what_others_use_is_measured_for_each_turn() -> None:
    clocks, _ = make_clocks()
    result = time_in_turns(clocks, num_rounds=2)
    assert all(turn.others_cores >= 0 for name in clocks for turn in result.turns[name])


def test_quiet_is_not_said_while_a_thread_works() -> None:
    stop = threading.Event()

    def work() -> None:
        while not stop.is_set():
            sum(range(1000))

    worker = threading.Thread(target=work)
    worker.start()
    try:
        was_quiet = wait_until_quiet(0.2)
    finally:
        stop.set()
        worker.join()
    assert not was_quiet
    assert wait_until_quiet(10.0)


def test_something_is_waited_for_before_each_turn() -> None:
    clocks, turns = make_clocks()
    waits: list[int] = []
    time_in_turns(clocks, num_rounds=2, before_turn=lambda: waits.append(len(turns)))
    assert len(waits) == 2 * len(clocks) and waits[0] == len(clocks)


def test_near_cores_are_waited_for_as_long_as_the_budget_lasts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slept: list[float] = []
    monkeypatch.setattr("time.sleep", slept.append)
    latencies = iter([200, 200, 40, 200, 200, None])
    near = NearCores(lambda: next(latencies), budget_s=1.2)
    assert near.wait() and len(slept) == 2
    assert not near.wait() and len(slept) == 3
    assert near.wait()
