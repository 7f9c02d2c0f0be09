"""A small model of Chrome's trace-event format: what a trace must be for viewers to draw it."""

from __future__ import annotations

import json
from collections import defaultdict
from typing import Any

Event = dict[str, Any]


def checked(text: str) -> list[Event]:
    """Return the events of a trace, in the order of the file.

    Checked: the fields of each kind of event, names before use, slices of a row either nested or
    apart, arrows that join two slices in the order of time, ends of asynchronous events, counters
    that are not negative.
    """
    events: list[Event] = json.loads(text)["traceEvents"]
    rows: dict[tuple[int, int], list[Event]] = defaultdict(list)
    for event in events:
        assert {"ph", "name", "pid", "tid", "ts"} <= set(event), event
        assert event["ph"] in "MXsfbeC", event
        if event["ph"] == "X":
            assert event["dur"] >= 0, event
            rows[event["pid"], event["tid"]].append(event)
    named = {(e["pid"], e["tid"]) for e in of(events, "M") if e["name"] == "thread_name"}
    assert set(rows) <= named
    for slices in rows.values():
        _check_nesting(slices)
    _check_arrows(events, rows)
    open_ids: dict[tuple[str, int], float] = {}
    for event in sorted(of(events, "b") + of(events, "e"), key=lambda e: (e["ts"], e["ph"])):
        key = (event["cat"], event["id"])
        if event["ph"] == "b":
            assert key not in open_ids
            open_ids[key] = event["ts"]
        else:
            assert open_ids.pop(key) <= event["ts"]
    assert not open_ids
    assert all(value >= 0 for e in of(events, "C") for value in e["args"].values())
    return events


def of(events: list[Event], phase: str, category: str | None = None) -> list[Event]:
    """Return the events of one phase, and of one category."""
    return [e for e in events if e["ph"] == phase and category in (None, e.get("cat"))]


def _end(event: Event) -> float:
    # In whole ns, as sums of microseconds are not exact.
    return round(1000 * event["ts"]) + round(1000 * event["dur"])


def _check_nesting(slices: list[Event]) -> None:
    open_ends: list[float] = []
    for event in sorted(slices, key=lambda e: (e["ts"], -e["dur"])):
        while open_ends and open_ends[-1] <= round(1000 * event["ts"]):
            open_ends.pop()
        assert not open_ends or _end(event) <= open_ends[-1], event
        open_ends.append(_end(event))


def _check_arrows(events: list[Event], rows: dict[tuple[int, int], list[Event]]) -> None:
    starts = {e["id"]: e for e in of(events, "s")}
    ends = {e["id"]: e for e in of(events, "f")}
    assert starts.keys() == ends.keys()
    for key, start in starts.items():
        end = ends[key]
        assert start["ts"] <= end["ts"]
        assert end["bp"] == "e"
        assert _slice_at(rows, start) is not _slice_at(rows, end)


def _slice_at(rows: dict[tuple[int, int], list[Event]], arrow: Event) -> Event:
    at = round(1000 * arrow["ts"])
    around = [
        e
        for e in rows[arrow["pid"], arrow["tid"]]
        if round(1000 * e["ts"]) <= at <= _end(e) and e.get("cat") != "wait"
    ]
    assert around, arrow
    # Where one ends as the next begins, an arrow leaves the first and reaches the last.
    return around[0 if arrow["ph"] == "s" else -1]
