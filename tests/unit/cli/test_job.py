"""A command on several ranks ends all of them where one has an error."""

from __future__ import annotations

import pytest

from heteroplace.cli.job import ended_together
from heteroplace.errors import ClusterError
from tests.ranks.thread_ranks import Job, ThreadRanks


class LaunchedThread(ThreadRanks):
    """A rank that notes that the job was ended."""

    num_aborts = 0

    def abort(self) -> None:
        self.num_aborts += 1


def test_an_error_ends_all_ranks_and_goes_on_to_the_caller(
    capsys: pytest.CaptureFixture[str],
) -> None:
    ranks = LaunchedThread(Job(1), 0)
    with pytest.raises(ClusterError, match="no link"), ended_together(ranks):
        raise ClusterError("no link")
    assert ranks.num_aborts == 1
    assert capsys.readouterr().err == "error on rank 0: no link\n"


def test_without_an_error_the_ranks_go_on() -> None:
    ranks = LaunchedThread(Job(1), 0)
    with ended_together(ranks):
        pass
    assert ranks.num_aborts == 0
