"""`heteroplace doctor`, `completion`, and what is said about words that are not known."""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import heteroplace
from docs.pages.commands import commands
from heteroplace.cli import doctor
from heteroplace.cli.main import (
    INFEASIBLE,
    INTERRUPTED,
    MISSING_PACKAGE,
    NO_PLAN,
    WRONG_INPUT,
    command_names,
    main,
    make_parser,
)
from heteroplace.command_parser import options_of
from heteroplace.errors import MissingTVMError

HAS_SHTAB = importlib.util.find_spec("shtab") is not None


def findings(capsys: pytest.CaptureFixture[str]) -> tuple[int, dict[str, dict[str, str]]]:
    code = main(["doctor", "--json"])
    return code, {each["name"]: each for each in json.loads(capsys.readouterr().out)}


def test_each_thing_is_there_or_can_be_got(capsys: pytest.CaptureFixture[str]) -> None:
    code, found = findings(capsys)
    lacking = [name for name, each in found.items() if each["state"] == doctor.LACKS]
    assert code == (MISSING_PACKAGE if lacking else 0)
    assert found["heteroplace"]["found"].startswith(f"{heteroplace.__version__}, with Python 3.")
    assert {"cores", "memory", "TVM", "C++ compiler", "onnx", "GPU driver", "mpi4py"} <= set(found)
    for each in found.values():
        assert each["found"]
        assert each["state"] in (doctor.OK, doctor.LACKS, doctor.NONE, doctor.BROKEN)
        # A driver is not for heteroplace to install.
        assert each["state"] == doctor.OK or each["remedy"] or each["name"] == "GPU driver"


def test_without_tvm_or_compiler_it_is_code_5(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def no_tvm() -> None:
        raise MissingTVMError("no TVM here: run this")

    monkeypatch.setattr(doctor, "require_tvm", no_tvm)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert main(["doctor"]) == MISSING_PACKAGE
    told = capsys.readouterr()
    assert "to get TVM: no TVM here: run this" in told.out
    assert "to get C++ compiler: apt-get install g++" in told.out
    assert "cannot be compiled and run here without TVM, C++ compiler" in told.err


def test_a_module_of_a_distribution_with_another_name_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As onnxruntime-gpu brings onnxruntime; and a module that nothing brought.
    about = tmp_path / "zebra_gpu-1.2.dist-info"
    for folder in (about, tmp_path / "zebra", tmp_path / "okapi"):
        folder.mkdir()
    for module in ("zebra", "okapi"):
        (tmp_path / module / "__init__.py").touch()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: zebra-gpu\nVersion: 1.2\n")
    (about / "top_level.txt").write_text("zebra\n")
    monkeypatch.syspath_prepend(tmp_path)
    found = [doctor._package(name, name, "", doctor.NONE).found for name in ("zebra", "okapi")]
    assert found == ["zebra-gpu 1.2", "no distribution"]


def test_it_says_how_much_the_cache_of_models_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HETEROPLACE_MODELS", str(tmp_path))
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "model.so").write_bytes(bytes(1024))
    _, found = findings(capsys)
    assert found["compiled models"]["found"] == f"{tmp_path}: 2.0 KiB"


def test_help_says_what_exit_codes_mean(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    told = " ".join(capsys.readouterr().out.split())
    for code in (2, INFEASIBLE, WRONG_INPUT, MISSING_PACKAGE, NO_PLAN, INTERRUPTED):
        assert f", {code} " in told


def test_a_folder_that_cannot_be_written_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HETEROPLACE_MODELS", str(tmp_path / "models"))
    monkeypatch.setattr("os.access", lambda path, mode: False)
    _, found = findings(capsys)
    assert found["compiled models"]["state"] == "none"
    assert found["compiled models"]["remedy"] == "set XDG_CACHE_HOME to a folder of yours"


def test_a_user_without_a_home_has_no_cache(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("HOME", "XDG_CACHE_HOME", "HETEROPLACE_COSTS", "HETEROPLACE_MODELS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("os.getuid", lambda: 2**31 - 7)  # of no entry in /etc/passwd
    _, found = findings(capsys)
    for name in ("cost store", "compiled models"):
        assert found[name]["found"] == "nothing is kept: the user has no home"
        assert found[name]["state"] == "none"


@pytest.mark.skipif(not HAS_SHTAB, reason="shtab is not installed")
def test_the_completion_script_is_one_that_bash_reads(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "bash"]) == 0
    script = capsys.readouterr().out
    assert "--add-device" in script
    done = subprocess.run(["bash", "-n"], input=script, text=True, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr


def test_without_shtab_it_is_said_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "shtab", None)
    assert main(["completion", "bash"]) == MISSING_PACKAGE
    assert "pip install shtab" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["plase"], 'did you mean "place"?'),
        (["place", "--clutser", "local"], 'unrecognized arguments: --clutser; did you mean "--clu'),
        (["place", "--cluster", "local", "--solver", "hefft"], 'did you mean "heft"?'),
        (["costs", "exprt"], 'did you mean "export"?'),
        (["simulate", "p", "--drop-devise=gpu0"], 'did you mean "--drop-device"?'),
        (["costs", "forget", "--al"], 'did you mean "--all"?'),
        (["diff", "a.json", "--jsn"], 'did you mean "--json"?'),
    ],
)
def test_what_was_probably_meant_is_said(
    arguments: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    told = capsys.readouterr().err
    assert text in told
    assert len(told.splitlines()) == 1


def test_every_command_is_that_of_its_module() -> None:
    for command in command_names():
        text = make_parser(command).format_help()
        assert f"\n  {command} " in text


def test_every_command_but_a_script_prints_json() -> None:
    flags = {name: options_of(parser) for name, parser in commands()}
    with_others = {name.rpartition(" ")[0] for name in flags}
    without = [name for name in flags if name not in with_others and "--json" not in flags[name]]
    assert without == ["heteroplace completion"]
