"""Kill a profiling at random moments and resume it; print what was begun, lost and kept as JSON.

    python profile_kills.py STORE LOG NUM_KILLS SEED alone|whole

The network is lowered once, in a process without threads; each profiling is a fork of it. A line
in LOG is a measurement that was begun. Both alone and whole, the last profiling is not killed.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from pathlib import Path

import tvm
from relay_models import compiled_of, cpu_cluster, extraction_of, two_branches

from heteroplace.costs.sampling import SamplingOptions
from heteroplace.costs.store import CostStore
from heteroplace.measure.devices_under_test import find_devices_under_test
from heteroplace.measure.measure_options import ProfileOptions
from heteroplace.measure.profile import profile_network
from heteroplace.stage_log import StageLog

_WAIT_S = 60
_MAX_DELAY_S = 0.2
"""Shorter than the measuring of one network, and than that of all kernels alone."""


class BegunMeasurements:
    """A display that writes a line of each measurement that begins."""

    def __init__(self, log: Path, is_whole: bool) -> None:
        self.log, self.is_whole, self.is_measuring = log, is_whole, False

    def stage(self, text: str, budget_s: float | None = None) -> None:
        """A network in place is one measurement."""
        self.is_measuring = text.startswith("Measuring")
        if self.is_measuring and self.is_whole:
            self.write(0)

    def count(self, done: int, total: int) -> None:
        """Kernels alone are one each."""
        if self.is_measuring and not self.is_whole:
            self.write(total)

    def detail(self, text: str) -> None:
        """Details are not counted."""

    def write(self, total: int) -> None:
        with self.log.open("a") as stream:
            stream.write(f"{os.getpid()} {total}\n")


def main(store: Path, log: Path, num_kills: int, seed: int, is_whole: bool) -> None:
    """Run, kill, resume; see the module."""
    extraction = extraction_of(two_branches())
    compiled, cluster = compiled_of(extraction), cpu_cluster()
    log.touch()

    def profile() -> None:
        with CostStore(store) as opened, tvm.transform.PassContext(opt_level=3):
            options = ProfileOptions(
                is_in_place=is_whole,
                modes=("hot", "cold"),
                store=opened,
                finishes_each=True,
                sampling=SamplingOptions(precision_ratio=0.0, max_ns=20_000_000),
                least_rounds=300,  # the network is tiny: a round takes a few ms
                progress=StageLog(display=BegunMeasurements(log, is_whole)),
            )
            profile_network(compiled, cluster, options)

    delays = random.Random(seed)
    kept, num_killed = [], 0
    for _ in range(num_kills):
        child = fork(profile)
        # Into the measuring: what is killed before it has nothing to lose.
        wait_for(lambda child=child: is_over(child) or f"{child} " in log.read_text())
        time.sleep(delays.uniform(0, _MAX_DELAY_S))
        num_killed += kill(child)
        with CostStore(store) as opened:
            kept.append(len(opened))
    child = fork(profile)
    wait_for(lambda: is_over(child))
    with CostStore(store) as opened:
        kept.append(len(opened))
    begun = [line.split() for line in log.read_text().splitlines()]
    networks = find_devices_under_test(compiled.graph, cluster)
    print(
        json.dumps(
            {
                "total": len(networks) if is_whole else int(begun[0][1]),
                "begun": len(begun),
                "killed": num_killed,
                "kept": kept,
            }
        )
    )


def fork(work: object) -> int:
    """Run `work` in a child; return its process id."""
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    return child


_ended: dict[int, int] = {}


def is_over(child: int) -> bool:
    """Say whether a child has ended; one that failed is an error."""
    if child not in _ended:
        found, status = os.waitpid(child, os.WNOHANG)
        if found == 0:
            return False
        _ended[child] = status
        if status != 0:
            raise SystemExit(f"a profiling failed with status {status}")
    return True


def kill(child: int) -> int:
    """Kill a child; 1 if that ended it, 0 if it had ended by itself."""
    if is_over(child):
        return 0
    os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    _ended[child] = status
    return int(os.WIFSIGNALED(status))


def wait_for(is_true: object) -> None:
    """Wait until a condition holds, for a minute at most."""
    end = time.monotonic() + _WAIT_S
    while not is_true():
        if time.monotonic() > end:
            raise SystemExit("nothing happened for a minute")
        time.sleep(0.002)


if __name__ == "__main__":
    arguments = sys.argv[1:]
    main(Path(arguments[0]), Path(arguments[1]), *map(int, arguments[2:4]), arguments[4] == "whole")
