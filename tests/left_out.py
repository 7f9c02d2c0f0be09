"""Tests that a run leaves out -> lines at its end: how many of each kind, and the command for them.

A pytest plugin. Under pytest-xdist the workers count, and each sends its counts to the controller.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest
from _pytest.terminal import TerminalReporter

from tests.selected_tests import KIND

COMMANDS = {
    "gpu": "need an NVIDIA GPU: make gpu",
    "slow": "are slow: make test-all",
    "unreached": "take seconds and do not reach the change: make test-all",
    "reached": "reach the change, but take more seconds than a run has for them: make test-all",
}
"""A kind of tests -> why a run leaves them out, and the command that runs them.

A kind is a mark, and a test of several marks belongs to the first one; or it is what the choice of
costly tests says (`KIND`)."""

_COUNTS = pytest.StashKey[Counter[str]]()


def pytest_configure(config: pytest.Config) -> None:
    """Start the counts of this process."""
    config.stash[_COUNTS] = Counter()


def pytest_deselected(items: Sequence[pytest.Item]) -> None:
    """Count deselected tests by their kind; tests without such a mark were deselected by hand."""
    for item in items:
        kinds = [mark for mark in COMMANDS if item.get_closest_marker(mark) is not None]
        kinds.append(item.stash.get(KIND, ""))
        if kinds[0]:
            item.config.stash[_COUNTS][kinds[0]] += 1


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Send the counts of a worker to the controller."""
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["left_out"] = dict(session.config.stash[_COUNTS])


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: object) -> None:
    """Take the counts of a worker. All workers collect the same tests, so any of them will do."""
    counts = getattr(node, "workeroutput", {}).get("left_out")
    if counts is not None:
        node.config.stash[_COUNTS] = Counter(counts)  # type: ignore[attr-defined]


def pytest_terminal_summary(terminalreporter: TerminalReporter, config: pytest.Config) -> None:
    """Print a line for each kind that was left out."""
    counts = config.stash[_COUNTS]
    for mark, command in COMMANDS.items():
        if counts[mark]:
            terminalreporter.write_line(f"left out: {counts[mark]} tests that {command}")
