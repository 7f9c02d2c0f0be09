"""The C interface, called by a program of C11 that is compiled against the installed header."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import numpy as np
import pytest
import tvm
from c_programs import (
    PREFIX,
    convolutions,
    make_slow,
    make_state,
    run_program,
    slow_steps,
    sorting,
)
from rank_jobs import compiled as compiled_for
from rank_jobs import run_job, two_hosts

import heteroplace as hp
from tests.chrome_trace_model import checked, of

pytestmark = pytest.mark.relay
SOURCE = Path(__file__).with_name("c_program.c")
HEADER = PREFIX / "include" / "heteroplace.h"
LIBRARY = PREFIX / "lib" / "libheteroplace.so"
TVM = Path(tvm.__file__).parent / "libtvm.so"
NUM_CALLERS = 6
STATUSES = (
    "OK",
    "BAD_ARGUMENT",
    "BAD_FILE",
    "NO_TVM",
    "FAILED",
    "TIMED_OUT",
    "CANCELLED",
    "OUT_OF_MEMORY",
    "INTERNAL",
)


def compiled(folder: Path, source: Path, *flags: str) -> Path:
    """Compile a program against header and library as they are installed."""
    program = folder / source.stem
    warnings = ("-pedantic", "-Wall", "-Wextra", "-Werror")
    search = (f"-I{PREFIX / 'include'}", f"-L{PREFIX / 'lib'}", f"-Wl,-rpath,{PREFIX / 'lib'}")
    command = ["-o", program, source, *warnings, *search, *flags, "-pthread", "-lheteroplace"]
    compiler = os.environ.get("CC", "cc")
    done = subprocess.run([compiler, *command], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return program


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled(tmp_path_factory.mktemp("c"), SOURCE, "-std=c11")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return convolutions(tmp_path_factory.mktemp("model"))[0]


@pytest.mark.costly
@pytest.mark.parametrize(("task", "library"), [("threads", "-"), ("requests", str(TVM))])
def test_callers_get_the_bytes_of_python(
    program: Path, model: Path, tmp_path: Path, task: str, library: str
) -> None:
    executor = hp.load(model)
    ((name, shape, dtype),) = executor.inputs
    random = np.random.default_rng(0)
    questions = random.standard_normal((NUM_CALLERS, *shape)).astype(dtype)
    expected = [executor.run({name: question})[0] for question in questions]
    file = tmp_path / "values"
    file.write_bytes(questions.tobytes())
    done = run_program(task, model, library, file, program=program)
    assert (done.returncode, done.stderr) == (0, "")
    assert file.read_bytes() == b"".join(answer.tobytes() for answer in expected)
    assert len(set(map(bytes, expected))) == NUM_CALLERS
    if task == "requests":
        events = checked(Path(f"{file}.json").read_text())
        assert len(of(events, "b")) == NUM_CALLERS


@pytest.mark.costly
def test_misuse_is_told_and_ends_no_process(program: Path, model: Path) -> None:
    done = run_program("misuse", model, "-", "-", program=program)
    assert (done.returncode, done.stderr) == (0, "")
    told = dict(re.findall(r"^([\w ]+): ((?:[\w ]+): .*)$", done.stdout, flags=re.MULTILINE))
    input_ = "input 'x': "
    expected = {
        "no path": "bad argument: path is NULL",
        "nowhere to put it": "bad argument: model is NULL",
        "negative in flight": "bad argument: max_in_flight is -1; expected at least 1, or 0 for 1",
        "unknown helping": "bad argument: helping is 3; expected 0 (HETEROPLACE_HELPING_AUTO), 1",
        "no rank": "bad argument: is_rank is 2; expected 0 or 1",
        "no plan": "bad argument: keeps_plan is 2; expected 0 or 1",
        "no keys": "bad argument: num_trusted_keys is 2, and trusted_keys is NULL; expected how",
        "short silence": "bad argument: silence_s is 1e-10; expected seconds, 0.001 to 1e9, or 0",
        "fewer than no keys": "bad argument: num_trusted_keys is -1, and trusted_keys is NULL",
        "earlier header": "bad file: /nowhere/model.so: cannot be read",
        "small options": "bad argument: struct_size of the options is 4; set it to",
        "later header": "bad file: /nowhere/model.so: cannot be read",
        "later field": "bad argument: the options: has fields that this library, of version 3",
        "garbage for a size": "bad argument: struct_size of the options is 18446744073709551615",
        "missing file": "bad file: /nowhere/model.so: cannot be read",
        "no model": "bad argument: model is NULL",
        "no count": "bad argument: count is NULL",
        "no answer": "bad argument: is_helping is NULL",
        "no request": "bad argument: request is NULL",
        "begin of nothing": "bad argument: model is NULL",
        "nothing is closed": "ok: ",
        "trace of nothing": "bad argument: model is NULL",
        "negative requests": "failed: ",
        "no folder": "bad argument: /nowhere/trace.json.",
        "another folder": "ok: ",
        "no trace": "failed: nothing is recorded",
        "no file": "bad argument: path is NULL",
        "small tensor": "bad argument: struct_size of the tensor is 8; set it to",
        "index below": "bad argument: there is no input -1; there are 1",
        "index above": "bad argument: there is no output 1; there are 1",
        "no data": f"bad argument: {input_}its data is NULL",
        "no inputs": f"bad argument: {input_[:-2]} is missing",
        "null inputs": "bad argument: the array of inputs is NULL",
        "no number": "bad argument: timeout_s is no number",
        "negative count": "bad argument: the number of inputs is -1",
        "wrong input": f"bad argument: {input_}expected float32 (1, 8, 16, 16), got float32 (1, 2)",
        "wrong name": "bad argument: the program has no input 'other'; it has 'x'; input 'x' is m",
        "wrong output": "bad argument: output 'output0': expected float32 (1, 10), got float64",
        "few bytes": f"bad argument: {input_}expected 8192 bytes, got 8191",
        "too many": "timed out: all 3 requests of the model were at work",
        "without input": f"bad argument: {input_[:-2]} is missing",
        "not submitted": "failed: the request was not submitted",
        "no output yet": "failed: output 'output0' has no value",
        "in flight": "failed: the request is in flight",
    }
    wrong = {what: told[what] for what in expected if not told[what].startswith(expected[what])}
    assert not wrong
    assert set(told) == set(expected)
    assert done.stdout.splitlines().count("unknown, unknown") == 1


@pytest.mark.costly
def test_limits_and_cancelling_end_a_request(program: Path, tmp_path: Path) -> None:
    model = slow_steps(tmp_path)[0]
    done = run_program("early", model, "-", "-", program=program)
    assert (done.returncode, done.stderr) == (0, "")
    late = "timed out: the request did not end within its limit: "
    lines = done.stdout.splitlines()
    assert lines[0].startswith(f"late run: {late}")
    assert lines[1:4] == [
        "wait: timed out: the request is still at work; it goes on",
        "cancelled: cancelled: the request was cancelled by its caller",
        lines[3],
    ]
    assert lines[3].startswith("no output: failed: output 'output0' has no value")
    assert lines[4].startswith(f"late finish: {late}")
    make_state(model)
    done = run_program("state", model, "-", "-", program=program)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [
        "cancelled: cancelled: the request was cancelled by its caller",
        "lost: bad argument: input 'x' is missing",
    ]


def test_a_request_of_several_ranks_is_told_to_be_cancelled(program: Path, tmp_path: Path) -> None:
    model = compiled_for(tmp_path / "model.so", two_hosts())
    make_slow(model, step_ns=200_000_000)
    done = run_job(2, program, "ranks", model, "-", "-")
    told = [line for line in done.stdout.splitlines() if line.startswith(("cancelled", "once"))]
    text = "host 'a' (rank 0): the request was cancelled by its caller"
    assert len(told) == 2, done
    assert told[0] == f"cancelled: cancelled: {text}"
    assert told[1].startswith("once more: failed: ")


@pytest.mark.costly(4)
def test_a_wrong_tvm_library_has_a_status_of_its_own(program: Path, tmp_path: Path) -> None:
    done = run_program("misuse", sorting(tmp_path)[0], "/nowhere/libtvm.so", "-", program=program)
    assert done.returncode == 1
    assert done.stderr.startswith("no TVM: /nowhere/libtvm.so: cannot open shared object file")
    assert "LD_LIBRARY_PATH" in done.stderr


def test_the_header_is_cplusplus_too_and_the_library_gives_no_other_name(tmp_path: Path) -> None:
    source = tmp_path / "plus.cc"
    source.write_text(
        '#include "heteroplace.h"\nint main() { return heteroplace_api_version() - 3; }\n'
    )
    assert run_program(program=compiled(tmp_path, source)).returncode == 0
    names = subprocess.run(
        ["nm", "-D", "--defined-only", LIBRARY], capture_output=True, text=True, check=True
    )
    exported = {line.split()[-1] for line in names.stdout.splitlines()}
    declared = set(re.findall(r"\b(heteroplace_\w+)\(", HEADER.read_text()))
    assert exported == declared and len(declared) > 15


@pytest.mark.costly
def test_a_model_is_loaded_with_and_without_helping(program: Path, model: Path) -> None:
    expected = [hp.load(model, helping=helping).is_helping for helping in (True, False)]
    done = run_program("helping", model, "-", "-", program=program)
    assert (done.returncode, done.stderr) == (0, "")
    assert [line == "1" for line in done.stdout.splitlines()] == expected


def test_structs_and_statuses_of_version_1_stay_as_they_are(tmp_path: Path) -> None:
    # Programs that were compiled hold these numbers: a later version adds behind them.
    source = tmp_path / "layout.c"
    fields = {
        "heteroplace_tensor": (
            "struct_size 0 name 8 type_code 16 type_bits 17 type_lanes 18 ndim 20 shape 24 "
            "bytes 32 data 40"
        ),
        "heteroplace_load_options": (
            "struct_size 0 tvm_library 8 max_in_flight 16 num_trusted_keys 20 trusted_keys 24 "
            "helping 32 is_rank 36 hosts 40 mpi_library 48 silence_s 56 tell 64 tell_context 72 "
            "keeps_plan 80"
        ),
    }
    checks = []
    for struct, text in fields.items():
        words = text.split()
        for field, offset in zip(words[::2], words[1::2], strict=True):
            checks.append(f'_Static_assert(offsetof({struct}, {field}) == {offset}, "{field}");')
    for number, name in enumerate(STATUSES):
        checks.append(f'_Static_assert(HETEROPLACE_{name} == {number}, "{name}");')
    source.write_text('#include "heteroplace.h"\n' + "\n".join(checks) + "\nint main(void) {}\n")
    compiled(tmp_path, source, "-std=c11")
