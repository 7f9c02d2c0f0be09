"""Signed files: who gives trusted keys loads nothing that none of them has signed."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tvm
from relay_models import cpu_cluster, module, var
from relay_models import placed_randomly as placed
from tvm import relay

import heteroplace as hp
from heteroplace.cli.main import main
from heteroplace.errors import ArtifactError, ExecutionError
from heteroplace.hetero_place import build
from heteroplace.lower.executable import Executable
from heteroplace.native.compiled_file import CompiledFile
from tests.compiled_files import Parts, read_parts
from tests.signing_keys import KEYS, SIGNATURE_BYTES, signature_of, with_signature, write_keys

ONES = np.ones(4, "float32")
GUIDE = Path(__file__).resolve().parents[2] / "docs" / "guide" / "running.md"


@pytest.fixture(scope="module")
def made() -> Executable:
    x = var("x", (4,))
    with tvm.transform.PassContext(opt_level=3):
        body = relay.exp(relay.add(x, relay.const(ONES)))
        return build(placed(module([x], body), cpu_cluster(), 0))


@pytest.fixture(scope="module")
def folder(made: Executable, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Keys, a file without a signature and one that the first key signed."""
    found = write_keys(tmp_path_factory.mktemp("signed"))
    made.export_library(found / "plain.so")
    made.export_library(found / "signed.so", with_source=True, sign_with=found / "first.pem")
    return found


def test_a_signed_file_is_loaded_by_who_trusts_the_key_and_by_who_does_not_ask(
    folder: Path,
) -> None:
    both = [folder / "second.pub.pem", folder / "first.pub.pem"]
    for keys in (None, both[1:], both):
        executor = hp.load(folder / "signed.so", trusted_keys=keys)
        np.testing.assert_allclose(executor.run(x=ONES)[0], np.exp(2 * ONES), rtol=1e-6)


@pytest.mark.parametrize(
    ("name", "keys", "message"),
    [
        ("plain.so", ["first.pub.pem"], r"is not signed, and only files .*first\.pub\.pem\); sign"),
        ("plain.so", [], r"is not signed, .* \(none is given\)"),
        ("signed.so", [], f"is signed by key {KEYS['first'][1]}, which is none of the trusted"),
        ("signed.so", ["second.pub.pem"], f"key {KEYS['first'][1]}, which is none of .*second.pub"),
    ],
)
def test_a_file_that_nobody_trusted_has_signed_is_refused(
    folder: Path, name: str, keys: list[str], message: str
) -> None:
    with pytest.raises(ArtifactError, match=message):
        hp.load(folder / name, trusted_keys=[folder / key for key in keys])


@pytest.mark.parametrize("part", ["code", "weights", "needs", "program", "manifest", "source"])
def test_a_signature_stands_for_every_part(folder: Path, tmp_path: Path, part: str) -> None:
    path = tmp_path / "model.so"
    signature = signature_of((folder / "signed.so").read_bytes())
    parts = read_parts(folder / "signed.so")
    path.write_bytes(with_signature(parts, signature))
    hp.load(path, trusted_keys=[folder / "first.pub.pem"])
    content = bytearray(getattr(parts, part))
    content[-1] ^= 1
    changed: Parts = replace(parts, **{part: bytes(content)})
    path.write_bytes(with_signature(changed, signature))
    with pytest.raises(ArtifactError, match=r"its signature by key .* is not of this content"):
        hp.load(path, trusted_keys=[folder / "first.pub.pem"])


def test_the_signature_of_a_foreign_key_under_the_name_of_a_trusted_one_is_refused(
    folder: Path, made: Executable, tmp_path: Path
) -> None:
    path = tmp_path / "model.so"
    made.export_library(path, sign_with=folder / "second.pem")
    foreign = signature_of(path.read_bytes())
    named = bytes.fromhex(KEYS["first"][1]) + foreign[32:]
    path.write_bytes(with_signature(read_parts(path), named))
    with pytest.raises(ArtifactError, match="is not of this content"):
        hp.load(path, trusted_keys=[folder / "first.pub.pem"])


def test_the_command_run_takes_what_a_trusted_key_has_signed(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    key = ["--trusted-key", str(folder / "first.pub.pem"), "--runs", "1"]
    assert main(["run", str(folder / "signed.so"), *key]) == 0
    assert main(["run", str(folder / "plain.so"), *key]) == 4
    assert "is not signed" in capsys.readouterr().err
    (folder / "model.onnx").write_bytes(b"")
    assert main(["run", str(folder / "model.onnx"), *key]) == 4
    assert "--trusted-key is for compiled files" in capsys.readouterr().err


def test_nothing_of_a_foreign_file_is_read_but_its_end(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "model.so"
    parts = replace(read_parts(folder / "plain.so"), needs=b"no needs", manifest=b"no manifest")
    path.write_bytes(parts.to_bytes())
    with pytest.raises(ArtifactError, match="is not signed"):
        CompiledFile(path, [folder / "first.pub.pem"])


@pytest.mark.parametrize("num_bytes", [1, SIGNATURE_BYTES - 1, SIGNATURE_BYTES + 1, 4096])
def test_a_signature_of_another_size_is_refused(
    folder: Path, tmp_path: Path, num_bytes: int
) -> None:
    path = tmp_path / "model.so"
    path.write_bytes(with_signature(read_parts(folder / "plain.so"), bytes(num_bytes)))
    with pytest.raises(ArtifactError, match=r"its table of parts has \d+ bytes, expected 392, or"):
        hp.load(path)


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("none.pem", "none.pem: cannot be read: No such file"),
        ("first.pem", "first.pem: has no public Ed25519 key .*; make a pair by `openssl genpkey"),
        ("x25519.pub.pem", "x25519.pub.pem: has no public Ed25519 key"),
        ("plain.so", r"plain\.so: (has no public Ed25519|is too large for a) key"),
        ("a\0b", "a.b: the path holds a zero byte"),
    ],
)
def test_a_file_that_holds_no_public_key_is_told(folder: Path, key: str, message: str) -> None:
    with pytest.raises(ArtifactError, match=message):
        hp.load(folder / "signed.so", trusted_keys=[f"{folder}/{key}"])


def test_one_path_is_no_list_of_keys(folder: Path) -> None:
    with pytest.raises(ExecutionError, match="one text; expected paths of public keys"):
        hp.load(folder / "signed.so", trusted_keys=str(folder / "first.pub.pem"))


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("none.pem", "none.pem: cannot be read: No such file"),
        ("first.pub.pem", "first.pub.pem: has no private Ed25519 key .*openssl genpkey"),
        ("plain.so", r"plain\.so: (has no private Ed25519|is too large for a) key"),
    ],
)
def test_an_export_with_a_wrong_key_leaves_the_older_file_and_no_folder(
    folder: Path, made: Executable, tmp_path: Path, key: str, message: str
) -> None:
    path = tmp_path / "model.so"
    path.write_bytes(b"older")
    with pytest.raises(ArtifactError, match=message):
        made.export_library(path, sign_with=folder / key)
    assert path.read_bytes() == b"older"
    assert [file.name for file in tmp_path.iterdir()] == ["model.so"]


@pytest.mark.skipif(shutil.which("openssl") is None, reason="this machine has no openssl command")
def test_keys_are_made_by_the_commands_that_the_guide_says(
    made: Executable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    lines = [line.strip() for line in GUIDE.read_text().splitlines()]
    commands = [line.partition(" #")[0].split() for line in lines if line.startswith("openssl ")]
    assert [command[1] for command in commands] == ["genpkey", "pkey"]
    for command in commands:
        subprocess.run(command, check=True, capture_output=True)
    made.export_library("model.so", sign_with="key.pem")
    hp.load("model.so", trusted_keys=["key.pub.pem"])
    encrypt = "openssl pkey -in key.pem -aes256 -passout pass:secret -out locked.pem"
    subprocess.run(encrypt.split(), check=True, capture_output=True)
    with pytest.raises(ArtifactError, match=r"locked.pem: .*without a password"):
        made.export_library("model.so", sign_with="locked.pem")


def test_show_says_who_has_signed(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    signed, key = str(folder / "signed.so"), str(folder / "first.pub.pem")
    signer = f"signature: by Ed25519 key {KEYS['first'][1]}, right"
    assert main(["show", str(folder / "plain.so")]) == 0
    text = capsys.readouterr().out
    assert "\nsignature: none\n" in text and "without its Relay module" in text
    assert main(["show", signed]) == 0
    text = capsys.readouterr().out
    assert f"{signer} (is it one you trust?" in text and "with its Relay module" in text
    assert main(["show", signed, "--trusted-key", key]) == 0
    assert f"{signer} (trusted)" in capsys.readouterr().out
    assert main(["show", signed, "--trusted-key", str(folder / "second.pub.pem")]) == 4
    assert "none of the trusted keys" in capsys.readouterr().err
    broken = tmp_path / "broken.so"
    broken.write_bytes(with_signature(read_parts(folder / "signed.so"), bytes(SIGNATURE_BYTES)))
    for command in ("show", "check"):
        assert main([command, str(broken)]) == 4
        assert "is not of this content" in capsys.readouterr().err


@pytest.mark.parametrize("last", [0x00, 0x80])
def test_keys_that_sign_every_content_are_refused(folder: Path, tmp_path: Path, last: int) -> None:
    # By the neutral point, with itself and zero as the signature, any content is right.
    point = bytes([1, *[0] * 30, last])
    weak = tmp_path / "weak.so"
    signature = point + bytes([1, *[0] * 31]) + bytes(32)
    weak.write_bytes(with_signature(read_parts(folder / "signed.so"), signature))
    with pytest.raises(ArtifactError, match="is not of this content"):
        CompiledFile(weak).check_signature()


def test_show_says_why_a_signature_is_not_checked(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: CompiledFile) -> None:
        raise ExecutionError("no libcrypto")

    monkeypatch.setattr(CompiledFile, "check_signature", fail)
    assert main(["show", str(folder / "signed.so")]) == 0
    assert f"key {KEYS['first'][1]}, not checked: no libcrypto" in capsys.readouterr().out
