"""`tvmc` with a placement: same numbers as TVM's own, tables, files, messages and exit codes."""

import base64
import json
import re
import sys
import zlib
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx_models import make_model, node
from tvm.driver.tvmc import main as driver

import heteroplace
from heteroplace.cli.main import main as show
from heteroplace.cli.tvmc_plugin.tvmc import main
from heteroplace.cli.tvmc_plugin.tvmc_errors import one_line
from heteroplace.machine.probe import local_cpu_cluster
from heteroplace.model.check import check_plan
from heteroplace.report.notes import notes_text
from heteroplace.tvm_bridge import llvm_cpu_target
from tests.chrome_trace_model import checked, of
from tests.signing_keys import write_keys

# TVM's driver leaves files (its configuration, its packages) and the kernels' library leaves its
# folder to the garbage collector; TVM's driver reads Relay text by a deprecated name.
pytestmark = [
    pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning"),
    pytest.mark.filterwarnings("ignore:tvm.parser.fromtext is deprecated:DeprecationWarning"),
]

SHAPE = (1, 3, 16, 16)
SHAPES = ["--input-shapes", "x:[1,3,16,16]"]
PLACE = ["--placement", "local", "--placement-option", "time_limit=1"]


def two_branches() -> onnx.ModelProto:
    """A network with two convolutions that do not need each other, and a free batch size."""
    random = np.random.default_rng(0)
    nodes, weights = [], []
    for name, source, channels, kernel in (
        ("stem", "x", 3, 3),
        ("l", "stem", 8, 3),
        ("r", "stem", 8, 5),
    ):
        values = random.standard_normal((8, channels, kernel, kernel)).astype(np.float32)
        weights.append(numpy_helper.from_array(values, f"{name}.weight"))
        inputs = [source, f"{name}.weight"]
        nodes.append(helper.make_node("Conv", inputs, [name], name=name, pads=[kernel // 2] * 4))
    nodes.append(helper.make_node("Add", ["l", "r"], ["sum"]))
    nodes.append(helper.make_node("GlobalAveragePool", ["sum"], ["y"]))
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3, 16, 16])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 8, 1, 1])
    graph = helper.make_graph(nodes, "two_branches", [x], [y], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """net.onnx, net.so placed on the CPU of this machine, and x.npz with an input."""
    path = tmp_path_factory.mktemp("tvmc")
    onnx.save(two_branches(), path / "net.onnx")
    x = np.random.default_rng(1).standard_normal(SHAPE).astype(np.float32)
    np.savez(path / "x.npz", x=x)
    command = ["compile", str(path / "net.onnx"), *SHAPES, *PLACE, "-o", str(path / "net.so")]
    assert main(command) == 0
    return path


@pytest.fixture
def here(folder, monkeypatch):
    """The same folder, made the current one."""
    monkeypatch.chdir(folder)
    return folder


@pytest.mark.costly(6)
def test_same_inputs_give_the_same_outputs_as_tvms_own_tvmc(here):
    assert main(["compile", "net.onnx", "--target", "llvm", *SHAPES, "-o", "own.tar"]) == 0
    assert main(["run", "own.tar", "-i", "x.npz", "-o", "own.npz"]) == 0
    assert main(["run", "net.so", "-i", "x.npz", "-o", "placed.npz"]) == 0
    with np.load("own.npz") as own, np.load("placed.npz") as placed:
        assert own.files == placed.files == ["output_0"]
        assert own["output_0"].shape == (1, 8, 1, 1)
        np.testing.assert_allclose(placed["output_0"], own["output_0"], rtol=1e-4, atol=1e-5)


def test_inputs_are_cast_as_tvm_casts_them(here):
    with np.load("x.npz") as file:
        np.savez("x64.npz", x=file["x"].astype(np.float64))
    assert main(["run", "net.so", "-i", "x.npz", "-o", "a.npz"]) == 0
    assert main(["run", "net.so", "-i", "x64.npz", "-o", "b.npz"]) == 0
    with np.load("a.npz") as a, np.load("b.npz") as b:
        np.testing.assert_array_equal(a["output_0"], b["output_0"])


@pytest.mark.parametrize(("mode", "value"), [("zeros", 0), ("ones", 1)])
def test_fill_mode_fills_the_inputs_that_are_not_given(here, mode, value):
    assert main(["run", "net.so", "--fill-mode", mode, "-o", "out.npz"]) == 0
    expected = heteroplace.load("net.so").run(x=np.full(SHAPE, value, np.float32))
    with np.load("out.npz") as out:
        np.testing.assert_array_equal(out["output_0"], expected[0])


@pytest.mark.parametrize(
    ("x", "top"),
    [(np.arange(8), "[[7. 6.]\n [7. 6.]]\n"), (np.array(3), "[[0.]\n [3.]]\n")],
    ids=["a row", "a number"],
)
def test_top_values_of_an_output_without_rows_are_those_of_all_of_it(here, capsys, x, top):
    x = x.astype(np.float32)
    onnx.save(make_model([node("Relu", "x", "y")], {"x": x.shape}, ["y"]), "row.onnx")
    assert main(["compile", "row.onnx", *PLACE, "-o", "row.so"]) == 0
    np.savez("row.npz", x=x)
    capsys.readouterr()
    assert main(["run", "row.so", "-i", "row.npz", "--print-top", "2", "-o", "out.npz"]) == 0
    assert capsys.readouterr().out == top
    with np.load("out.npz") as out:
        np.testing.assert_array_equal(out["output_0"], x)
    # `heteroplace run` takes it, too.
    np.save("row.npy", x)
    assert show(["run", "row.so", "--input", "x=row.npy", "--runs", "1", "-o", "own.npz"]) == 0
    with np.load("own.npz") as out:
        np.testing.assert_array_equal(out["y"], x)


@pytest.mark.parametrize("helping", ["auto", "on", "off"])
def test_helping_changes_no_output(here, helping):
    command = [
        "run",
        "net.so",
        "--fill-mode",
        "ones",
        "--placement-helping",
        helping,
        "-o",
        "out.npz",
    ]
    assert main(command) == 0
    expected = heteroplace.load("net.so").run(x=np.ones(SHAPE, np.float32))
    with np.load("out.npz") as out:
        np.testing.assert_array_equal(out["output_0"], expected[0])


def test_print_time_prints_tvms_table(here, capsys):
    assert main(["run", "net.so", "--print-time", "--repeat", "3", "--number", "2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "Execution time summary:"
    assert lines[1].split()[:4] == ["mean", "(ms)", "median", "(ms)"]
    mean, median, highest, lowest, _ = map(float, lines[2].split())
    assert 0 < lowest <= median <= highest
    assert lowest <= mean <= highest


def test_trace_is_written_and_says_how_busy_the_queues_were(here, capsys):
    arguments = ["--placement-trace", "t.json", "--print-time", "--number", "5"]
    assert main(["run", "net.so", *arguments]) == 0
    assert capsys.readouterr().out.startswith("queue ")
    assert len(of(checked(Path("t.json").read_text()), "b")) == 1 + 5


def test_profile_prints_when_each_task_ran(here, capsys):
    assert main(["run", "net.so", "--profile"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("task ")
    for task in heteroplace.load("net.so").solution.graph.tasks:
        assert task.name in text


def test_device_is_said_to_be_ignored(here, capsys):
    assert main(["run", "net.so", "--device", "cpu"]) == 0
    told = capsys.readouterr().err
    assert told.startswith("note: --device cpu is ignored")
    notes = notes_text(heteroplace.load("net.so").solution)
    assert notes and notes in told


@pytest.mark.costly
def test_compile_prints_the_import_the_tables_and_the_headline(here, capsys):
    assert main(["compile", "net.onnx", *SHAPES, *PLACE, "-o", "once again.so"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("imported net.onnx\n  input 'x' has shape (1, 3, 16, 16)\n")
    assert "\ntask " in text
    assert "\ndevice " in text
    assert "no plan is faster" in text or "is possible, gap" in text
    assert text.endswith("next: tvmc run 'once again.so'\n")
    verified = heteroplace.Executor("once again.so").verification
    assert verified.is_verified
    assert f"\n{verified.text}\n" in text
    assert show(["show", "once again.so"]) == 0
    assert capsys.readouterr().out.endswith(f"\n{verified.text}\n")


@pytest.mark.costly
def test_a_signed_file_with_its_module_is_compiled_and_run(here, tmp_path, capsys):
    keys, path = write_keys(tmp_path), str(tmp_path / "signed.so")
    written = ["--placement-with-source", "--placement-sign-with", str(keys / "first.pem")]
    written += ["--placement-option", "verify=off"]
    assert main(["compile", "net.onnx", *SHAPES, *PLACE, *written, "-o", path]) == 0
    trusting = ["run", path, "--placement-on-missing", "replan", "--placement-trusted-key"]
    assert main([*trusting, str(keys / "first.pub.pem")]) == 0
    assert main([*trusting, str(keys / "second.pub.pem")]) == 4
    assert "which is none of the trusted keys" in capsys.readouterr().err
    assert show(["show", path]) == 0
    text = capsys.readouterr().out
    assert "with its Relay module" in text and "signature: by Ed25519 key" in text


@pytest.mark.costly
def test_dry_run_writes_a_plan_that_keeps_pins_and_nothing_else(here, capsys):
    options = [
        "--placement-option",
        "pin=*=cpu.all",
        "--placement-option",
        "solver=heft",
        "--placement-dry-run",
    ]
    files = set(here.iterdir())
    command = ["compile", "net.onnx", *SHAPES, *PLACE, *options, "--placement-plan-out", "p.json"]
    assert main(command) == 0
    assert set(here.iterdir()) - files == {here / "p.json"}
    steps = json.loads(Path("p.json").read_text())["steps"]
    assert {step["on"] for step in steps if "run" in step} == {"cpu.all"}
    assert "dry run: nothing was compiled" in capsys.readouterr().out


@pytest.mark.costly
def test_a_dry_run_writes_the_page_of_its_plan(here, capsys):
    report = ["--placement-dry-run", "--placement-report", "page.html"]
    assert main(["compile", "net.onnx", *SHAPES, *PLACE, *report]) == 0
    assert "report: page.html" in capsys.readouterr().out
    text = Path("page.html").read_text()
    data = base64.b64decode(re.search('<script id="data"[^>]*>([^<]*)<', text)[1])
    assert "progress" not in json.loads(zlib.decompress(data))["missing"]


def test_a_compiled_file_is_measured_for_its_page(here, capsys):
    with np.load("x.npz") as arrays:
        np.save("x.npy", arrays["x"])
    options = ["--measure", "3", "--input", "x=x.npy"]
    assert show(["report", "net.so", *options, "-o", "net.html"]) == 0
    assert "report: net.html" in capsys.readouterr().out
    text = Path("net.html").read_text()
    data = base64.b64decode(re.search('<script id="data"[^>]*>([^<]*)<', text)[1])
    value = json.loads(zlib.decompress(data))
    assert [run["label"] for run in value["runs"]] == ["predicted", "measured"]
    assert value["measured"]["time"][1] > 0
    np.save("z.npy", np.zeros(1))
    np.savez("other.npz", z=np.zeros(1))
    assert show(["report", "net.so", "--measure", "3", "--input", "z=z.npy"]) == 4
    assert "the model has no input 'z'; it has: x" in capsys.readouterr().err
    assert main(["run", "net.so", "--inputs", "other.npz"]) == 4
    assert "the model has no input 'z'; it has: x" in capsys.readouterr().err


@pytest.mark.costly
def test_exclude_keeps_devices_free(here):
    options = ["--placement-option", "exclude=cpu.all", "-o", "excluded.so"]
    if len(local_cpu_cluster(llvm_cpu_target()).devices) == 1:
        pytest.skip("one core: cpu.all is the only device")
    assert main(["compile", "net.onnx", *SHAPES, *PLACE, *options]) == 0
    placement = heteroplace.load("excluded.so").solution
    assert "cpu.all" not in placement.devices_used
    check_plan(placement.graph, placement.cluster, placement.costs, placement.plan)


def test_other_formats_are_read_by_tvms_driver(here):
    text = '#[version = "0.0.5"]\ndef @main(%x: Tensor[(1, 8), float32]) { nn.relu(%x) }'
    Path("net.relay").write_text(text)
    command = ["compile", "net.relay", "--input-shapes", "x:[1,8]", *PLACE]
    assert main([*command, "-o", "relay.so"]) == 0
    x = np.arange(-4, 4, dtype=np.float32)[np.newaxis]
    np.testing.assert_array_equal(heteroplace.load("relay.so").run(x=x)[0], np.maximum(x, 0))


def cluster_file(path: Path, memory: str) -> None:
    """Write a cluster of one core of this machine."""
    (core, *_) = local_cpu_cluster(llvm_cpu_target()).devices[0].cores
    device = {"name": "cpu.0", "target": "llvm", "device": "cpu:0", "memory": "ram"}
    value = {
        "schema_version": 1,
        "name": "one-core",
        "host": "ram",
        "memories": [{"name": "ram", "size": memory}],
        "devices": [{**device, "cores": [core]}],
    }
    path.write_text(json.dumps(value))


def test_a_network_that_fits_nowhere_is_exit_code_3(here, capsys):
    cluster_file(here / "tiny.json", "4 KiB")
    assert main(["compile", "net.onnx", *SHAPES, "--placement", "tiny.json"]) == 3
    fault = capsys.readouterr().err.splitlines()[-1]
    assert fault.startswith("error: task 'conv2d.1' needs 11.8 KiB")
    assert "cpu.0 has 4.0 KiB" in fault


def test_a_package_that_a_format_needs_and_is_missing_is_exit_code_5(here, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "tflite", None)
    Path("net.tflite").write_bytes(b"TFL3")
    assert main(["compile", "net.tflite", *PLACE]) == 5
    assert 'Package "tflite.Model" is not installed' in capsys.readouterr().err


NET = ["compile", "net.onnx", *SHAPES]


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (["compile", "nothing.onnx", *PLACE], "nothing.onnx: no such file"),
        (["compile", "damaged.onnx", *PLACE], "damaged.onnx (8 bytes) is not an ONNX model"),
        (["compile", "damaged.relay", *PLACE], "does not include the required version"),
        (["compile", "net.unknown", *PLACE], "specify --model-format"),
        (["compile", "net.onnx", *PLACE], '--input-shapes "name:[1,3,224,224]'),
        (
            ["compile", "net.onnx", "--input-shapes", "x:[-1,3,16,16]", *PLACE],
            "(-1, 3, 16, 16): sizes must not be negative (on the command line: --input-shapes",
        ),
        ([*NET, "--placement", "lokal"], "no ready-made cluster is called 'lokal'; did you mean"),
        ([*NET, "--placement", "damaged.json"], "damaged.json"),
        ([*NET, "--placement", "cpu-two-gpus"], "not in this machine"),
        (
            [*NET, "--placement-option", "solver=heft"],
            "--placement-option needs --placement CLUSTER",
        ),
        ([*NET, *PLACE, "--target", "llvm"], "--placement and --target exclude each other"),
        ([*NET, *PLACE, "--target-llvm-mcpu", "haswell"], "exclude each other"),
        ([*NET, *PLACE, "--cross-compiler", "gcc"], "--cross-compiler cannot be used"),
        ([*NET, *PLACE, "--placement-option", "pin=conv"], "expected PATTERN=DEVICE"),
        ([*NET, *PLACE, "--placement-option", "pin=conv=gpu"], "has no device 'gpu'; it has: cpu"),
        ([*NET, *PLACE, "--placement-option", "pin=lstm*=cpu.all"], "no task matches lstm*"),
        ([*NET, *PLACE, "--placement-option", "exclude=gpu"], "has no device 'gpu'"),
        (
            [*NET, *PLACE, "--placement-option", "costs=guess"],
            "give measure, isolated, predict, estimate, or a cost table",
        ),
        ([*NET, *PLACE, "--placement-option", "time_limit=0"], "a time above 0"),
        ([*NET, *PLACE, "-o", "net.tar"], "ends in .so"),
        ([*NET, *PLACE, "-o", "no/net.so"], "folder 'no' does not exist"),
        ([*NET, *PLACE, "--placement-plan-out", "no/plan.json"], "folder 'no' does not exist"),
        ([*NET, *PLACE, "--placement-plan-out", "."], ".: is a folder; give the name of a file"),
        ([*NET, *PLACE, "--placement-report", "."], ".: is a folder; give the name of a file"),
        ([*NET, *PLACE, "--placement-sign-with", "none.pem"], "none.pem: cannot be read"),
        (
            [*NET, *PLACE, "--placement-dry-run", "--placement-with-source"],
            "--placement-with-source is about the file, and --placement-dry-run writes none",
        ),
        (["run", "net.so", "--placement-trusted-key", "none.pem"], "none.pem: cannot be read"),
        (["run", "damaged.relay", "--placement-on-missing", "replan"], "needs a placed file"),
        (["run", "foreign.so"], "no heteroplace footer"),
        (["run", "nothing.so"], "does not exist"),
        (["run", "net.so", "-i", "z.npz"], "the model has no input 'z'; it has: x"),
        (["run", "net.so", "-i", "small.npz"], "input 'x' has shape [3], expected [1, 3, 16, 16]"),
        (["run", "net.so", "-i", "wide.npz"], "which the model expects, does not hold all"),
        (["run", "net.so", "-i", "bare.npy"], "cannot be read as .npz"),
        (["run", "net.so", "-i", "nothing.npz"], "cannot be read as .npz"),
        (["run", "net.so", "-o", "no/out.npz"], "folder 'no' does not exist"),
        (["run", "net.so", "--rpc-key", "pi"], "--rpc-key cannot be used with a placed file"),
        (["run", "net.so", "--print-time", "--number", "0"], "must be at least 1"),
    ],
)
def test_wrong_input_is_one_line_and_exit_code_4(here, capsys, command, message):
    for name in ("damaged.onnx", "damaged.relay", "net.unknown"):
        Path(name).write_text("garbage\n")
    Path("damaged.json").write_text("{")
    Path("foreign.so").write_bytes(b"\x7fELF and more")
    np.savez("z.npz", z=np.ones(3))
    np.savez("small.npz", x=np.ones(3))
    np.savez("wide.npz", x=np.full((1, 3, 16, 16), 1e39))
    np.save("bare.npy", np.ones(3))
    assert main(command) == 4
    error = capsys.readouterr().err
    assert message in error
    assert error.splitlines()[-1].lower().startswith("error: ")
    assert "Traceback" not in error


def test_verbose_shows_the_traceback(here, capsys):
    assert main(["compile", "nothing.onnx", *PLACE, "-v"]) == 4
    assert "Traceback" in capsys.readouterr().err


def test_tvms_driver_is_left_as_it_was(here, capsys):
    before = list(driver.REGISTERED_PARSER)
    assert main(["--version"]) == 0
    assert before == driver.REGISTERED_PARSER


def test_cpp_frames_of_a_tvm_error_are_dropped():
    text = (
        'Traceback (most recent call last):\n  2: tvm::relay::Build\n  File "a.cc", line 3\n'
        "TVMError: Check failed: (a == b) is false: sizes differ."
    )
    assert one_line(RuntimeError(text)) == "TVMError: Check failed: (a == b) is false: sizes differ"
