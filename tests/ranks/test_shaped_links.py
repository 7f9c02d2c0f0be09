"""Ranks behind links of a chosen bandwidth and delay: what goes over them, what is predicted."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import overlap_rank
import pytest

from benchmarks.ranks.command import LINKS, prediction_quality, shaped_name, table
from benchmarks.ranks.launch import command_of, run_ranks
from benchmarks.ranks.plans import PlanOptions, plan_rows
from benchmarks.ranks.shaped import ShapedLink
from heteroplace.errors import ExecutionError
from heteroplace.files.cluster_file import load_cluster, save_cluster
from heteroplace.parts.hosts.machines import hosts_of_cores
from tests.programs import environment

SLOW = ShapedLink(100_000_000, 100_000)
MAX_HEADERS = 1.05
FEW_BYTES = 200_000
TIMEOUT_S = 120.0


@pytest.mark.costly
def test_all_bytes_go_over_the_link_while_the_core_that_sends_goes_on(
    shaped_links: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", environment()["PYTHONPATH"])
    script = [sys.executable, str(Path(overlap_rank.__file__))]
    found = json.loads(run_ranks(2, script, SLOW, TIMEOUT_S))
    assert 1 <= found["sent_bytes"] / overlap_rank.NUM_BYTES <= MAX_HEADERS
    [(begin, end)] = found["spans"]["to rank 1"]
    beside = [(a, b) for a, b in found["spans"]["in ram.a"] if begin < a and b < end]
    assert beside, found


def test_ranks_that_fail_are_told_with_what_they_said(launcher: str) -> None:
    script = [sys.executable, "-c", "import sys; sys.exit('no such model')"]
    with pytest.raises(
        ExecutionError, match=r"2 ranks ended with status \d+: (.|\n)*no such model"
    ):
        run_ranks(2, script, timeout_s=TIMEOUT_S)


@pytest.mark.costly
@pytest.mark.parametrize("link", [None, SLOW], ids=["one machine", "shaped"])
def test_ranks_that_do_not_end_are_ended(
    shaped_links: str, link: ShapedLink | None, tmp_path: Path
) -> None:
    # Each writes who it is, and sleeps.
    write = "import os, pathlib, time; pathlib.Path(str(os.getpid())).touch(); time.sleep(1000)"
    script = ["env", "-C", str(tmp_path), sys.executable, "-c", write]
    with pytest.raises(ExecutionError, match=r"2 ranks did not end in 3 s"):
        run_ranks(2, script, link, timeout_s=3)
    ranks = [int(path.name) for path in tmp_path.iterdir()]
    deadline_s = time.monotonic() + TIMEOUT_S
    while left := [rank for rank in ranks if Path(f"/proc/{rank}").exists()]:
        assert time.monotonic() < deadline_s, left
        time.sleep(0.05)


@pytest.mark.slow
def test_a_probe_finds_no_faster_link_than_there_is(shaped_links: str, tmp_path: Path) -> None:
    hosts, probed = str(tmp_path / "hosts.json"), tmp_path / "cluster.json"
    save_cluster(hosts_of_cores(["a", "b"]), hosts)
    command = command_of("probe", "--cluster", hosts, "-o", str(probed), "--quick")
    run_ranks(2, command, SLOW, TIMEOUT_S)
    links = load_cluster(probed).links
    assert [(link.src, link.dst) for link in links] == [(0, 1), (1, 0)]
    for link in links:
        size, time_ns = link.measured[-1]
        total_ns = link.latency_ns + time_ns
        assert total_ns >= SLOW.delay_ns + size * 8 * 10**9 // SLOW.bits_per_second


@pytest.mark.slow
@pytest.mark.parametrize("link", [None, SLOW], ids=["one machine", "shaped"])
def test_plans_over_two_ranks_are_equal_to_one_process(
    launcher: str, link: ShapedLink | None, request: pytest.FixtureRequest
) -> None:
    if link is not None:
        request.getfixturevalue("shaped_links")
    options = PlanOptions(num_random=4, budget_s=0.5, num_rounds=2, is_quick=True)
    rows = plan_rows("squeezenet", 2, link, options, lambda line: None)
    assert len(rows) >= 5
    assert all(row["equal"] for row in rows)
    assert any(row["bytes"] for row in rows)
    for row in rows:
        planned, sent = row["bytes"], row["link_bytes"]
        assert isinstance(planned, int)
        assert (sent is None) == (link is None)
        if isinstance(sent, int) and planned > FEW_BYTES:
            assert 1 <= sent / planned <= MAX_HEADERS


@pytest.mark.costly
def test_the_table_has_a_line_for_each_plan_and_one_for_the_predictions() -> None:
    row = {
        **{"case": "plan/x", "model": "x", "ranks": 2, "link": "one machine", "bytes": 8},
        **{"ours_us": None, "raw_us": None, "ratio_to_raw": None, "one_process_ms": 1.0},
    }
    rows = [
        {**row, "plan": "auto", "predicted_ms": 1.0, "measured_ms": 1.25, "equal": True},
        {**row, "plan": "uniform 1", "predicted_ms": 2.0, "measured_ms": 2.0, "equal": False},
    ]
    assert prediction_quality(rows) == (pytest.approx(0.1), pytest.approx(1.0))
    lines = table(rows).splitlines()
    assert lines[1].split()[-1] == "yes"
    assert lines[2].split()[-1] == "NO"
    assert lines[-1].split()[-3:] == ["10.0", "%", "1"]


def test_links_are_those_of_the_claim_and_have_names() -> None:
    assert [link.name for link in LINKS] == [
        "0.1 Gbit/s, 0.1 ms",
        "0.1 Gbit/s, 5 ms",
        "1 Gbit/s, 0.1 ms",
        "1 Gbit/s, 5 ms",
    ]
    assert shaped_name(LINKS[1], "vit") == "shaped/0.1/5/vit"
