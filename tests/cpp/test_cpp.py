"""The C++ tests: built with sanitizers into build/cpp-*, and run program by program.

Programs are those of tests/cpp/check_*.cc; a second run builds only what changed. Each of six parts
is built with its programs: addresses and undefined behaviour, or threads, of what runs programs, on
one host or on several, or of what makes plans. CI builds the parts that a change reaches, as far as
its time for costly tests goes (`tests.selected_tests`). Of the cases of each check it draws an
eighth, by the commit. `make test-all` runs all (check.h).
"""

from __future__ import annotations

import fcntl
import importlib.util
import os
import shutil
import subprocess
import sysconfig
from collections.abc import Iterable
from functools import cache
from itertools import product
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent

BUILD_SECONDS = 900
RUN_SECONDS = 1200 if os.environ.get("ALL_CASES") else 300
"""Limits that only a hang reaches: a build takes about a minute, a program some
seconds, with all cases some minutes."""

pytestmark = pytest.mark.timeout(BUILD_SECONDS + RUN_SECONDS)

MEMORY = "address,undefined"
THREAD = "thread"

PROGRAMS = sorted(path.stem for path in Path(__file__).parent.glob("check_*.cc"))

THREADED = {
    "check_branches": [],
    "check_callers": [],
    "check_contexts": [],
    "check_exec": [],
    "check_faults": [],
    "check_helping": [],
    "check_jobs": [],
    "check_lanes": [],
    "check_led": [],
    "check_ranks": [],
    "check_search": ["threads"],
    "check_serial": [],
    "check_sessions": [],
    "check_transport": [],
    "check_turns": [],
    "check_workspace": [],
}
"""Programs with threads, and what shortens them under the slower thread sanitizer."""

WITH_TVM = (
    "check_branches",
    "check_callers",
    "check_contexts",
    "check_exec",
    "check_faults",
    "check_helping",
    "check_led",
    "check_ranks",
    "check_serial",
    "check_sessions",
)
"""Programs that load a library of kernels by TVM."""

TURNS = 8
"""One eighth of the cases after the other; see check.h."""

RANKS = ("check_group", "check_led", "check_ranks", "check_transport")
RUNNING = ("check_file", *sorted(THREADED.keys() - {"check_search", *RANKS}))
"""Programs about several hosts, and about one; the others are about what makes plans."""

PLANNING = tuple(name for name in PROGRAMS if name not in (*RUNNING, *RANKS))

PARTS = {
    part + suffix: (sanitizer, tuple(name for name in programs if name in may_run))
    for part, programs in (("running", RUNNING), ("ranks", RANKS), ("planning", PLANNING))
    for suffix, sanitizer, may_run in (("", MEMORY, PROGRAMS), (" threads", THREAD, THREADED))
}
"""What is built at once: with the half of the core that the programs run."""

OPTIONS = {
    # Each thread has its own copies of stack frames: of 16 times 64 KiB, not of 1 MiB.
    "ASAN_OPTIONS": "detect_stack_use_after_return=1 max_uar_stack_size_log=16",
    "UBSAN_OPTIONS": "print_stacktrace=1",
    "TSAN_OPTIONS": "halt_on_error=1 second_deadlock_stack=1",
}

UNDER_MPI = {
    # MPI keeps what it has until the process ends.
    "ASAN_OPTIONS": OPTIONS["ASAN_OPTIONS"] + " detect_leaks=0",
    # Its own handlers of faults would tell them instead of the sanitizer's.
    "UCX_ERROR_SIGNALS": "",
    # Sanitizers take the other process's addresses in process_vm_readv for this one's.
    "UCX_TLS": "^cma",
    # It hooks into calls that threads make after the thread sanitizer has left them.
    "UCX_MEM_EVENTS": "no",
    # Open MPI asks whether root means it.
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
}
"""What ranks need in addition."""


OPEN_MPI = "libmpi.so.40"


def tool(name: str) -> str:
    """Return the path of a tool of this Python's environment, or of the system."""
    path = shutil.which(name, path=sysconfig.get_path("scripts")) or shutil.which(name)
    assert path is not None, f"{name} not found: pip install {name}"
    return path


def checked_run(command: list[str], timeout: int, environment: dict[str, str]) -> None:
    """Run a command; fail with the end of what it wrote."""
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=timeout, env={**os.environ, **environment}
    )
    if done.returncode != 0:
        text = (done.stdout + done.stderr)[-8000:]
        pytest.fail(f"{' '.join(command)}: exit code {done.returncode}\n{text}", pytrace=False)


@cache
def built(part: str) -> Path:
    """Build the programs of a part, all at once; return where they are."""
    sanitizer, programs = PARTS[part]
    return build(sanitizer.partition(",")[0], {"HETEROPLACE_SANITIZE": sanitizer}, [*programs])


def build(name: str, choices: dict[str, str], targets: list[str]) -> Path:
    """Build targets of the C++ tests in build/cpp-NAME; return where they are."""
    folder = ROOT / "build" / f"cpp-{name}"
    options = {
        "CMAKE_MAKE_PROGRAM": tool("ninja"),
        "CMAKE_BUILD_TYPE": "Release",
        "HETEROPLACE_TESTS": "ON",
        "HETEROPLACE_WERROR": "ON",
        **choices,
    }
    defines = [f"-D{name}={value}" for name, value in options.items()]
    configure = [tool("cmake"), "-S", str(ROOT), "-B", str(folder), "-G", "Ninja", *defines]
    jobs = str(len(os.sched_getaffinity(0)))
    command = [tool("cmake"), "--build", str(folder), "-j", jobs, "--target", *targets]
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:  # two builds of one folder spoil each other's files
        fcntl.flock(lock, fcntl.LOCK_EX)
        checked_run(configure, BUILD_SECONDS, {})
        checked_run(command, BUILD_SECONDS, {})
    return folder / "tests" / "cpp"


@cache
def fixed_addresses() -> tuple[str, ...]:
    """Return what turns off random addresses, which old thread sanitizers fail on; if possible."""
    command = ("setarch", "-R")
    is_there = shutil.which(command[0]) is not None
    works = is_there and subprocess.run([*command, "true"], capture_output=True).returncode == 0
    return command if works else ()


def run(part: str, program: str, arguments: list[str], turn: int) -> None:
    """Run a program; `turn` says which of its cases."""
    folder = built(part)
    if program in WITH_TVM:
        tvm = importlib.util.find_spec("tvm")
        assert tvm is not None and tvm.submodule_search_locations
        libtvm = Path(tvm.submodule_search_locations[0]) / "libtvm.so"
        # Every other turn by the executor's own functions, where a program does not ask for TVM's.
        is_own = turn % 2 == 1 and program not in ("check_faults", "check_led")
        arguments = ["" if is_own else str(libtvm), str(folder / "kernels.so")]
    if program == "check_file":
        arguments = [str(folder / "file_kernels.so")]
    if program == "check_transport":
        arguments = [str(folder / "foreign_mpi.so")]
    environment = {**OPTIONS, "TURN": str(turn)}
    prefix = fixed_addresses() if PARTS[part][0] == THREAD else ()
    checked_run([*prefix, str(folder / program), *arguments], RUN_SECONDS, environment)


def mark_of(part: str) -> pytest.MarkDecorator:
    """Return the mark of tests that need a part, with the sources of its programs."""
    return pytest.mark.part(part, *(f"{program}.cc" for program in PARTS[part][1]))


def params(programs: Iterable[str], sanitizer: str) -> list[object]:
    """Return the parameters of a test for each program; the executor needs a TVM."""
    found = []
    for name in programs:
        part = part_of(name, sanitizer)
        marks = [pytest.mark.costly, mark_of(part)]
        if name in WITH_TVM:
            marks.append(pytest.mark.relay)
        found.append(pytest.param(part, name, marks=marks, id=name[6:]))
    return found


def part_of(program: str, sanitizer: str) -> str:
    """Return the part that builds a program with a sanitizer."""
    (part,) = (name for name, each in PARTS.items() if each[0] == sanitizer and program in each[1])
    return part


@pytest.fixture
def turn(request: pytest.FixtureRequest) -> int:
    """Which eighth of the cases runs: by the seed, as in corpora of random cases."""
    return int(request.config.getoption("hypothesis_seed")) % TURNS


@pytest.mark.parametrize(("part", "program"), params(PROGRAMS, MEMORY))
def test_addresses_and_behaviour(part: str, program: str, turn: int) -> None:
    run(part, program, [], turn)


@pytest.mark.parametrize(("part", "program"), params(sorted(THREADED), THREAD))
def test_threads(part: str, program: str, turn: int) -> None:
    run(part, program, THREADED[program], turn)


def launcher_beside(library: str) -> tuple[str, str]:
    """Return the mpiexec of an MPI library, and the path of the library; skip without them."""
    folders = [sysconfig.get_path("scripts"), *os.get_exec_path()]
    # Debian, which may have both, says whose each is.
    names = [f"mpiexec.{'openmpi' if library == OPEN_MPI else 'mpich'}", "mpiexec"]
    places = ["lib", f"lib/{sysconfig.get_config_var('MULTIARCH')}"]
    for folder, name, place in product(map(Path, folders), names, places):
        path = folder.parent / place / library
        if (folder / name).exists() and path.exists():
            return str(folder / name), str(path)
    pytest.skip(
        f"no mpiexec with {library} beside it: pip install mpich, or apt-get install openmpi-bin"
    )


def run_transport(part: str, launcher: list[str], arguments: list[str], turn: int) -> None:
    """Run the tests of the transport in the build of a part, with an MPI library."""
    prefix = fixed_addresses() if PARTS[part][0] == THREAD else ()
    environment = {**OPTIONS, **UNDER_MPI, "TURN": str(turn)}
    program = str(built(part) / "check_transport")
    checked_run([*launcher, *prefix, program, *arguments], RUN_SECONDS, environment)


with_ranks = pytest.mark.parametrize(
    "part",
    [
        pytest.param(part, marks=[pytest.mark.costly, mark_of(part)])
        for part in ("ranks", "ranks threads")
    ],
)
"""Both builds of `check_transport`."""


@with_ranks
@pytest.mark.parametrize(
    ("library", "num_ranks"),
    [
        ("libmpi.so.12", 2),
        pytest.param("libmpi.so.12", 4, marks=pytest.mark.slow),  # ranks beyond the cores spin
        pytest.param("libmpi_abi.so.1", 2, marks=pytest.mark.slow),
        pytest.param("libmpi.so.40", 2, marks=pytest.mark.slow),
        pytest.param("libmpi.so.40", 4, marks=pytest.mark.slow),
    ],
)
def test_ranks_of_mpi(part: str, library: str, num_ranks: int, turn: int) -> None:
    launcher, path = launcher_beside(library)
    more_than_cores = ["--oversubscribe"] if library == OPEN_MPI else []
    command = [launcher, "-n", str(num_ranks), *more_than_cores]
    run_transport(part, command, ["mpi", path], turn)


@with_ranks
@pytest.mark.parametrize("case", ["unfit", "launcher"])
def test_an_mpi_that_would_not_do_is_refused(part: str, case: str, turn: int) -> None:
    _, path = launcher_beside("libmpi.so.12")
    run_transport(part, [], [case, path], turn)


@pytest.mark.slow
def test_a_type_is_the_same_in_every_file() -> None:
    # Two classes of one name are undefined behaviour that no single file shows.
    choices = {"HETEROPLACE_LTO": "ON", "HETEROPLACE_UNITY": "OFF"}
    build("lto", choices, ["whole_core"])


def test_a_failing_check_fails_its_program(tmp_path: Path) -> None:
    # Else all of the above could pass by not checking.
    source = tmp_path / "failing.cc"
    source.write_text(
        '#include "check.h"\n'
        "int main() {\n"
        '  heteroplace::test::ForSeeds("three", 16, [](heteroplace::Random&) {\n'
        '    CHECK(heteroplace::test::current_case != "three, seed 3");\n'
        "  });\n"
        "}\n"
    )
    program = tmp_path / "failing"
    compiler = os.environ.get("CXX", "c++")
    includes = [f"-I{ROOT / 'src'}", f"-I{ROOT / 'tests' / 'cpp'}"]
    command = [compiler, "-std=c++20", *includes, str(source), "-o", str(program)]
    checked_run(command, BUILD_SECONDS, {})
    for turn, status in (("2", 0), ("3", 1)):
        environment = {**os.environ, "TURN": turn, "ALL_CASES": ""}
        done = subprocess.run([str(program)], capture_output=True, text=True, env=environment)
        assert done.returncode == status
    assert "failing.cc:4" in done.stderr and "in three, seed 3" in done.stderr
