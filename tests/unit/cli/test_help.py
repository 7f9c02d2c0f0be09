"""Help texts: commands by group, the common options first, every option on request; solvers."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

from heteroplace.cli.main import command_names, main, make_parser
from heteroplace.command_parser import COMMAND_GROUPS, leaves, options_of
from heteroplace.solve.solvers import SOLVERS
from tests.programs import run_python


def help_of(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 0
    return capsys.readouterr().out


def test_commands_stand_in_groups_the_first_ones_first(
    capsys: pytest.CaptureFixture[str],
) -> None:
    lines = help_of(capsys, "--help").splitlines()
    groups = [line[:-1] for line in lines if line.endswith(":") and not line.startswith(" ")]
    assert groups == list(COMMAND_GROUPS)
    start, ask = lines.index("Start:"), lines.index("Ask:")
    assert [line.split()[0] for line in lines[start + 1 : start + 3]] == ["run", "compile"]
    assert any(line.startswith("  explain ") for line in lines[ask:])
    listed = [line.split()[0] for line in lines if line.startswith("  ") and line[2] != " "]
    assert sorted(listed) == sorted(command_names())


def test_the_version_and_the_help_load_no_large_package() -> None:
    heavy = "numpy", "scipy", "ortools", "tvm", "onnx", "rich"
    program = f"""
import sys
from heteroplace.cli.main import main
main(["--version"])
print([name for name in ({heavy!r}) if name in sys.modules])
try:
    main(["--help"])
except SystemExit:
    print([name for name in {heavy[1:]!r} if name in sys.modules])
"""
    lines = run_python(program).splitlines()
    assert lines[0].startswith("heteroplace ")
    assert (lines[1], lines[-1]) == ("[]", "[]")


@pytest.mark.parametrize("command", ["run", "compile"])
def test_a_dozen_options_are_shown_first_and_all_on_request(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    short = help_of(capsys, command, "--help")
    whole = help_of(capsys, command, "--help-all")
    assert len(short.splitlines()) < 60 < len(whole.splitlines())
    for flag in ("--cluster", "--solver", "--pin", "--help-all"):
        assert f"  {flag}" in short
    assert "--coarsening" not in short and "more options: heteroplace" in short
    leaf = next(each for each in leaves(make_parser(command)) if each.prog.endswith(command))
    for flag in options_of(leaf):
        assert flag in whole
    assert "{auto,single" not in whole


def test_help_leaves_the_parser_as_it_was(capsys: pytest.CaptureFixture[str]) -> None:
    assert help_of(capsys, "run", "--help") == help_of(capsys, "run", "--help")


def test_solvers_are_listed_with_what_they_do(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["solvers", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["name"] for row in rows] == list(SOLVERS)
    by_name = {row["name"]: row for row in rows}
    assert by_name["auto"]["objectives"] == ["latency", "throughput"]
    assert by_name["cpsat"]["max_tasks"] == SOLVERS["cpsat"].max_tasks > 0
    assert by_name["heft"]["text"].startswith("HEFT over all devices.")
    assert main(["solvers"]) == 0
    assert "\nmoirai " in capsys.readouterr().out


def test_a_command_may_be_quiet_or_verbose(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logger, levels = logging.getLogger("heteroplace"), []
    before = logger.level
    monkeypatch.setattr(logger, "setLevel", levels.append)
    assert main(["clusters", "-q"]) == 0
    assert levels == [logging.ERROR, before]  # the caller goes on as before
    capsys.readouterr()
    missing = str(tmp_path / "missing.json")
    assert main(["check", missing, "-v"]) == 4
    assert "Traceback" in capsys.readouterr().err
    assert main(["-v", "check", missing]) == 4
    assert "Traceback" in capsys.readouterr().err
    assert main(["check", missing]) == 4
    assert "Traceback" not in capsys.readouterr().err
