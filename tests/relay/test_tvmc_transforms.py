"""TVM's own options of `tvmc compile` with a placement: records, layouts, mixed precision."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
import tvm
from relay_models import TARGET, cpu_cluster
from test_tvmc import SHAPE, SHAPES, two_branches
from tvm import autotvm

import heteroplace
from heteroplace.cli.tvmc_plugin.tvmc import main
from heteroplace.cli.tvmc_plugin.tvmc_compile import load_model
from heteroplace.files.cluster_file import save_cluster
from heteroplace.native.compiled_file import read_manifest

pytestmark = [
    pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning"),
    pytest.mark.filterwarnings("ignore:tvm.parser.fromtext is deprecated:DeprecationWarning"),
]
COMPILE = ["compile", "net.onnx", *SHAPES, "--placement", "cluster.json"]
COMPILE += ["--placement-option", "costs=estimate", "--placement-option", "solver=single"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """net.onnx, cluster.json, and plain.so, compiled without any of TVM's options."""
    path = tmp_path_factory.mktemp("transforms")
    onnx.save(two_branches(), path / "net.onnx")
    peaks = {"flops_per_second": 10**11, "memory_bytes_per_second": 10**10}
    devices = tuple(replace(device, **peaks) for device in cpu_cluster().devices)
    save_cluster(replace(cpu_cluster(), devices=devices), path / "cluster.json")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(path)
        assert main([*COMPILE, "-o", "plain.so"]) == 0
    return path


@pytest.fixture
def here(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The same folder, made the current one."""
    monkeypatch.chdir(folder)
    return folder


def outputs(path: str) -> np.ndarray:
    x = np.random.default_rng(1).standard_normal(SHAPE).astype(np.float32)
    return np.asarray(heteroplace.load(path).run(x=x)[0], np.float32)


def write_records(path: str) -> None:
    """Records in which each convolution makes one channel at a time, as if that were fastest."""
    mod, params = load_model("net.onnx", None, {"x": list(SHAPE)})
    target = tvm.target.Target(TARGET)
    result = autotvm.MeasureResult([1e-9], 0, 0.0, 0.0)
    lines = []
    for task in autotvm.task.extract_from_program(mod["main"], target=target, params=params):
        given = autotvm.MeasureInput(target, task, task.config_space.get(0))
        lines.append(autotvm.record.encode(given, result))
    Path(path).write_text("\n".join(lines))


@pytest.mark.costly
def test_kernels_are_compiled_by_tuning_records(here: Path) -> None:
    write_records("records.json")
    assert main([*COMPILE, "--tuning-records", "records.json", "-o", "tuned.so"]) == 0
    plain, tuned = (read_manifest(name).program_text for name in ("plain.so", "tuned.so"))
    assert plain != tuned
    np.testing.assert_allclose(outputs("tuned.so"), outputs("plain.so"), rtol=1e-4, atol=1e-5)


@pytest.mark.costly
@pytest.mark.parametrize(
    ("content", "message"),
    [(None, "no such file"), ("", "holds no records"), ("{]", "cannot be read")],
)
def test_records_that_are_none_are_refused(
    here: Path, capsys: pytest.CaptureFixture[str], content: str | None, message: str
) -> None:
    if content is not None:
        Path("none.json").write_text(content)
    assert main([*COMPILE, "--tuning-records", "none.json" if content is not None else "no"]) == 4
    error = capsys.readouterr().err
    assert "--tuning-records" in error
    assert message in error


@pytest.mark.costly
@pytest.mark.parametrize(
    ("options", "least", "most"),
    [
        pytest.param(["--desired-layout", "NHWC"], 0, 1e-5, marks=pytest.mark.slow),
        pytest.param(["--mixed-precision"], 1e-4, 1e-2, marks=pytest.mark.slow),
        (["--desired-layout", "NHWC", "--mixed-precision"], 1e-4, 1e-2),
    ],
)
def test_layouts_and_mixed_precision_are_what_is_placed(
    here: Path, options: list[str], least: float, most: float
) -> None:
    """`least`, `most`: how far outputs are off, relative to the largest. Half precision is off by
    its roundings, which the verification of `compile` allows."""
    ops = [f"{option}-ops" for option in options if option.startswith("--")]
    named = [word for option in ops for word in (option, "nn.conv2d")]
    assert main([*COMPILE, *options, *named, "-o", "made.so"]) == 0
    plain, made = read_manifest("plain.so"), read_manifest("made.so")
    assert plain.program_text != made.program_text
    found, expected = outputs("made.so"), outputs("plain.so")
    assert least <= np.abs(found - expected).max() / np.abs(expected).max() <= most
