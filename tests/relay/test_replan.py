"""Files that carry their Relay module: what is read of it, and plans made again elsewhere."""

from __future__ import annotations

import logging
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm
from relay_models import (
    TARGET,
    cpu_cluster,
    fire_modules,
    module,
    random_costs,
    two_branches,
    var,
)
from relay_models import placed_randomly as placed
from tvm import relay

import heteroplace as hp
from heteroplace.errors import (
    ArtifactError,
    ExecutionError,
    MissingDeviceError,
    SolverError,
)
from heteroplace.hetero_place import build
from heteroplace.lower.executable import Executable
from heteroplace.model.cluster import Cluster, Device, Memory
from heteroplace.native.compiled_file import known_features, present_features
from heteroplace.relay.source import Source, source_from_json, source_to_json
from heteroplace.relay.source_child import check_ends_nothing
from tests.compiled_files import read_parts

pytestmark = pytest.mark.costly

OPTIONS: dict[str, Any] = {"cluster": cpu_cluster(), "costs": random_costs, "iterations": 100}


def elsewhere() -> Cluster:
    """A machine with a core that this one has not."""
    device = Device("far", "cpu", TARGET, 0, 0, (997,))
    return Cluster("elsewhere", (Memory("ram", 2**33),), (device,), (), 0)


WEIGHT = np.random.default_rng(0).standard_normal((16, 16)).astype("float32")


def made_for(cluster: Cluster, opt_level: int = 3) -> Executable:
    """A layer on a cluster."""
    x = var("x", (1, 16))
    mod = module([x], relay.nn.relu(relay.nn.dense(x, relay.const(WEIGHT))))
    with tvm.transform.PassContext(opt_level=opt_level):
        return build(placed(mod, cluster, 0))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("elsewhere")
    made = made_for(elsewhere())
    made.export_library(found / "with.so", with_source=True)
    made.export_library(found / "without.so")
    return found


def check_placed_again(path: Path, why: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "heteroplace"):
        executor = hp.load(path, on_missing="replan", place_options=OPTIONS, max_in_flight=2)
    x = np.random.default_rng(1).standard_normal((1, 16)).astype("float32")
    np.testing.assert_allclose(executor.run(x=x)[0], np.maximum(x @ WEIGHT.T, 0), rtol=1e-4)
    assert executor.max_in_flight == 2
    assert executor.solution.cluster == cpu_cluster()
    assert f"{path.name}: placed again on cluster 'cpu' (" in executor.replanned
    assert why in executor.replanned
    assert [record.getMessage() for record in caplog.records] == [executor.replanned]


def test_a_plan_for_another_machine_is_made_again_and_told(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    check_placed_again(folder / "with.so", "far (core 997; allowed are", caplog)


def test_code_for_another_processor_is_compiled_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "model.so"
    made_for(cpu_cluster()).export_library(path, with_source=True)
    assert hp.load(path, on_missing="replan").replanned == ""
    absent = sorted(known_features() - present_features())[0]
    parts = read_parts(path)
    needs = parts.needs.replace(b"code ", f"feature {absent}\ncode ".encode())
    path.write_bytes(replace(parts, needs=needs).to_bytes())
    with pytest.raises(MissingDeviceError, match=f"its code uses {absent}, .*on_missing='replan'"):
        hp.load(path)
    check_placed_again(path, f"its code uses {absent}, which", caplog)


def test_without_leave_the_error_names_the_option(folder: Path) -> None:
    for on_missing in ({}, {"on_missing": "error"}):
        with pytest.raises(
            MissingDeviceError, match=r"with\.so: .*far \(core 997.* or load it with on_missing='"
        ):
            hp.load(folder / "with.so", **on_missing)


def test_a_file_without_its_module_says_how_to_export_it(folder: Path) -> None:
    with pytest.raises(MissingDeviceError, match=r"far \(core 997.*: export it with_source=True"):
        hp.load(folder / "without.so", on_missing="replan", place_options=OPTIONS)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"on_missing": "retry"}, ExecutionError, "expected one of 'error', 'replan'"),
        ({"place_options": {}}, ExecutionError, "give on_missing='replan'"),
        ({"on_missing": "replan", "place_options": {"speed": 3}}, SolverError, "speed"),
    ],
)
def test_wrong_options_are_told(
    folder: Path, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        hp.load(folder / "with.so", **options)


def test_damaged_weights_are_not_placed_again(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "model.so"
    data = bytearray((folder / "with.so").read_bytes())
    data[data.index(read_parts(folder / "with.so").weights) + 100] ^= 1
    path.write_bytes(bytes(data))
    with pytest.raises(ArtifactError, match="of its weights differs"):
        hp.load(path, on_missing="replan", place_options=OPTIONS)


def test_a_constant_behind_the_weights_is_refused(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "model.so"
    parts = read_parts(folder / "with.so")
    source = parts.source.replace(b'"weight":', b'"weight":99')
    path.write_bytes(replace(parts, source=source).to_bytes())
    with pytest.raises(ArtifactError, match=r"module is damaged \(a constant ends at byte"):
        hp.load(path, on_missing="replan", place_options=OPTIONS)


def test_a_module_of_another_program_is_refused(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "model.so"
    parts = read_parts(folder / "with.so")
    source = parts.source.replace(b'"input":"x"', b'"input":"y"')
    assert source != parts.source
    path.write_bytes(replace(parts, source=source).to_bytes())
    with pytest.raises(ArtifactError, match=r"its Relay module has inputs \(\('y', .*\(\('x'"):
        hp.load(path, on_missing="replan", place_options=OPTIONS)


def test_weights_that_kernels_read_as_they_are_stand_there_once(tmp_path: Path) -> None:
    made = made_for(cpu_cluster(), opt_level=0)
    sizes = []
    for with_source in (False, True):
        made.export_library(tmp_path / "model.so", with_source=with_source)
        sizes.append(len(read_parts(tmp_path / "model.so").weights))
    assert sizes == [WEIGHT.nbytes, WEIGHT.nbytes]


def written_and_read(mod: tvm.IRModule) -> tvm.IRModule:
    blob = bytearray()

    def place(array: np.ndarray) -> int:
        blob.extend(array.tobytes())
        return len(blob) - array.nbytes

    data = source_to_json(Source(mod, 3), place)
    content = np.frombuffer(bytes(blob), dtype="uint8")
    found = source_from_json(data, lambda offset, size: content[offset : offset + size])
    assert found.opt_level == 3
    return found.mod


def unusual() -> tvm.IRModule:
    """Attributes and types of every kind."""
    x = var("x", (2, 6))
    taken = relay.strided_slice(x, [tvm.tir.IntImm("int64", 0)], [2], axes=[0])
    first, second = relay.split(taken, 2, axis=1)[0], relay.split(x, [1, 4], axis=1)[1]
    low = relay.clip(first, float("-inf"), 0.1)
    chosen = relay.where(relay.const(np.array([True, False, True])), low, second)
    half = relay.cast(relay.cast(chosen, "bfloat16"), "float32")
    padded = relay.nn.pad(half, ((1, 0), (0, 2)), pad_value=float("nan"))
    cast = relay.cast(relay.argmax(padded, axis=1), "int64")
    scalar = relay.const(2**40, "int64")
    bits = tvm.nd.empty((2,), "bfloat16")
    bits.copyfrom(np.array([16256, 32640], "uint16"))
    outputs = [padded, relay.add(cast, scalar), relay.cast(relay.Constant(bits), "float32"), x]
    return module([x], relay.Tuple(outputs))


def test_a_module_that_ends_who_reads_it_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = var("x", (1, 4))
    mod = relay.transform.InferType()(module([x], relay.nn.relu(x)))
    data = source_to_json(Source(mod, 3), lambda _: 0)
    check_ends_nothing(data, "model.so")
    reader = tmp_path / "reader"
    reader.write_text("#!/bin/sh\nkill -FPE $$\n")
    reader.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(reader))
    with pytest.raises(ArtifactError, match=r"model\.so: .* damaged \(a process .* code -8\)"):
        check_ends_nothing(data, "model.so")


@pytest.mark.parametrize("make", [two_branches, fire_modules, unusual])
def test_what_is_read_is_what_was_written(make: Any) -> None:
    mod = make()
    tvm.ir.assert_structural_equal(written_and_read(mod), mod)


def test_what_cannot_be_written_is_refused() -> None:
    x = var("x", (4,))
    called = relay.Call(relay.Function([x], relay.exp(x)), [var("y", (4,))])
    with pytest.raises(ArtifactError, match="cannot be written beside its kernels: it has a"):
        written_and_read(module([called.args[0]], called))
    made = replace(made_for(cpu_cluster()), source=None)
    with pytest.raises(ArtifactError, match="was made of kernels alone"):
        made.export_library("model.so", with_source=True)
