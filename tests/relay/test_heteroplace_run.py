"""`heteroplace-run`: the bytes of the Python package without an interpreter, and typed refusals."""

from __future__ import annotations

import hashlib
import io
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
import tvm
from c_programs import PROGRAM, all_types, convolutions, run_program, slow_steps, sorting
from c_programs import save_inputs as saved

import heteroplace as hp
from tests.chrome_trace_model import checked, of
from tests.signing_keys import write_keys
from zoo.models.catalogue import load_model

pytestmark = pytest.mark.relay
MISSING_FILE, MISSING_MODEL = "/nowhere/x.npy", "/nowhere/model.so"
ARRAY = np.arange(6, dtype="float32").reshape(2, 3)


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, np.ndarray]]:
    folder = write_keys(tmp_path_factory.mktemp("network"))
    return convolutions(folder, key=folder / "first.pem")


@pytest.fixture(scope="module")
def sorts(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, np.ndarray]]:
    return sorting(tmp_path_factory.mktemp("sorts"))


def npy(array: np.ndarray, version: tuple[int, int] = (1, 0)) -> bytes:
    """The bytes of a file."""
    file = io.BytesIO()
    np.lib.format.write_array(file, array, version)
    return file.getvalue()


def check_equal_to_python(
    model: Path, inputs: dict[str, np.ndarray], folder: Path, *options: str
) -> str:
    """Run both on a model; return what the program says."""
    executor = hp.load(model)
    expected = executor.run(inputs)
    files = {name: folder / f"out_{name}.npy" for name, _, _ in executor.outputs}
    outputs = [part for name in files for part in ("--output", f"{name}={files[name]}")]
    done = run_program(model, *saved(folder, inputs), *outputs, *options)
    assert (done.returncode, done.stderr) == (0, "")
    for array, (name, file) in zip(expected, files.items(), strict=True):
        found = np.load(file)
        assert (found.dtype, found.shape) == (array.dtype, array.shape)
        assert found.tobytes() == array.tobytes()
        digest = hashlib.sha256(array.tobytes()).hexdigest()
        line = f"output {name} {array.dtype} ({', '.join(map(str, array.shape))}) sha256 {digest}"
        assert line in done.stdout.splitlines()
    return done.stdout


def test_a_network_gives_the_bytes_of_python_without_an_interpreter(network, tmp_path) -> None:
    said = check_equal_to_python(*network, tmp_path)
    assert re.match(r"first run \d+\.\d{3} ms\n", said)
    assert sorted(path.suffix for path in tmp_path.iterdir()) == [".npy", ".npy"]


@pytest.mark.costly
def test_every_type_is_read_and_written(tmp_path: Path) -> None:
    check_equal_to_python(*all_types(tmp_path), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["lstm_tagger", "int8_qdq", "float16_cnn", "densenet"])
def test_a_network_of_the_catalogue_gives_the_bytes_of_python(name: str, tmp_path: Path) -> None:
    network = load_model(name)
    with tvm.transform.PassContext(opt_level=3):
        options = {"params": network.params, "solver": "heft"}
        made = hp.build(network.mod, hp.local_cluster(), costs="estimate", **options)
    made.export_library(tmp_path / "model.so")
    check_equal_to_python(tmp_path / "model.so", network.inputs, tmp_path, "--repeat", "5")


@pytest.mark.parametrize("helping", ["auto", "on", "off"])
def test_helping_changes_no_byte(network, tmp_path: Path, helping: str) -> None:
    check_equal_to_python(*network, tmp_path, "--helping", helping)


@pytest.mark.parametrize("in_flight", [1, 3])
def test_more_runs_are_timed_and_traced(network, tmp_path: Path, in_flight: int) -> None:
    trace = tmp_path / "trace.json"
    options = ("--repeat", "21", f"--requests-in-flight={in_flight}", "--trace", str(trace))
    said = check_equal_to_python(*network, tmp_path, *options)
    assert re.search(rf"\n20 runs, {in_flight} at a time: median .* ms, min .*, p90 .*", said)
    times = [float(text) for text in re.findall(r"(\d+\.\d{3}) ms", said)[1:]]
    assert times[1] <= times[0] <= times[2]
    requests = {event["id"] for event in of(checked(trace.read_text()), "b")}
    assert len(requests) == 20


def test_a_trace_names_the_steps_of_the_plan(network, tmp_path: Path) -> None:
    model, inputs = network
    executor = hp.load(model)
    with executor.trace() as recording:
        executor.run(inputs)
    recording.save(tmp_path / "python.json")
    done = run_program(model, *saved(tmp_path, inputs), "--trace", tmp_path / "c.json")
    assert done.returncode == 0, done.stderr
    names = [
        sorted(
            (event["tid"], event["args"]["instruction"], event["name"])
            for event in of(checked((tmp_path / f"{face}.json").read_text()), "X")
            if event["name"] != "wait"
        )
        for face in ("python", "c")
    ]
    assert names[0] == names[1]
    tasks = {task.name for task in executor.solution.graph.tasks}
    assert {name for _, _, name in names[1]} & tasks


def test_a_trace_of_one_run_is_of_that_run(network, tmp_path: Path) -> None:
    trace = tmp_path / "trace.json"
    check_equal_to_python(*network, tmp_path, "--trace", str(trace))
    assert len(of(checked(trace.read_text()), "b")) == 1
    done = run_program(network[0], *saved(tmp_path, network[1]), "--trace", "/nowhere/trace.json")
    assert done.returncode == 4 and "/nowhere/trace.json" in done.stderr


def test_a_process_alone_may_take_any_time(network, tmp_path: Path) -> None:
    done = run_program(network[0], *saved(tmp_path, network[1]), "--timeout", "2e9")
    assert (done.returncode, done.stderr) == (0, "")


def test_it_needs_no_python() -> None:
    libraries = subprocess.run(["ldd", PROGRAM], capture_output=True, text=True, check=True).stdout
    names = {line.split()[0].split("/")[-1].split(".")[0] for line in libraries.splitlines()}
    assert names <= {"linux-vdso", "libstdc++", "libgcc_s", "libm", "libc", "ld-linux-x86-64"}
    tvm_libraries = subprocess.run(["ldd", libtvm()], capture_output=True, text=True, check=True)
    assert "libpython" not in tvm_libraries.stdout


def libtvm() -> Path:
    """The library that the package uses."""
    return Path(tvm.__file__).parent / "libtvm.so"


def test_ports_are_described(network) -> None:
    done = run_program(network[0], "--describe")
    assert done.stdout == "input x float32 (1, 8, 16, 16)\noutput output0 float32 (1, 10)\n"


def test_kernels_that_do_not_sort_need_no_tvm(network, tmp_path: Path) -> None:
    program = tmp_path / "heteroplace-run"
    shutil.copy(PROGRAM, program)
    model, inputs = network
    (expected,) = hp.load(model).run(inputs)
    output = tmp_path / "out.npy"
    arguments = (*saved(tmp_path, inputs), "--output", f"output0={output}")
    done = run_program(model, *arguments, program=program)
    assert (done.returncode, done.stderr) == (0, "")
    assert np.load(output).tobytes() == expected.tobytes()


def test_a_network_that_sorts_gives_the_bytes_of_python(sorts, tmp_path: Path) -> None:
    check_equal_to_python(*sorts, tmp_path)


def test_tvm_is_found_beside_the_program_or_told_to_be_missing(sorts, tmp_path: Path) -> None:
    program = tmp_path / "heteroplace-run"
    shutil.copy(PROGRAM, program)
    done = run_program(sorts[0], "--describe", program=program)
    assert done.returncode == 5
    assert str(tmp_path) in done.stderr
    for mend in ("--tvm-library", "beside the program", "LD_LIBRARY_PATH", "libtvm_runtime.so: "):
        assert mend in done.stderr
    done = run_program(sorts[0], "--describe", "--tvm-library", libtvm(), program=program)
    assert done.returncode == 0, done.stderr
    # Its own libraries lie beside the file, not beside the link.
    (tmp_path / "libtvm_runtime.so").symlink_to(libtvm())
    done = run_program(sorts[0], "--describe", program=program)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("library", ["/nowhere/libtvm.so", "libc.so.6", "/etc/passwd"])
def test_a_library_that_is_no_tvm_is_refused(sorts, library: str) -> None:
    done = run_program(sorts[0], "--describe", "--tvm-library", library)
    assert done.returncode == 5
    assert library in done.stderr and "--tvm-library" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((), "no compiled file is given"),
        (("a.so", "b.so"), "two models, 'a.so' and 'b.so'"),
        (("a.so", "--fast", "1"), "no option --fast"),
        (("a.so", "--fast"), "no option --fast"),
        (("a.so", "--repeat"), "--repeat has no value"),
        (("a.so", "--helping", "yes"), "--helping is 'yes'; expected auto, on or off"),
        (("a.so", "--repeat", "0"), "--repeat is '0'; expected a whole number from 1 on"),
        (("a.so", "--repeat=2x"), "--repeat is '2x'"),
        (("a.so", "--repeat=99999999999"), "--repeat is '99999999999'"),
        (("a.so", "--timeout", "nan"), "--timeout is 'nan'; expected seconds"),
        (("a.so", "--timeout", "-1"), "--timeout is '-1'"),
        (("a.so", "--input", "x"), "--input is 'x'; expected NAME=FILE.npy"),
        (("a.so", "--input", "x=a", "--input", "x=b"), "given twice for 'x'"),
        (("a.so", "--output", "x=a", "--output", "y=./a"), "'x' and output 'y' are both written"),
        (("a.so", "--output=x=a", "--trace=/../{here}/a"), "'x' and the trace are both written to"),
        (("a.so", "--output", "x=./a.so"), "'x' would overwrite './a.so', which is read as the m"),
        (("a.so", "--input=x=a", "--output", "y=a"), "which is read as input 'x'; give another"),
        (("a.so", "--trusted-key=k", "--trace=k"), "the trace would overwrite 'k', which is read"),
    ],
)
def test_a_wrong_command_line_is_told(arguments: tuple[str, ...], says: str) -> None:
    done = run_program(*(part.replace("{here}", str(Path.cwd())) for part in arguments))
    assert done.returncode == 2
    assert says in done.stderr and done.stdout == ""


@pytest.mark.parametrize("name", ["symbolic", "hard"])
def test_a_link_to_an_input_is_not_written_over(name: str, tmp_path: Path) -> None:
    model = tmp_path / "model.so"
    model.write_bytes(b"content")
    (tmp_path / "symbolic").symlink_to(model)
    (tmp_path / "hard").hardlink_to(model)
    done = run_program(model, "--output", f"x={tmp_path / name}")
    assert done.returncode == 2 and "which is read as the model" in done.stderr
    assert model.read_bytes() == b"content"


def test_help_tells_every_option_and_exit_code() -> None:
    done = run_program("--help")
    assert done.returncode == 0
    source = (Path(__file__).parents[2] / "src" / "cli" / "run_options.cc").read_text()
    options = set(re.findall(r'\{"(--[a-z-]+)",', source))
    assert len(options) == 12
    assert not [option for option in options if option not in done.stdout]
    assert "Exit codes: 0 done; 1 " in done.stdout


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "is no .npy file"),
        (b"PK\3\4 an archive", "is no .npy file"),
        (npy(ARRAY)[:9], "is truncated: it ends in its header"),
        (npy(ARRAY)[:60], "is truncated: it ends in its header"),
        (npy(ARRAY)[:-1], "is truncated: float32 (2, 3) takes 24 bytes, and it has 23"),
        (npy(ARRAY) + b"x", "is damaged: float32 (2, 3) takes 24 bytes, and it has 25"),
        (npy(np.asfortranarray(ARRAY)), "is in Fortran order; save numpy.ascontiguousarray"),
        (npy(ARRAY.astype(">f4")), "is of numpy's type '>f4'; expected little-endian"),
        (npy(ARRAY.astype("complex64")), "is of numpy's type '<c8'"),
        (npy(np.array([("a", 1)], "U1,i4")), "as arrays of structs have"),
        (npy(ARRAY).replace(b"NUMPY\1", b"NUMPY\7"), "is of format 7; expected 1, 2 or 3"),
        (npy(ARRAY).replace(b"(2, 3)", b"(2,-3)"), "has a damaged header: its shape"),
        (npy(ARRAY).replace(b"(2, 3), }", b"(99999999999, 99999999999), }"[:9]), "header"),
        (npy(ARRAY).replace(b"'shape'", b"'shapo'"), "unknown field 'shapo'"),
        (npy(ARRAY).replace(b"False", b"Maybe"), "neither True nor False"),
    ],
)
def test_a_wrong_array_file_is_told(tmp_path: Path, content: bytes, says: str) -> None:
    (tmp_path / "x.npy").write_bytes(content)
    done = run_program(MISSING_MODEL, "--input", f"x={tmp_path / 'x.npy'}")
    assert done.returncode == 4
    assert f"input 'x': {tmp_path / 'x.npy'}: " in done.stderr and says in done.stderr


def test_damaged_headers_of_arrays_end_no_process(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    path, codes = tmp_path / "x.npy", set()
    for _ in range(150):
        content = bytearray(npy(ARRAY, ((1, 0), (2, 0))[random.integers(2)]))
        for _ in range(random.integers(1, 4)):
            content[random.integers(len(content))] = random.integers(256)
        path.write_bytes(content[: random.integers(len(content)) + 1 or None])
        codes.add(run_program(MISSING_MODEL, "--input", f"x={path}").returncode)
    assert codes <= {3, 4} and 4 in codes


def test_a_file_of_another_version_of_the_format_is_read(network, tmp_path: Path) -> None:
    model, inputs = network
    path = tmp_path / "x.npy"
    path.write_bytes(npy(inputs["x"], (2, 0)))
    done = run_program(model, "--input", f"x={path}")
    assert done.returncode == 0, done.stderr


@pytest.mark.costly
def test_all_that_is_wrong_with_inputs_is_told_at_once(tmp_path: Path) -> None:
    model, inputs = all_types(tmp_path)
    inputs["int8"] = inputs["int8"].astype("int16")
    inputs["float32"] = inputs["float32"][:1]
    del inputs["uint8"]
    done = run_program(model, *saved(tmp_path, {**inputs, "y": ARRAY}), "--output", "z=z.npy")
    assert (done.returncode, done.stdout) == (4, "")
    for says in (
        f"input 'int8': {tmp_path}/int8.npy: expected int8 (2, 3), got int16 (2, 3)",
        "expected float32 (2, 3), got float32 (1, 3)",
        "input 'uint8' is missing: give uint8 (2, 3) by --input NAME=FILE.npy",
        "no input 'y'; it has 'bool', 'int8'",
        "no output 'z'; it has 'output0', ",
    ):
        assert says in done.stderr


def test_a_model_that_is_damaged_or_missing_is_refused(network, tmp_path: Path) -> None:
    model, inputs = network
    options = saved(tmp_path, inputs)
    content = model.read_bytes()
    damaged = tmp_path / "damaged.so"
    changed = bytearray(content)
    changed[len(changed) // 3] ^= 1
    for bytes_, says in ((content[:-5], ""), (b"", ""), (bytes(changed), "SHA-256")):
        damaged.write_bytes(bytes_)
        done = run_program(damaged, *options)
        assert (done.returncode, done.stdout) == (3, "")
        assert str(damaged) in done.stderr and says in done.stderr
    assert run_program(MISSING_MODEL, *options).returncode == 3


def test_only_what_a_trusted_key_has_signed_is_run(network, tmp_path: Path) -> None:
    keys = write_keys(tmp_path)
    first, second = (("--trusted-key", keys / f"{name}.pub.pem") for name in ("first", "second"))
    for options in (first, (*second, *first)):
        done = run_program(network[0], "--describe", *options)
        assert done.returncode == 0, done.stderr
    done = run_program(network[0], "--describe", *second)
    assert (done.returncode, done.stdout) == (3, "")
    assert "none of the trusted keys" in done.stderr


def test_files_that_cannot_be_read_or_written_are_told(network, tmp_path: Path) -> None:
    model, inputs = network
    for file in (MISSING_FILE, str(tmp_path)):
        done = run_program(model, "--input", f"x={file}")
        assert done.returncode == 4 and f"{file}: cannot be read: " in done.stderr
    options = saved(tmp_path, inputs)
    done = run_program(model, *options, "--output", "output0=/nowhere/y.npy")
    assert done.returncode == 4 and "/nowhere/y.npy" in done.stderr
    to_nowhere = ("--output", "output0=/dev/null", "--trace", "/dev/null")
    assert run_program(model, *options, *to_nowhere).returncode == 0
    assert not Path("/dev/null").is_file()


@pytest.mark.costly(6)
def test_a_run_that_takes_too_long_is_ended(tmp_path: Path) -> None:
    model, inputs = slow_steps(tmp_path)
    for options in (("--timeout", "0.01"), ("--timeout=0",)):
        done = run_program(model, *saved(tmp_path, inputs), *options)
        assert done.returncode == 7
        assert "did not end within its limit" in done.stderr


def test_control_characters_of_names_do_not_reach_the_terminal() -> None:
    done = run_program("\x1b[31mred.so")
    assert done.returncode == 3
    assert "\x1b" not in done.stderr and "\\x1b[31mred.so" in done.stderr
