"""Programs with routers: what is done of them, predicted and recorded; texts that are refused."""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from pathlib import Path
from random import Random

import numpy as np
import pytest
from executor_programs import EXTENT, VECTOR_BYTES, make_executor, write_program

from heteroplace.errors import ArtifactError, ExecutionError
from heteroplace.files.routes_file import header_line
from heteroplace.lower.program import (
    BranchGuard,
    CapacityCall,
    Operand,
    Program,
    ProgramRouter,
    ProgramTensor,
    Queue,
    QueueInstruction,
    RouterPrediction,
    Space,
    branch_call,
    branch_copy,
)
from heteroplace.model.routed.route_profile import RouteRecord
from heteroplace.native.execute import Executor
from heteroplace.parts.routing.route_recording import RouteRecording

pytestmark = pytest.mark.timeout(60)

CELLS = 4
ROWS_BYTES = CELLS * VECTOR_BYTES
GIVEN = ("loads", "offsets", "seats", "x")
X, X_ROW, Y, Y_ROW, LOADS, OFFSETS, SEATS, FIRST_GIVEN = range(8)


def routed_program(*, overflow: str = "rounds") -> Program:
    """Cells of two branches: 2 x + 1 on q0, x + x on q1; rows without a cell stay x."""

    def rows(place: int) -> tuple[ProgramTensor, ProgramTensor]:
        whole = ProgramTensor(0, "arena", place, "float32", (CELLS, EXTENT))
        return whole, ProgramTensor(0, "arena", place, "float32", (EXTENT,))

    shapes = {"loads": (2,), "offsets": (2,), "seats": (CELLS, 2)}
    places = [2 * ROWS_BYTES + 64 * i for i in range(3)]
    made = [
        ProgramTensor(0, "arena", place, "int32", shape)
        for place, shape in zip(places, shapes.values(), strict=True)
    ]
    given = [ProgramTensor(0, "external", 0, "int32", shape) for shape in shapes.values()]
    given.append(ProgramTensor(0, "external", 0, "float32", (CELLS, EXTENT)))
    queues = (Queue("q0", "cpu", (1, 0), 0, 0), Queue("q1", "fake", (1, 0), 0, None))
    targets = (LOADS, OFFSETS, SEATS, X, Y)
    queues[0].instructions += [
        QueueInstruction("copy", 0, (str(FIRST_GIVEN + min(i, 3)), str(target)))
        for i, target in enumerate(targets)
    ]
    x, y = Operand(X_ROW, is_rows=True), Operand(Y_ROW, is_rows=True)
    twice, add = CapacityCall(1, 1, (x, y)), CapacityCall(1, 0, (x, x, y))
    queues[0].instructions.append(branch_call(1, BranchGuard(0, 0, "active"), 1, [twice]))
    queues[1].instructions.append(
        branch_call(2, BranchGuard(0, 1, "active"), 1, [add], ((0, len(targets)),))
    )
    router = ProgramRouter(
        *("moe", LOADS, OFFSETS, SEATS, overflow, CELLS, CELLS, 1, ((1,), (1,)), ((0, 1), (0, 2)))
    )
    tensors = (*rows(0), *rows(ROWS_BYTES), *made, *given)
    inputs = tuple((name, FIRST_GIVEN + i) for i, name in enumerate(GIVEN))
    space = Space("ram", (1, 0), 2 * ROWS_BYTES + 192)
    kernels = ("add", "twice")
    return Program((space,), queues, (), tensors, inputs, (("y", Y),), kernels, routers=(router,))


def text_of(program: Program) -> str:
    """An external tensor has no place."""
    return program.to_text().replace("external 0", "external -")


TEXT = text_of(routed_program())


def set_inputs(executor: Executor, loads: tuple[int, int], offsets: tuple[int, int]) -> np.ndarray:
    """Set a decision, in which each cell goes to one branch at most; return x."""
    seats = np.zeros((CELLS, 2), "int32")
    cell = 0
    for branch, load in enumerate(loads):
        for seat in range(min(max(load, 0), CELLS - cell)):
            seats[cell, branch] = seat + 1
            cell += 1
    x = np.arange(CELLS * EXTENT, dtype="float32").reshape(CELLS, EXTENT)
    executor.set_input("loads", np.array(loads, "int32"))
    executor.set_input("offsets", np.array(offsets, "int32"))
    executor.set_input("seats", seats)
    executor.set_input("x", x)
    return x


@pytest.mark.parametrize(
    ("loads", "offsets"), [((2, 1), (0, 2)), ((0, 4), (0, 0)), ((0, 0), (0, 0))]
)
def test_branches_do_the_rows_of_their_loads(
    library: str, loads: tuple[int, int], offsets: tuple[int, int]
) -> None:
    executor = make_executor(library, TEXT)
    y = set_inputs(executor, loads, offsets)
    executor.run()
    y[offsets[0] : offsets[0] + loads[0]] = 2 * y[offsets[0] : offsets[0] + loads[0]] + 1
    y[offsets[1] : offsets[1] + loads[1]] *= 2
    np.testing.assert_array_equal(executor.get_output("y"), y)


@pytest.mark.parametrize(
    ("loads", "offsets", "message"),
    [
        ((5, 0), (0, 0), "branch 0 of router 'moe' has 5 cells; expected 0 to 4"),
        ((0, -1), (0, 0), "branch 1 of router 'moe' has -1 cells"),
        ((1, 2), (0, 3), "branch 1 of router 'moe' has 2 rows from row 3 on; .* the 4 rows"),
        ((1, 1), (-1, 0), "branch 0 of router 'moe' has 1 rows from row -1 on"),
    ],
)
def test_decisions_that_fit_nowhere_fail_the_run_alone(
    library: str, loads: tuple[int, int], offsets: tuple[int, int], message: str
) -> None:
    executor = make_executor(library, TEXT)
    set_inputs(executor, loads, offsets)
    with pytest.raises(ExecutionError, match=message):
        executor.run()
    x = set_inputs(executor, (0, 0), (0, 0))
    executor.run()
    np.testing.assert_array_equal(executor.get_output("y"), x)


def test_an_overflow_that_is_an_error_names_router_and_branch(library: str) -> None:
    executor = make_executor(library, text_of(routed_program(overflow="error")))
    set_inputs(executor, (2, 0), (0, 0))
    with pytest.raises(
        ExecutionError, match="branch 0 of router 'moe' has 2 cells, its largest capacity is 1"
    ):
        executor.run()


def test_recordings_are_files_of_records(library: str, tmp_path: Path) -> None:
    executor = make_executor(library, TEXT)
    path = tmp_path / "routes.jsonl"
    decisions = [((2, 1), (0, 2)), ((0, 4), (0, 0)), ((9, 0), (0, 0)), ((1, 0), (0, 0))]
    with RouteRecording(executor, "digest", path, level=2) as recording:
        for loads, offsets in decisions:
            set_inputs(executor, loads, offsets)
            if loads[0] == 9:
                with pytest.raises(ExecutionError, match="has 9 cells"):
                    executor.run()
            else:
                executor.run()
        with pytest.raises(ExecutionError, match="records route decisions already"):
            RouteRecording(executor, "digest", tmp_path / "other.jsonl", level=1)
    recording.close()
    header, *lines = path.read_text().splitlines(keepends=True)
    assert header == header_line("digest", 2, executor.routers)
    assert [json.loads(line) for line in lines] == [
        {"run": 0, "router": "moe", "loads": [2, 1], "active": [0, 1], "cells": [0, 0, 1, -1]},
        {"run": 1, "router": "moe", "loads": [0, 4], "active": [1], "cells": [1, 1, 1, 1]},
        {"run": 2, "router": "moe", "loads": [1, 0], "active": [0], "cells": [0, -1, -1, -1]},
    ]
    assert recording.num_dropped == 0


def test_a_recording_that_cannot_begin_leaves_none(library: str, tmp_path: Path) -> None:
    executor = make_executor(library, TEXT)
    with pytest.raises(ExecutionError, match="level 3"):
        RouteRecording(executor, "digest", tmp_path / "routes.jsonl", level=3)
    with pytest.raises(FileNotFoundError):
        RouteRecording(executor, "digest", tmp_path / "none" / "routes.jsonl", level=1)
    with RouteRecording(executor, "digest", tmp_path / "routes.jsonl", level=1):
        pass
    assert len((tmp_path / "routes.jsonl").read_text().splitlines()) == 1


def test_what_an_observer_raises_ends_the_recording_and_no_call(
    library: str, tmp_path: Path
) -> None:
    executor = make_executor(library, TEXT)
    seen = []

    def observe(record: RouteRecord) -> None:
        seen.append(record.loads)
        if len(seen) == 2:
            raise LookupError("enough")

    recording = RouteRecording(executor, "digest", tmp_path / "r.jsonl", 1, observe)
    for loads in ((2, 1), (0, 3), (1, 0)):
        set_inputs(executor, loads, (0, 2) if loads[0] else (0, 0))
        executor.run()
    with pytest.raises(LookupError, match="enough"):
        recording.close()
    recording.close()
    assert [tuple(loads) for loads in seen] == [(2, 1), (0, 3)]
    executor.run()


def test_an_observer_that_closes_the_recording_loses_nothing(library: str, tmp_path: Path) -> None:
    executor = make_executor(library, TEXT)
    have_run = threading.Event()
    seen = []

    def observe(record: RouteRecord) -> None:
        assert have_run.wait(10)
        recording.close()
        seen.append(record.loads)
        if len(seen) == 3:
            raise LookupError("at the end")

    recording = RouteRecording(executor, "digest", tmp_path / "r.jsonl", 1, observe)
    for loads in ((2, 1), (0, 3), (1, 0)):
        set_inputs(executor, loads, (0, 2) if loads[0] else (0, 0))
        executor.run()
    have_run.set()
    assert recording._is_closing.wait(10)
    with pytest.raises(LookupError, match="at the end"):
        recording.close()
    assert [tuple(loads) for loads in seen] == [(2, 1), (0, 3), (1, 0)]
    assert len((tmp_path / "r.jsonl").read_text().splitlines()) == 4


def test_a_recording_can_be_closed_again_after_ctrl_c(
    library: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    executor = make_executor(library, TEXT)

    def observe(record: RouteRecord) -> None:
        raise LookupError("at once")

    def interrupted() -> None:
        raise KeyboardInterrupt

    recording = RouteRecording(executor, "digest", tmp_path / "r.jsonl", 1, observe)
    set_inputs(executor, (2, 1), (0, 2))
    executor.run()
    with monkeypatch.context() as patch:
        patch.setattr(recording._thread, "join", interrupted)
        with pytest.raises(KeyboardInterrupt):
            recording.close()
    with pytest.raises(LookupError, match="at once"):
        recording.close()


def test_predictions_name_routers_and_branches_that_there_are(library: str) -> None:
    executor = make_executor(library, TEXT)
    with pytest.raises(ExecutionError, match="no router 'mo'; it has 'moe'"):
        executor.predict_routes([("mo", [0])])
    with pytest.raises(ExecutionError, match="branches 0 to 1, and branch 2 is predicted"):
        executor.predict_routes([("moe", [0, 2])])
    executor.predict_routes([("moe", [1])])
    for loads in ((2, 1), (0, 1), (1, 0)):
        set_inputs(executor, loads, (0, 2))
        executor.run()
    executor.predict_routes([("moe", [])])
    executor.run()
    (counts,) = executor.prediction_counts().values()
    assert counts == (3, 1, 0, False) and counts.num_missed == 2


@pytest.mark.parametrize(("least_hits", "share"), [(0, 0.1), (500, 0.5), (500, 0.7), (900, 0.85)])
def test_predictions_end_where_too_few_are_right(
    library: str, least_hits: int, share: float
) -> None:
    """As of the last 100 requests, and again when something else is predicted."""
    program = replace(routed_program(), predictions=(RouterPrediction(0, (1,), least_hits),))
    executor = make_executor(library, text_of(program))
    random = Random(int(1000 * share))
    for turn in range(2):
        hits: list[bool] = []
        is_on = True
        for _ in range(250):
            is_hit = random.random() < share
            set_inputs(executor, (0, 2) if is_hit else (1, 0), (0, 0))
            executor.run()
            if is_on:
                hits.append(is_hit)
                few = least_hits and sum(hits[-100:]) * 1000 <= least_hits * 100
                is_on = len(hits) < 100 or not few
            (counts,) = executor.prediction_counts().values()
            assert counts.is_predicted == is_on
        assert is_on == (share > least_hits / 1000)
        if turn == 0:
            first = counts
            assert counts[:3] == (len(hits), sum(hits), 0)
            assert counts.hit_rate == pytest.approx(sum(hits) / len(hits))
            executor.predict_routes([("moe", [1])])
    assert counts.num_calls - first.num_calls == len(hits)


def test_what_a_program_has_predicted_work_of_is_predicted(library: str) -> None:
    work = routed_program()
    twice = [CapacityCall(0, 1, (Operand(X_ROW), Operand(Y_ROW)))]
    guards = (BranchGuard(0, 1, "predicted"), BranchGuard(0, 1, "missed"))
    for predictions, is_predicted in (((), True), ((RouterPrediction(0, (), 0),), False)):
        queues = [replace(queue, instructions=[*queue.instructions]) for queue in work.queues]
        queues[0].instructions += [branch_call(3, guard, 1, twice) for guard in guards]
        program = replace(work, queues=tuple(queues), predictions=predictions)
        (counts,) = make_executor(library, text_of(program)).prediction_counts().values()
        assert counts == (0, 0, 0, is_predicted)
        assert counts.hit_rate is None


def test_a_program_without_routers_has_no_decisions(library: str, tmp_path: Path) -> None:
    executor = make_executor(library, write_program(("cpu",), ["call 0 1 1 1 8,0 -"]))
    assert executor.routers == ()
    with pytest.raises(ExecutionError, match="no routers"):
        executor.predict_routes([])
    with pytest.raises(ExecutionError, match="no routers"):
        RouteRecording(executor, "", tmp_path / "routes.jsonl", level=1)


ROUTER = 'router 0 "moe" 4 5 6 rounds 4 4 1 1;1 0:1,0:2'
TWICE = "branch_call 0 1 0 0 active 1 1=1(1@,3@) -"
ADD = "branch_call 1 2 0 1 active 1 1=0(1@,1@,3@) 0:5"


def test_values_have_the_text_of_the_grammar() -> None:
    assert [line for line in TEXT.splitlines() if line in (ROUTER, TWICE, ADD)] == [
        *(ROUTER, TWICE, ADD)
    ]
    copy = branch_copy(7, BranchGuard(1, 2, "missed"), Operand(3), Operand(4), ((0, 1), (2, 5)))
    assert (copy.kind, copy.fields) == ("branch_copy", ("1", "2", "missed", "3", "4"))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("program 3", "program 1", "unknown word 'router'"),
        ("program 3", "program 3 0", "expected 'heteroplace-program <version> <rank>"),
        ("0:1,0:2", "0:99", "after 99 instructions of queue 'q0', which has 6"),
        ("0:1,0:2", "-", "no input, and it does not say when they are there"),
        ("0:1,0:2", "0:1", "offsets of router 'moe' are tensor 5, which none"),
        ("0:1,0:2", "0:1,0:4", "offsets of router 'moe' are tensor 5, which none"),
        (" rounds 4 4 1 ", " wraps 4 4 1 ", "overflow 'wraps'; expected rounds, drop or error"),
        (" rounds 4 4 1 ", " rounds 0 4 1 ", "cells: got 0"),
        (" rounds 4 4 1 ", " rounds 4 3 1 ", "branch 0 of router 'moe' may need 4 rows.* 3"),
        (" rounds 4 4 1 ", " rounds 4 5 1 ", "begins a buffer of 5 rows of 1024 bytes"),
        (" rounds 4 4 1 ", " rounds 4 4 0 ", "quantum: got 0"),
        ("1;1 0:1", "2,1;1 0:1", r"capacity \(they are ascending\): got 1"),
        ("1;1 0:1", "1 0:1", r"are tensor 4, int32 \(2\); expected int32 \(1\)"),
        ('"moe" 4 5 6', '"moe" 0 5 6', "loads of router 'moe' are tensor 0, float32"),
        ('"moe" 4 5 6', '"moe" 4 - 6', "router 'moe' has no offsets, and buffers of 4 rows"),
        ('"moe" 4 5 6', '"moe" 4 5 5', "seats of router 'moe' are tensor 5"),
        (ROUTER, f"{ROUTER}\n{ROUTER[:7]}1{ROUTER[8:-11]}2;1 0:1,0:2", "is not as in line"),
        ("arena 8192 0 32 2", "arena 8128 0 32 2", "tensor 4 of router 'moe' shares bytes"),
        (ROUTER, f"{ROUTER}\npredict 1 0 0", "router: got 1"),
        (ROUTER, f"{ROUTER}\npredict 0 1,0 0", r"branch \(they are ascending\): got 0"),
        (ROUTER, f"{ROUTER}\npredict 0 2 0", "got 2"),
        (ROUTER, f"{ROUTER}\npredict 0 0 1001", "least hits: got 1001"),
        (ROUTER, f"{ROUTER}\npredict 0 0 1\npredict 0 - 1", "router 'moe' is predicted twice"),
        (TWICE, TWICE.replace(" 0 0 active", " 1 0 active"), "router: got 1"),
        (TWICE, TWICE.replace(" 0 0 active", " 0 2 active"), "branch: got 2"),
        (TWICE, TWICE.replace("active", "always"), "guard 'always'"),
        (TWICE, TWICE.replace("1=1(", "1-1("), "expected <capacity>=<kernel>"),
        (TWICE, TWICE.replace("1=1(", "2=1("), "capacity 2 is none of branch 0"),
        (TWICE, TWICE.replace("1=1(1@,3@)", "1=1(1@,3@);1=1(1@,3@)"), "they are ascending"),
        (TWICE, TWICE.replace("1=1(", "0=1("), "tensor 1 is rows, and capacity 0 has none"),
        (TWICE, TWICE.replace("1=1(1@,3@)", "1=1(4@,3@)"), "8 bytes: 1 of them"),
        (TWICE, TWICE.replace("active", "predicted"), "capacity 1; where rows are is not known"),
        (TWICE, TWICE.replace("active", "missed"), "nothing is predicted of branch 0"),
        (TWICE, TWICE.replace("active 1 1=1(1@,3@)", "predicted 1 0=1(1,3)"), "nothing is done"),
        (ADD, ADD.replace(" 0:5", " -"), "queue 'q1' reads the load of branch 1 of router 'moe'"),
        (ADD, ADD.replace(" 0:5", " 0:1"), "has not waited for queue 'q0'"),
        (ADD, ADD.replace(" 0:5", ""), "expected 'branch_call .*9 fields"),
        (ADD, "branch_copy 1 2 0 1 active 0@ 2 0:5", "two marks '@', or none"),
        (ADD, "branch_copy 1 2 0 1 active 0 3 0:5", "from 4096 bytes to 1024 bytes"),
        (ADD, "branch_copy 1 2 0 1 active 0@ 3@ 0:5", "rows of 1024 bytes to rows of 4 bytes"),
    ],
)  # fmt: skip
def test_mistakes_are_refused_by_their_line(library: str, old: str, new: str, message: str) -> None:
    assert old in TEXT
    with pytest.raises(ArtifactError, match=message):
        make_executor(library, TEXT.replace(old, new, 1))
