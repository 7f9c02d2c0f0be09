"""artifact: what is not a whole, unchanged file of this version never reaches the loader."""

from __future__ import annotations

import json
import struct
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tvm
from c_programs import sorting
from relay_models import cpu_cluster, module, random_inputs, two_branches, var
from relay_models import placed_randomly as placed
from tvm import relay

import heteroplace as hp
from heteroplace.cli.main import main
from heteroplace.errors import ArtifactError
from heteroplace.files.manifest import Manifest
from heteroplace.hetero_place import build
from heteroplace.lower import artifact, library
from heteroplace.lower.executable import Executable
from heteroplace.lower.program import ALIGNMENT_BYTES
from heteroplace.model.text import print_cluster, print_plan
from heteroplace.native.compiled_file import read_manifest
from tests.compiled_files import FORMAT, TAIL, read_parts


@pytest.fixture(scope="module")
def executable() -> Executable:
    with tvm.transform.PassContext(opt_level=3):
        return build(placed(two_branches(), cpu_cluster(), 0))


@pytest.fixture(scope="module")
def good(executable: Executable, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "model.so"
    executable.export_library(path)
    return path


def changed(good: Path, tmp_path: Path, data: bytes) -> Path:
    path = tmp_path / "changed.so"
    path.write_bytes(data)
    return path


def test_show_prints_what_the_file_says(
    good: Path, executable: Executable, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["show", str(good), "--program"]) == 0
    text, solution = capsys.readouterr().out, executable.solution
    assert text.startswith(print_cluster(solution.cluster))
    assert print_plan(solution.graph, solution.cluster, solution.plan) in text
    assert text.endswith(executable.manifest.program_text.rstrip() + "\n")


def test_a_file_says_what_is_in_it(good: Path, executable: Executable) -> None:
    manifest = read_manifest(good)
    assert manifest == executable.manifest
    assert manifest.inputs == (("x", (1, 8, 8, 8), "float32"),)
    assert manifest.tvm_version == tvm.__version__


@pytest.mark.parametrize("kept", [0, 3, 63, 64, 5000, -1, -32, -64, -200])
def test_a_truncated_file_is_refused(good: Path, tmp_path: Path, kept: int) -> None:
    path = changed(good, tmp_path, good.read_bytes()[:kept])
    with pytest.raises(
        ArtifactError,
        match=r"changed\.so: (not a shared library|no heteroplace foot|.* bytes, its footer says)",
    ):
        hp.load(path)


@pytest.mark.parametrize("where", [0.2, 0.5, 0.8, 0.95, 0.999])
def test_one_flipped_bit_is_seen(good: Path, tmp_path: Path, where: float) -> None:
    data = bytearray(good.read_bytes())
    data[int(len(data) * where)] ^= 4
    with pytest.raises(ArtifactError, match=r"changed\.so: "):
        hp.load(changed(good, tmp_path, bytes(data)))


def test_every_bit_of_the_footer_counts(good: Path, tmp_path: Path) -> None:
    data = good.read_bytes()
    for offset in range(1, TAIL.size + 1):
        broken = bytearray(data)
        broken[-offset] ^= 1
        with pytest.raises(ArtifactError):
            read_manifest(changed(good, tmp_path, bytes(broken)))


def test_appended_bytes_are_seen(good: Path, tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="no heteroplace footer"):
        hp.load(changed(good, tmp_path, good.read_bytes() + b"more"))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not a shared library"),
        (b"int main() { return 0; }\n" * 20, "not a shared library"),
        (b"\x7fELF" + b"\0" * 200, "no heteroplace footer"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "other.so"
    path.write_bytes(content)
    with pytest.raises(ArtifactError, match=rf"other\.so: {message}"):
        hp.load(path)


def test_the_library_of_another_program_is_refused(executable: Executable, tmp_path: Path) -> None:
    path = tmp_path / "kernels.so"
    path.write_bytes(executable.library.image)
    with pytest.raises(ArtifactError, match="library of another program"):
        hp.load(path)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match=r"none\.so: cannot be read: No such file"):
        hp.load(tmp_path / "none.so")


def test_a_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="cannot be read: Is a directory"):
        hp.load(tmp_path)


def test_another_format_is_refused_with_both_numbers(good: Path, tmp_path: Path) -> None:
    data = read_parts(good).to_bytes(version=FORMAT + 1)
    with pytest.raises(ArtifactError, match=f"format {FORMAT + 1}, .* reads {FORMAT}; compile"):
        hp.load(changed(good, tmp_path, data))


@pytest.mark.parametrize("version", range(1, FORMAT))
def test_an_older_file_says_how_to_mend_it(good: Path, tmp_path: Path, version: int) -> None:
    """The last 64 bytes of all formats begin with the same magic and their version."""
    body = read_parts(good).code + b"{}"
    footer = struct.pack("<12sIQQ32s", b"HETEROPLACE\0", version, 2, len(body) - 2, bytes(32))
    with pytest.raises(
        ArtifactError, match=rf"format {version}, .* reads {FORMAT}; compile the model again with"
    ):
        hp.load(changed(good, tmp_path, body + footer))


def test_another_manifest_format_is_refused(good: Path, tmp_path: Path) -> None:
    data = read_parts(good).with_manifest(format=7).to_bytes()
    with pytest.raises(ArtifactError, match="format 7"):
        hp.load(changed(good, tmp_path, data))


def test_another_tvm_is_refused_with_both_versions(tmp_path: Path) -> None:
    file, _ = sorting(tmp_path)
    data = read_parts(file).with_manifest(tvm="0.18.0").to_bytes()
    with pytest.raises(ArtifactError, match=rf"by TVM 0\.18\.0, this is TVM {tvm.__version__}"):
        hp.load(changed(file, tmp_path, data))


def test_kernels_that_call_nothing_of_tvm_run_whichever_it_was(good: Path, tmp_path: Path) -> None:
    data = read_parts(good).with_manifest(tvm="0.18.0").to_bytes()
    inputs = random_inputs(two_branches())
    expected = hp.load(good).run(inputs)
    for found, output in zip(
        hp.load(changed(good, tmp_path, data)).run(inputs), expected, strict=True
    ):
        assert found.tobytes() == output.tobytes()


def test_a_solution_is_read_when_it_is_asked_for(good: Path, tmp_path: Path) -> None:
    data = read_parts(good).with_manifest(placement="{}").to_bytes()
    executor = hp.load(changed(good, tmp_path, data))
    executor.run(random_inputs(two_branches()))
    with pytest.raises(hp.HeteroPlaceError, match=r"changed\.so"):
        _ = executor.solution


@pytest.mark.parametrize("field", ["devices", "steps"])
def test_a_file_without_a_copy_of_what_its_solution_says_is_the_same(
    good: Path, tmp_path: Path, field: str
) -> None:
    whole = read_manifest(good).placement
    data = read_parts(good).with_manifest(without=field).to_bytes()
    older = read_manifest(changed(good, tmp_path, data)).placement
    assert (older.devices, older.num_steps) == (whole.devices, whole.num_steps)
    assert {device.name for device in whole.devices} == set(whole.solution.devices_used)
    assert whole.num_steps == len(whole.solution.plan.steps)


@pytest.mark.parametrize("field", ["format", "tvm", "placement", "inputs", "outputs", "memory"])
def test_a_missing_field_is_a_typed_error(good: Path, tmp_path: Path, field: str) -> None:
    data = read_parts(good).with_manifest(without=field).to_bytes()
    with pytest.raises(ArtifactError, match="the manifest is damaged"):
        hp.load(changed(good, tmp_path, data))


@pytest.mark.parametrize("name", [7, None, "\ud800", "other", "out\0"])
def test_an_output_that_the_program_has_not_is_refused(
    good: Path, tmp_path: Path, name: object
) -> None:
    parts = read_parts(good)
    _, shape, dtype = json.loads(parts.manifest)["outputs"][0]
    data = parts.with_manifest(outputs=[[name, shape, dtype]]).to_bytes()
    with pytest.raises(ArtifactError, match=r"the manifest is damaged|of another program"):
        hp.load(changed(good, tmp_path, data))


def test_a_manifest_with_fewer_steps_than_the_program_is_refused(
    good: Path, tmp_path: Path
) -> None:
    parts = read_parts(good)
    lines = parts.program.decode().splitlines()
    at = next(index for index, line in enumerate(lines) if line.startswith("call "))
    words = lines[at].split(" ")
    lines[at] = " ".join([*words[:2], "1000", *words[3:]])
    program = ("\n".join(lines) + "\n").encode()
    data = replace(parts, program=program).sealed().to_bytes()
    with pytest.raises(ArtifactError, match="its manifest is of another program"):
        hp.load(changed(good, tmp_path, data))


def test_a_program_that_is_no_text_is_refused(good: Path, tmp_path: Path) -> None:
    parts = read_parts(good)
    program = parts.program.replace(b'output "', b'output "\xff')
    data = replace(parts, program=program).sealed().to_bytes()
    with pytest.raises(ArtifactError, match="a program that is no text"):
        hp.load(changed(good, tmp_path, data))


@pytest.mark.parametrize("part", ["code", "program", "weights"])
def test_parts_of_two_files_are_not_taken_together(good: Path, tmp_path: Path, part: str) -> None:
    parts = read_parts(good)
    content = getattr(parts, part) + b"\n"
    data = replace(parts, **{part: content}).to_bytes()
    with pytest.raises(ArtifactError, match=f"its {part} is not the one that it was written with"):
        hp.load(changed(good, tmp_path, data))


def test_nothing_is_mapped_before_the_check(good: Path, tmp_path: Path) -> None:
    data = bytearray(good.read_bytes())
    data[len(data) // 2] ^= 1
    path = changed(good, tmp_path, bytes(data))
    with pytest.raises(ArtifactError):
        hp.load(path)
    assert str(path) not in Path("/proc/self/maps").read_text()


@pytest.mark.parametrize("fault", ["not all written", "not renamed"])
def test_a_failed_export_leaves_the_older_file_and_no_folder(
    executable: Executable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    path = tmp_path / "model.so"
    path.write_bytes(b"older")

    def fail(*_: object, **_options: object) -> None:
        raise OSError(28, "No space left on device")

    name = "needs_text" if fault == "not all written" else "put_in_place"
    monkeypatch.setattr(artifact, name, fail)
    with pytest.raises(ArtifactError, match=r"cannot write the compiled file: .*No space left"):
        executable.export_library(path)
    assert path.read_bytes() == b"older"
    assert [path.name for path in tmp_path.iterdir()] == ["model.so"]


def test_a_linker_that_fails_or_is_not_there_is_told_in_full(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(library.cc, "get_cc", lambda: None)
    with pytest.raises(ArtifactError, match=r"no C\+\+ compiler found.* install"):
        library.KernelLibrary.empty()
    linker = tmp_path / "linker"
    linker.write_text("#!/bin/sh\nprintf 'the first line\\nno room \\377\\nlast' >&2\nexit 3\n")
    linker.chmod(0o755)
    monkeypatch.setattr(library.cc, "get_cc", lambda: str(linker))
    with pytest.raises(
        ArtifactError, match=r"(?s)failed with 3: the first line\nno room \\xff\nlast"
    ):
        library.KernelLibrary.empty()


def test_without_a_temporary_folder_a_file_is_loaded_and_a_compilation_is_refused(
    good: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(library.tempfile, "tempdir", "/nonexistent")
    hp.load(good).run(**random_inputs(two_branches()))
    with pytest.raises(ArtifactError, match=r"no folder for temporary files can be made.*TMPDIR"):
        library.KernelLibrary.empty()


def test_an_export_into_a_missing_folder_is_refused(executable: Executable, tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="does not exist; make it first"):
        executable.export_library(tmp_path / "none" / "model.so")


def test_an_export_onto_a_folder_is_refused(executable: Executable, tmp_path: Path) -> None:
    (tmp_path / "taken.so").mkdir()
    with pytest.raises(ArtifactError, match="cannot write the compiled file"):
        executable.export_library(tmp_path / "taken.so")
    assert [path.name for path in tmp_path.iterdir()] == ["taken.so"]


@pytest.mark.parametrize("name", ["two words.so", 'a "quoted" {name}.so', "größe.so", "plain"])
def test_any_file_name_will_do(executable: Executable, tmp_path: Path, name: str) -> None:
    folder = tmp_path / name.removesuffix(".so")
    folder.mkdir()
    executable.export_library(folder / name)
    inputs = random_inputs(two_branches())
    (actual,) = hp.load(folder / name).run(**inputs)
    np.testing.assert_array_equal(actual, hp.Executor(executable).run(**inputs)[0])


def test_a_replaced_file_is_loaded_anew(tmp_path: Path) -> None:
    path = tmp_path / "model.so"
    x = var("x", (4,))
    ones = np.ones(4, "float32")
    loaded = []
    for op in (relay.negative, relay.exp):
        with tvm.transform.PassContext(opt_level=3):
            build(placed(module([x], op(x)), cpu_cluster(), 0)).export_library(path)
        loaded.append(hp.load(path))
    outputs = [executor.run(x=ones)[0] for executor in loaded]
    np.testing.assert_allclose(outputs, [-ones, np.e * ones], rtol=1e-5)


def test_a_link_to_a_file_and_a_relative_path_will_do(
    good: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "link.so").symlink_to(good)
    monkeypatch.chdir(tmp_path)
    assert hp.load("link.so").inputs == (("x", (1, 8, 8, 8), "float32"),)


def test_the_manifest_survives_json(executable: Executable) -> None:
    manifest = executable.manifest
    assert Manifest.from_json(manifest.to_json(), manifest.program_text, "here") == manifest


def test_weights_start_at_aligned_offsets(executable: Executable) -> None:
    assert executable.blob.ctypes.data % 4096 == 0
    program = executable.lowered.program
    for constant in program.constants:
        assert constant.blob_offset % ALIGNMENT_BYTES == 0
        assert constant.blob_offset + constant.bytes <= executable.blob.size
