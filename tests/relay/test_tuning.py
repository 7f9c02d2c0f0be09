"""`heteroplace.tune`: a search that is stored, goes on, is judged in place and told."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import tvm
from onnx_models import make_model, node
from relay_models import cpu_cluster, module, var
from tvm import relay

import heteroplace as hp
from heteroplace.cli.main import main
from heteroplace.costs.store import CostStore
from heteroplace.costs.tunings import TunedPlace, add_trials, find_tunings
from heteroplace.errors import MissingCostError, SolverError
from heteroplace.files.cluster_file import save_cluster
from heteroplace.lower.kernels import Kernel, KernelCall
from heteroplace.machine.fingerprint import device_fingerprint
from heteroplace.measure.kernels.kernel_times import KernelTimes, peaks_seen
from heteroplace.measure.machine_peaks import Peaks
from heteroplace.model.cluster import Cluster
from heteroplace.parts.kernels.tuned import tune
from heteroplace.parts.kernels.tuned.in_model_judge import Judged, is_faster, judge
from heteroplace.parts.kernels.tuned.schedule_search import NO_SPACE, TuneStep
from heteroplace.parts.kernels.tuned.trials import TrialBench
from heteroplace.parts.kernels.tuned.tune import tunable_part
from heteroplace.parts.kernels.tuned.tune_command import describe_step
from heteroplace.parts.kernels.tuned.tuning_report import Outlook, TunedKernel, TuneReport

pytestmark = pytest.mark.relay

PEAKS = Peaks(1e9, 1e9)


def one_core() -> Cluster:
    """One device of one core."""
    cluster = cpu_cluster()
    return replace(cluster, devices=cluster.devices[:1])


def kernel(op: str, *ns: int, flops: int = 0, num_bytes: int = 0) -> KernelTimes:
    tasks = tuple(f"{op}.{index}" for index in range(len(ns)))
    return KernelTimes(op, op, op, "float32[8]", tasks, flops, num_bytes, ns)


@pytest.mark.costly
def test_a_search_goes_on_until_it_is_interrupted_and_is_judged(tmp_path: Path) -> None:
    x = var("x", (256, 64))
    mod = module([x], relay.max(x, axis=0))
    store = tmp_path / "costs.sqlite"
    with tvm.transform.PassContext(opt_level=3):
        first = hp.tune(mod, one_core(), budget=0.001, store=store)
        steps: list[TuneStep] = []

        def interrupt(step: TuneStep) -> None:
            steps.append(step)
            if len(steps) == 2:
                raise KeyboardInterrupt

        second = hp.tune(mod, one_core(), budget="1h", store=store, on_step=interrupt)
    (before,), (after,) = first.kernels, second.kernels
    assert before.trials > 0 and before.trials_before == 0 and not first.was_interrupted
    assert after.trials_before == before.trials and second.was_interrupted
    assert steps[1].trials == after.trials > 0
    assert after.own_ns > 0 and after.is_kept == is_faster({1: (after.own_ns, after.tuned_ns)})
    assert "interrupted after" in second.text()


@pytest.mark.costly
def test_the_schedule_that_won_now_is_judged_and_not_one_that_was_quick_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ours takes 1200 ns, the first new one 900 and all others 1100."""
    x = var("x", (256, 64))
    mod, path = module([x], relay.max(x, axis=0)), tmp_path / "costs.sqlite"

    def times(_bench: TrialBench, _call: KernelCall, kernels: Sequence[Kernel]) -> list[int]:
        return [1200, 900, *[1100] * (len(kernels) - 2)]

    judged: list[str] = []

    def noted(*arguments: Any) -> Judged:
        judged.extend(arguments[2].values())
        return judge(*arguments)

    monkeypatch.setattr(tune, "judge", noted)
    monkeypatch.setattr(TrialBench, "times", times)
    with tvm.transform.PassContext(opt_level=3):
        hp.tune(mod, one_core(), budget=0.001, store=path)
        device = one_core().devices[0]
        place = TunedPlace(device.target, device_fingerprint(device))
        with CostStore(path) as store:
            (first,) = find_tunings(store, place).values()
            add_trials(store, place, replace(first, trials=0, found_ns=500))  # as of more cores
        hp.tune(mod, one_core(), budget=0.001, store=path)
        with CostStore(path) as store:
            (second,) = find_tunings(store, place).values()
    assert second.found != first.found and second.found_ns == 900
    assert judged == [first.found, second.found]


@pytest.mark.costly
def test_a_kernel_that_no_tuner_knows_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = make_model(
        [node("TopK", "x k", "y z")], {"x": [4, 64]}, ["y"], {"k": np.array([3], np.int64)}
    )
    onnx.save(model, tmp_path / "net.onnx")
    save_cluster(one_core(), tmp_path / "c.json")
    where = ["--cluster", str(tmp_path / "c.json"), "--store", str(tmp_path / "s.sqlite")]
    assert main(["tune", str(tmp_path / "net.onnx"), *where, "--budget", "1s", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert NO_SPACE in {row["outcome"] for row in found["kernels"]}
    assert found["outlook"]["total_ns"] > 0 and found["gain_ns"] == 0


def test_only_cpus_that_are_here_are_tuned() -> None:
    part, widest = tunable_part(cpu_cluster())
    assert part.devices[widest].name == "cpu.all"
    far = replace(cpu_cluster().devices[0], cores=(100_000,))
    with pytest.raises(MissingCostError, match="has no CPU that is in this machine"):
        tunable_part(replace(cpu_cluster(), devices=(far,)))


def test_what_is_no_budget_or_no_store_is_told_at_once() -> None:
    mod = module([], relay.const(1.0))
    with pytest.raises(SolverError, match="budget='soon': expected a time such as"):
        hp.tune(mod, one_core(), budget="soon")
    with pytest.raises(SolverError, match="give a path, or 'on'"):
        hp.tune(mod, one_core(), store="off")


def test_the_outlook_tells_what_is_left_to_gain() -> None:
    quick = kernel("nn.relu", 10, num_bytes=20)  # from a cache: nothing is left
    slow = kernel("nn.dense", 100, 300, flops=50)
    outlook = Outlook("cpu.all", 2, PEAKS, (slow, quick))
    assert (outlook.total_ns, outlook.gain_ns) == (410, 300)
    assert "could gain at most 300 ns (73%)" in outlook.text()
    assert "... and 1 kernels, 10 ns" in outlook.text(max_rows=1)


def test_peaks_are_at_least_what_a_kernel_reached() -> None:
    kernels = [kernel("nn.dense", 10, flops=50, num_bytes=5), kernel("nn.relu", 10, num_bytes=30)]
    assert peaks_seen(PEAKS, kernels) == Peaks(5e9, 3e9)
    assert peaks_seen(Peaks(1e12, 1e12), kernels) == Peaks(1e12, 1e12)


def test_the_report_counts_only_what_is_kept() -> None:
    outlook = Outlook("cpu.all", 2, PEAKS, (kernel("nn.dense", 400),))
    row = TunedKernel("nn.dense", "f", 1, 8, 0, 0.5, 400, 300, True, "")
    rest = (
        replace(row, tuned_ns=500, is_kept=False),
        replace(row, trials=0, alone_ratio=None, own_ns=0, is_kept=False),
        replace(row, trials=0, alone_ratio=None, own_ns=0, is_kept=False, why_not=NO_SPACE),
    )
    report = TuneReport(outlook, (row, *rest), 5.0, 2.0, False)
    assert report.gain_ns == 100
    assert [each.outcome() for each in report.kernels] == [
        "kept",
        "not faster in place",
        "no time for it",
        NO_SPACE,
    ]
    assert "1 kept, which gain 100 ns of 400 ns on cpu.all" in report.text()


def test_faster_is_by_more_than_noise() -> None:
    assert is_faster({1: (100, 96)}) and is_faster({1: (100, 120), 2: (100, 90)})
    assert not is_faster({1: (100, 98)}) and not is_faster({})


def test_progress_says_how_far_a_search_is() -> None:
    assert describe_step(TuneStep("nn.dense", 24, 3.2, 1)) == (
        "24 schedules measured, 1 kernels faster alone; next: nn.dense"
    )


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (["--cluster", "local", "--budget", "soon"], 2, "expected a time such as 30s, 10m or 1h"),
        (["--cluster", "local", "--bugdet", "1s"], 2, 'did you mean "--budget"?'),
        (["--cluster", "local"], 4, "there is no such file"),
    ],
)
def test_wrong_arguments_are_answered(
    arguments: list[str], code: int, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        found = main(["tune", "nothing.onnx", *arguments])
    except SystemExit as end:
        found = int(end.code or 0)
    assert found == code
    assert told in capsys.readouterr().err
