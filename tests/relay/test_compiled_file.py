"""Compiled files as they are loaded: whole if they are replaced, private, checked, of any size."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tvm
from relay_models import cpu_cluster, mixed_cluster, module, var
from relay_models import placed_randomly as placed
from tvm import relay

import heteroplace as hp
from heteroplace.errors import ArtifactError, ExecutionError
from heteroplace.hetero_place import build
from heteroplace.lower.executable import Executable
from heteroplace.lower.kernels import Value
from heteroplace.lower.needs import cpu_features, needs_text
from heteroplace.lower.program import aligned
from heteroplace.native.compiled_file import (
    CompiledFile,
    known_features,
    present_features,
)
from tests.compiled_files import read_parts
from tests.programs import environment

GIB = 1 << 30
ONES = np.ones(4, "float32")


def exported(path: Path, name: str, op: Callable[[relay.Expr], relay.Expr]) -> Executable:
    """One op on an input `name`, and its file."""
    x = var(name, (4,))
    with tvm.transform.PassContext(opt_level=3):
        made = build(placed(module([x], op(relay.add(x, relay.const(ONES)))), cpu_cluster(), 0))
    made.export_library(path)
    return made


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "model.so"
    exported(path, "x", relay.exp)
    return path


@pytest.mark.costly
def test_a_file_that_is_replaced_while_it_is_loaded_is_one_of_the_two(tmp_path: Path) -> None:
    sources = (tmp_path / "negative.so", tmp_path / "exp.so")
    for source, name, op in zip(sources, "xy", (relay.negative, relay.exp), strict=True):
        exported(source, name, op)
    expected = {"x": -2 * ONES, "y": np.exp(2 * ONES)}
    path, is_over = tmp_path / "model.so", threading.Event()
    os.link(sources[0], path)

    def replace_it() -> None:
        for turn in range(1_000_000):
            if is_over.is_set():
                return
            link = tmp_path / f"link{turn}"
            os.link(sources[turn % 2], link)
            link.replace(path)
            # A link onto itself is left there.
            link.unlink(missing_ok=True)

    replacing = threading.Thread(target=replace_it)
    replacing.start()
    try:
        seen = set()
        for _ in range(40):
            executor = hp.load(path)
            ((name, _, _),) = executor.inputs
            np.testing.assert_allclose(executor.run(**{name: ONES})[0], expected[name], rtol=1e-6)
            seen.add(name)
    finally:
        is_over.set()
        replacing.join()
    assert seen <= {"x", "y"}


def test_a_file_that_is_written_over_while_it_is_loaded_is_refused(
    good: Path, tmp_path: Path
) -> None:
    path = tmp_path / "model.so"
    path.write_bytes(good.read_bytes())
    file = CompiledFile(path)
    path.write_bytes(good.read_bytes())
    with pytest.raises(ArtifactError, match="was written to while it was loaded"):
        file.check()


@pytest.mark.costly
def test_a_process_that_is_killed_leaves_nothing_in_the_temporary_folder(
    good: Path, tmp_path: Path
) -> None:
    program = (
        "import os, signal, sys, heteroplace as hp\n"
        "executor = hp.load(sys.argv[1])\n"
        "print(executor.inputs[0][0], flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(good)],
        env=environment(TMPDIR=str(tmp_path)),
        capture_output=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (-9, b"x\n"), done.stderr
    assert list(tmp_path.iterdir()) == []


def test_two_loads_have_code_of_their_own_and_leave_no_descriptor(good: Path) -> None:
    def descriptors() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    hp.load(good)
    before = descriptors()
    executors = [hp.load(good) for _ in range(3)]
    for executor in executors:
        np.testing.assert_allclose(executor.run(x=ONES)[0], np.exp(2 * ONES), rtol=1e-6)
    assert descriptors() > before
    del executors, executor
    assert descriptors() == before


@pytest.mark.parametrize("path", ["a\0b", "/nowhere/\udcff"])
def test_a_path_that_no_file_has_is_refused(path: str) -> None:
    with pytest.raises(ArtifactError, match=r"zero byte|No such file|is no text"):
        hp.load(path)


def test_a_path_of_bytes_is_refused_by_its_type() -> None:
    with pytest.raises(ExecutionError, match=r"path is b'm\.so', of type bytes; expected the path"):
        hp.load(b"m.so")  # type: ignore[arg-type]


def test_an_export_to_a_path_that_no_file_has_is_refused(tmp_path: Path) -> None:
    made = exported(tmp_path / "model.so", "x", relay.exp)
    with pytest.raises(ArtifactError, match="cannot write the compiled file: embedded null"):
        made.export_library(f"{tmp_path}/a\0b.so")


def sealed_with(good: Path, folder: Path, old: str, new: str) -> Path:
    parts = read_parts(good)
    path = folder / "changed.so"
    needs = parts.needs.decode().replace(old, new).encode(errors="surrogateescape")
    assert needs != parts.needs
    path.write_bytes(replace(parts, needs=needs).to_bytes())
    return path


def test_code_for_another_processor_is_refused_with_what_it_lacks(
    good: Path, tmp_path: Path
) -> None:
    absent = sorted(known_features() - present_features())[:2]
    features = "".join(f"feature {name}\n" for name in [*absent, "sse3"])
    path = sealed_with(good, tmp_path, "code ", f"{features}code ")
    with pytest.raises(ExecutionError, match=f"its code uses {', '.join(absent)}, which this"):
        hp.load(path)


@pytest.mark.parametrize(
    "old, new, passed",
    [
        ("arena 128 2 32 4", "arena 128 2 32 3", "cpu; float32 (4); float32 (4); float32 (3)"),
        ("arena 128 2 32 4", "arena 128 2 16 4", "cpu; float32 (4); float32 (4); float16 (4)"),
        ("arena 128 2 32 4", "arena 128 0 32 4", "cpu; float32 (4); float32 (4); int32 (4)"),
        ("arena 128 2 32 4", "arena 128 2 32 2,2", "cpu; float32 (4); float32 (4); float32 (2, 2)"),
        ("arena 128 2 32 4", "arena 128 2 32 -", "cpu; float32 (4); float32 (4); float32 ()"),
        (" 0,1,2 -", " 0,2 -", "cpu; float32 (4); float32 (4)"),
        (" 0,1,2 -", " 0,1,2,2 -", "cpu; float32 (4); float32 (4); float32 (4); float32 (4)"),
        (
            'space 0 "ram" 1 0 256\nqueue 0 "core0" cpu 1 0 0 0',
            'space 0 "ram" 2 0 256\nqueue 0 "core0" cuda 2 0 0 -',
            "cuda; float32 (4); float32 (4); float32 (4)",
        ),
    ],
)
def test_a_call_that_does_not_pass_what_its_kernel_takes_is_refused(
    good: Path, tmp_path: Path, old: str, new: str, passed: str
) -> None:
    parts = read_parts(good)
    program = parts.program.decode()
    program = program.replace('queue 1 "core1" cpu 1 0 0 1\n', "").replace("join 1 0 0 0 -\n", "")
    program = program.replace("call 0 0 0 2", "call 0 0 0 1")
    assert old in program
    program = program.replace(old, new)
    path = tmp_path / "changed.so"
    path.write_bytes(replace(parts, program=program.encode()).sealed().to_bytes())
    takes = "cpu; float32 (4); float32 (4); float32 (4)"
    message = (
        rf"line \d+: kernel 'add_exp_\w+' takes {re.escape(f'({takes}), got ({passed})')}; bui"
    )
    with pytest.raises(ArtifactError, match=message):
        hp.load(path)


def test_code_for_another_machine_is_refused(good: Path, tmp_path: Path) -> None:
    path = sealed_with(good, tmp_path, "machine x86_64", "machine riscv64")
    with pytest.raises(ExecutionError, match="has code for riscv64, this machine is x86_64"):
        hp.load(path)


@pytest.mark.parametrize(
    "line",
    [
        *("cuda 0", "cuda 0 x", "cuda -1 80", "cuda 99999 80", "machine a", "speed 3", "code", " "),
        *("feature a\udc8a", "feature a\0", "feature \x1b[31m"),
    ],
)
def test_needs_that_cannot_be_read_are_refused(good: Path, tmp_path: Path, line: str) -> None:
    path = sealed_with(good, tmp_path, "machine x86_64\n", f"machine x86_64\n{line}\n")
    with pytest.raises(ArtifactError, match="needs line 3: "):
        hp.load(path)


def test_needs_are_those_of_the_targets(good: Path) -> None:
    text = read_parts(good).needs.decode()
    target = tvm.target.Target(cpu_cluster().devices[0].target)
    told = {line.split()[1] for line in text.splitlines() if line.startswith("feature ")}
    assert told == cpu_features(target) <= present_features()
    avx512 = cpu_features(tvm.target.Target("llvm -mcpu=skylake-avx512"))
    assert {"avx512f", "avx512vl", "avx2", "fma"} <= avx512
    assert cpu_features(tvm.target.Target("llvm")) == frozenset()
    cooperlake = "-mcpu=cooperlake"
    plain, low, tiles = (
        tvm.target.Target(f"llvm -keys={keys} {cooperlake}")
        for keys in ("cpu", "bf16_kernels,cpu", "amx,cpu")
    )
    assert cpu_features(low) - cpu_features(plain) == {"avx512bf16"}
    assert cpu_features(tiles) == cpu_features(plain) == cpu_features(plain, uses_amx=True)
    of_amx = {"amx-tile", "amx-bf16", "amx-int8"}
    assert cpu_features(tiles, uses_amx=True) - cpu_features(plain) == of_amx


def test_needs_of_a_plan_on_a_gpu_name_its_architecture(good: Path) -> None:
    solution = hp.load(good).solution
    cluster = mixed_cluster()
    used = replace(solution, cluster=cluster, plan=replace(solution.plan, steps=()))
    lines = needs_text(used, {"code": "c"}).splitlines()
    assert not [line for line in lines if line.startswith("cuda")]
    (step, *_) = solution.plan.steps
    used = replace(used, plan=replace(solution.plan, steps=(replace(step, device=1),)))
    lines = needs_text(used, {"code": "c"}).splitlines()
    assert [line for line in lines if line.startswith("cuda")] == ["cuda 0 80"]


def with_weight(made: Executable, num_bytes: int) -> Executable:
    """The same with one more weight, of zeros that no memory holds, behind the others."""
    lowered = made.lowered
    value = Value((num_bytes,), "uint8", constant=np.zeros(num_bytes, "uint8"))
    more = replace(
        lowered,
        weights={**lowered.weights, lowered.blob_bytes: value},
        blob_bytes=lowered.blob_bytes + aligned(num_bytes),
    )
    return replace(made, lowered=more)


RESIDENT = """
import sys
import numpy as np
import heteroplace as hp

def resident():
    fields = dict(line.split(":") for line in open("/proc/self/status"))
    return int(fields["VmRSS"].split()[0]) * 1024

first = hp.load(sys.argv[1])  # with what the package itself takes
before = resident()
executor = hp.load(sys.argv[1])
loaded = resident() - before
(output,) = executor.run(x=np.ones(4, "float32"))
print(loaded, output[0])
"""


def check_sparse(folder: Path, num_bytes: int) -> None:
    """Export and load so many bytes of zeros; they take neither disk nor memory."""
    path = folder / "model.so"
    with_weight(exported(path, "x", relay.exp), num_bytes).export_library(path)
    status = path.stat()
    assert status.st_size > num_bytes > 1000 * status.st_blocks
    command = [sys.executable, "-c", RESIDENT, str(path)]
    done = subprocess.run(command, env=environment(), capture_output=True, check=True, text=True)
    loaded, output = done.stdout.split()
    assert int(loaded) <= 0.1 * num_bytes
    assert float(output) == pytest.approx(np.exp(2), rel=1e-6)


@pytest.mark.costly
def test_loading_takes_no_memory_for_weights(tmp_path: Path) -> None:
    check_sparse(tmp_path, 3 * GIB // 10)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_eight_gibibytes_of_weights_are_exported_and_loaded(tmp_path: Path) -> None:
    check_sparse(tmp_path, 8 * GIB)


def test_a_bit_of_any_piece_of_the_weights_is_checked(tmp_path: Path) -> None:
    path = tmp_path / "model.so"
    with_weight(exported(path, "x", relay.exp), 9 << 20).export_library(path)
    offset = len(path.read_bytes()) - len(read_parts(path).manifest) - (1 << 16)
    with path.open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)
        file.seek(offset)
        file.write(bytes([byte[0] ^ 16]))
    with pytest.raises(ArtifactError, match=r"bytes 8388608 to \d+ of its weights differs"):
        hp.load(path)
    CompiledFile(path).manifest()


@pytest.mark.costly
def test_weights_are_in_the_file_as_in_memory(tmp_path: Path) -> None:
    path = tmp_path / "model.so"
    random = np.random.default_rng(0)
    x = var("x", (4,))
    body = x
    for size in (4, 1 << 20, 3, 5 << 20):
        weight = relay.const(random.random(size, dtype="float32"))
        body = relay.add(body, relay.take(weight, relay.const(np.arange(4) % size)))
    with tvm.transform.PassContext(opt_level=0):
        made = build(placed(module([x], body), cpu_cluster(), 0))
    made.export_library(path)
    assert read_parts(path).weights == made.blob.tobytes()[: made.lowered.blob_bytes]
    np.testing.assert_array_equal(hp.load(path).run(x=ONES)[0], hp.Executor(made).run(x=ONES)[0])
