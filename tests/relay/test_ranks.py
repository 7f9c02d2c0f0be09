"""Ranks under `mpiexec`: the bytes of one process, one trace, typed refusals; Python programs."""

from __future__ import annotations

import gc
import json
import os
import re
import sys
import threading
import weakref
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from rank_jobs import (
    PROGRAM,
    chain_of,
    compiled,
    python,
    run_job,
    two_hosts,
    values,
)

from heteroplace.errors import ExecutionError
from heteroplace.parts.hosts.native.core_ranks import Group, local_transports
from heteroplace.parts.hosts.ranked_executor import (
    RankedExecutor,
    abort_after_failure,
    load_as_rank,
)
from tests.compiled_files import read_parts

pytestmark = pytest.mark.relay
SILENCE_S = 60.0


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ranks")
    np.save(folder / "x.npy", values())
    return compiled(folder / "model.so", two_hosts())


def inputs_of(model: Path) -> list[object]:
    return ["--input", f"x={model.parent / 'x.npy'}"]


@pytest.mark.parametrize("hosts", ["a,b", "b,a"])
def test_two_ranks_give_the_bytes_of_one_process(model: Path, hosts: str, tmp_path: Path) -> None:
    output, trace = tmp_path / "y.npy", tmp_path / "trace.json"
    options = ["--output", f"output0={output}", "--repeat", "4", "--trace", trace]
    done = run_job(2, PROGRAM, model, *inputs_of(model), *options, "--hosts", hosts)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("first run ")
    assert np.array_equal(np.load(output), chain_of(values()))
    written = json.loads(trace.read_text())
    uncertain_ns = written["otherData"]["clock_uncertainty_ns"]
    assert list(uncertain_ns) == ["a", "b"]
    assert uncertain_ns["a"] == 0 < uncertain_ns["b"]  # host a feeds, whatever its rank
    rows = [at["args"]["name"] for at in written["traceEvents"] if at["name"] == "thread_name"]
    assert {row.split("/")[0] for row in rows} == {"a", "b"}
    arrows = [at for at in written["traceEvents"] if at.get("cat") == "data"]
    assert arrows
    runs = [at for at in written["traceEvents"] if at.get("cat") == "run"]
    assert {at["args"]["request"] for at in runs} == {0, 1, 2}
    assert "dense.1" in {at["name"] for at in runs}  # of the plan, not of the kernel


def told(done) -> list[str]:
    """The lines of ours on the terminal; the launcher adds its own."""
    lines = (done.stderr + done.stdout).splitlines()
    return [line for line in lines if line.startswith("heteroplace-run: ")]


def test_too_many_ranks_are_told_in_one_line(model: Path) -> None:
    done = run_job(3, PROGRAM, model, *inputs_of(model))
    (line,) = told(done)
    assert "is for 2 hosts ('a', 'b'), and 3 ranks were started" in line
    assert done.returncode != 0


def test_too_few_ranks_are_told(model: Path) -> None:
    done = run_job(1, PROGRAM, model, *inputs_of(model))
    (line,) = told(done)
    assert "is for 2 hosts ('a', 'b')" in line
    assert done.returncode != 0


def test_a_foreign_file_on_one_rank_ends_all(model: Path, tmp_path: Path) -> None:
    other = compiled(tmp_path / "other.so", two_hosts(last=0))
    done = run_job(1, PROGRAM, model, *inputs_of(model), ":", "-n", "1", PROGRAM, other)
    (line,) = told(done)
    assert line.startswith("heteroplace-run: rank 1 (on ")
    assert " has file " in line
    assert "start all ranks with the same file" in line
    assert done.returncode != 0


def test_a_missing_core_on_one_rank_ends_all(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", values())
    model = compiled(tmp_path / "model.so", two_hosts(last=1000))
    done = run_job(2, PROGRAM, model, *inputs_of(model))
    (line,) = told(done)
    assert line.startswith("heteroplace-run: rank 1 (host 'b' on ")
    assert "1000" in line
    assert done.returncode != 0


def keep_state_on_last(model: Path, path: Path) -> Path:
    """The same with an input on the host that does not feed it, which runs replace."""
    parts = read_parts(model)
    before, line, last = parts.program.rpartition(b"\nheteroplace-program ")
    tensor = re.search(rb"\nrecv \d+ \d+ (\d+) ", last)
    assert tensor is not None
    ports = b"\ninput w %s\noutput w %s\nkernel " % (tensor.group(1), tensor.group(1))
    program = before + line + last.replace(b"\nkernel ", ports, 1)
    path.write_bytes(replace(parts, program=program).sealed().to_bytes())
    return path


def test_state_that_no_rank_could_set_is_refused_at_load(model: Path, tmp_path: Path) -> None:
    path = keep_state_on_last(model, tmp_path / "model.so")
    done = run_job(2, PROGRAM, path, "--describe")
    (line,) = told(done)
    assert f"{path} has state that no rank could set here: 'w' on host 'b'" in line
    assert "load it in Python" in line
    assert done.returncode != 0 and "input" not in done.stdout


def test_a_wrong_command_line_is_told_once(model: Path) -> None:
    done = run_job(2, PROGRAM, model, "--nonsense", "1")
    (line,) = told(done)
    assert "there is no option --nonsense" in line


def on_ranks(model: Path, work: Callable[[RankedExecutor], None]) -> list[BaseException | None]:
    """Load on two ranks that are threads, and do something on each; return what each raised."""
    transports = local_transports(2, is_buffered=True)
    raised: list[BaseException | None] = [None, None]

    def rank(number: int) -> None:
        try:
            group = Group(transports[number], SILENCE_S)
            work(load_as_rank(str(model), group, max_in_flight=2))
        except BaseException as err:  # of whatever kind: the test looks at it
            raised[number] = err

    threads = [threading.Thread(target=rank, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return raised


def test_all_functions_work_on_the_feeding_rank(model: Path) -> None:
    x, expected = values(), chain_of(values())

    def work(executor: RankedExecutor) -> None:
        assert executor.inputs == (("x", (4, 16), "float32"),)
        if not executor.is_feeding:
            executor.serve()
            return
        with executor.trace() as trace:
            assert np.array_equal(executor.run(x=x)[0], expected)
            assert np.array_equal(executor.run_async(x=x).result()[0], expected)
            many = list(executor.run_many([{"x": x}] * 5))
            assert all(np.array_equal(one[0], expected) for one in many)
        assert [one.number for one in trace.requests] == list(range(7))
        assert {use.queue.split("/")[0] for use in trace.busy} == {"a", "b"}
        assert len(executor.benchmark(3)) == 3
        assert executor.timeline(2).makespan_ns > 0
        assert {"ram.a", "ram.b"} == set(executor.memory())
        with pytest.raises(ExecutionError, match="has no routers"):
            executor.prediction_counts()
        with pytest.raises(ExecutionError, match="copied bytes are counted in a process alone"):
            executor.copied_bytes()
        executor.close()
        with pytest.raises(ExecutionError, match="was closed"):
            executor.run(x=x)

    assert on_ranks(model, work) == [None, None]


def test_a_job_that_is_over_is_not_kept_till_the_process_ends(model: Path) -> None:
    groups: list[weakref.ref[Group]] = []

    def work(executor: RankedExecutor) -> None:
        group = executor._group  # what a program never sees
        abort_after_failure(group, None)
        groups.append(weakref.ref(group))
        executor.close() if executor.is_feeding else executor.serve()

    assert on_ranks(model, work) == [None, None]
    gc.collect()
    assert [group() for group in groups] == [None, None]


def test_a_child_of_a_rank_is_none_and_ends_nothing(model: Path) -> None:
    x, expected = values(), chain_of(values())

    def work(executor: RankedExecutor) -> None:
        if not executor.is_feeding:
            executor.serve()
            return
        executor.run(x=x)
        child = os.fork()
        if child == 0:
            executor._group.fail("of the child")  # what its fault would do
            executor.close()
            del executor
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        assert np.array_equal(executor.run(x=x)[0], expected)
        executor.close()

    assert on_ranks(model, work) == [None, None]


def test_a_recording_may_end_before_its_calls(model: Path) -> None:
    x, expected = values(), chain_of(values())

    def work(executor: RankedExecutor) -> None:
        if not executor.is_feeding:
            executor.serve()
            return
        for _ in range(3):
            trace = executor.trace()
            trace.start()
            result = executor.run_async(x=x)
            trace.stop(timeout_s=0.0)  # of this rank: others answer when they do
            assert np.array_equal(result.result()[0], expected)
        executor.close()

    assert on_ranks(model, work) == [None, None]


def test_a_block_ends_the_job_and_its_fault_is_raised_on_all_ranks(model: Path) -> None:
    def work(executor: RankedExecutor, fault: Exception | None = None) -> None:
        with executor:
            if not executor.is_feeding:
                executor.serve()
            elif fault is not None:
                raise fault

    assert on_ranks(model, work) == [None, None]
    feeding, serving = on_ranks(model, lambda rank: work(rank, ValueError("wrong input")))
    assert isinstance(feeding, ValueError) and "wrong input" in str(serving)


def test_timed_calls_are_told_apart_from_those_beside_them(model: Path) -> None:
    x = values()

    def work(executor: RankedExecutor) -> None:
        if not executor.is_feeding:
            executor.serve()
            return
        executor.set_input("x", x)
        is_over = threading.Event()

        def call() -> None:
            while not is_over.is_set():
                executor.run(x=x)

        beside = threading.Thread(target=call)
        beside.start()
        try:
            timelines = [executor.timeline(3) for _ in range(5)]
        finally:
            is_over.set()
            beside.join()
            executor.close()
        assert all(timeline.makespan_ns > 0 for timeline in timelines)

    assert on_ranks(model, work) == [None, None]


def test_functions_of_the_other_side_say_what_to_call(model: Path) -> None:
    x = values()

    def work(executor: RankedExecutor) -> None:
        if executor.is_feeding:
            with pytest.raises(ExecutionError, match="feeds the model: call run here"):
                executor.serve()
            executor.close()
            return
        refused: list[Callable[[], object]] = [
            lambda: executor.run(x=x),
            lambda: executor.run_async(x=x),
            lambda: list(executor.run_many([{"x": x}])),
            lambda: executor.set_input("x", x),
            lambda: executor.get_output(0),
            lambda: executor.benchmark(1),
            lambda: executor.timeline(1),
            lambda: executor.trace().start(),
            lambda: executor.memory(),
            lambda: executor.core_to_core_ns(),
        ]
        for call in refused:
            with pytest.raises(ExecutionError, match=r"feeds the model, rank 0 .*call serve here"):
                call()
        executor.serve()

    assert on_ranks(model, work) == [None, None]


def test_a_rank_that_leaves_fails_all(model: Path) -> None:
    def work(executor: RankedExecutor) -> None:
        if executor.is_feeding:
            executor.run(x=values())

    feeding, other = on_ranks(model, work)
    assert other is None
    assert isinstance(feeding, ExecutionError)
    assert str(feeding).startswith("rank 1 (host 'b' on ")
    assert "left the job" in str(feeding)


SCRIPT = """
import sys
import numpy as np
import heteroplace
executor = heteroplace.load(sys.argv[1])
if executor.is_feeding:
    outputs = executor.run(x=np.load(sys.argv[2]))
    np.save(sys.argv[3], outputs[0])
else:
    executor.serve()
"""


@pytest.mark.costly(6)
def test_the_command_run_serves_on_the_rank_that_does_not_feed(model: Path, tmp_path: Path) -> None:
    pytest.importorskip("mpi4py")
    output = tmp_path / "y.npz"
    command = [sys.executable, "-m", "heteroplace.cli.main", "run", model, *inputs_of(model)]
    done = run_job(2, *command, "-o", output)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("a compiled file") == 1
    assert np.array_equal(np.load(output)["output0"], chain_of(values()))


def test_a_fault_of_the_feeding_program_is_raised_on_all_ranks(model: Path) -> None:
    def work(executor: RankedExecutor) -> None:
        if executor.is_feeding:
            executor.fail("rank 7 of the file is missing")
        executor.serve()

    for raised in on_ranks(model, work):
        assert isinstance(raised, ExecutionError)
        assert re.match(r"rank 0 \(host 'a' on .*\): rank 7 of the file is missing", str(raised))


@pytest.mark.slow
def test_a_python_program_under_mpiexec(model: Path, tmp_path: Path) -> None:
    pytest.importorskip("mpi4py")
    output = tmp_path / "y.npy"
    done = run_job(2, *python(SCRIPT, model, model.parent / "x.npy", output))
    assert (done.returncode, done.stderr) == (0, "")
    assert np.array_equal(np.load(output), chain_of(values()))


PARENT = """
import os, sys, time
import numpy as np
import heteroplace
executor = heteroplace.load(sys.argv[1])
if executor.is_feeding:
    x = np.load(sys.argv[2])
    executor.run(x=x)
    child = os.fork()
    if child == 0:
        sys.exit(7)
    end = time.monotonic() + 20
    ended, code = 0, 0
    while ended == 0 and time.monotonic() < end:
        ended, code = os.waitpid(child, os.WNOHANG)
        time.sleep(0.01)
    if ended == 0:
        os.kill(child, 9)
    executor.run(x=x)
    executor.close()
    print("the child ended with", os.waitstatus_to_exitcode(code) if ended else "nothing")
else:
    executor.serve()
"""


@pytest.mark.costly(4)
def test_a_child_of_a_rank_ends_as_any_process(model: Path) -> None:
    pytest.importorskip("mpi4py")
    done = run_job(2, *python(PARENT, model, model.parent / "x.npy"))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "the child ended with 7\n"
