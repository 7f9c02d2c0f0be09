"""usage: what the machine works without this process, from made-up clocks."""

from __future__ import annotations

from collections import namedtuple

import psutil
import pytest

from heteroplace.machine.usage import Usage

Times = namedtuple(
    "Times", "user nice system idle iowait irq softirq steal guest guest_nice", defaults=[0.0] * 10
)


def machine_s(monkeypatch: pytest.MonkeyPatch, times: object) -> float:
    monkeypatch.setattr(psutil, "cpu_times", lambda: times)
    return Usage.now().machine


def test_guests_are_in_user_and_nice_time_already(monkeypatch: pytest.MonkeyPatch) -> None:
    times = Times(user=5.0, nice=3.0, guest=2.0, guest_nice=1.0)
    assert machine_s(monkeypatch, times) == 8.0


def test_waiting_is_not_work_and_all_else_is(monkeypatch: pytest.MonkeyPatch) -> None:
    times = Times(1.0, 2.0, 4.0, idle=1000.0, iowait=500.0, irq=8.0, softirq=16.0, steal=32.0)
    assert machine_s(monkeypatch, times) == 63.0


def test_a_system_that_counts_less_has_the_rest_as_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    few = namedtuple("few", "user nice system idle")
    assert machine_s(monkeypatch, few(1.0, 2.0, 4.0, 8.0)) == 7.0


def test_this_process_is_left_out() -> None:
    before, after = Usage(10.0, 1.0, 100.0), Usage(12.0, 2.5, 104.5)
    assert after.others_since(before) == 1.5


def test_others_are_never_less_than_none() -> None:
    before, after = Usage(10.0, 1.0, 100.0), Usage(10.0, 1.5, 100.0)
    assert after.others_since(before) == 0.0


def test_a_step_that_a_short_run_caused_is_not_that_of_others() -> None:
    # Two threads for 2.4 ms, at whose end the system counted a whole step of 10 ms.
    before, after = Usage(10.0, 1.0, 100.0), Usage(10.0024, 1.0043, 100.01)
    assert after.others_since(before) == 0.0


def test_many_steps_in_a_short_run_are_those_of_others() -> None:
    before, after = Usage(10.0, 1.0, 100.0), Usage(10.1, 1.1, 100.2)
    assert after.others_since(before) == pytest.approx(1.0)
