"""Every type of error has a code, a cause and a remedy, and every raise a message."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path

import pytest

from heteroplace.cli.main import command_names, main, make_parser
from heteroplace.errors import HeteroPlaceError, cause_of, error_types

PACKAGE = Path(__file__).resolve().parents[2] / "python" / "heteroplace"
TYPES = {cls.__name__: cls for cls in error_types()}


def raised() -> list[tuple[str, int, ast.Call]]:
    """File, line and call of each error of ours that the package raises or makes."""
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
                name = ast.unparse(node.exc.func)
                if name in TYPES:
                    found.append((str(path.relative_to(PACKAGE)), node.lineno, node.exc))
    return found


def text_of(value: ast.expr) -> str:
    """What is fixed of a message; "{}" for what is filled in."""
    if isinstance(value, ast.Constant):
        return str(value.value)
    if isinstance(value, ast.JoinedStr):
        return "".join(map(text_of, value.values))
    if isinstance(value, ast.BinOp):
        return text_of(value.left) + text_of(value.right)
    return "{}"


def test_codes_are_of_one_form_and_each_of_one_type() -> None:
    codes = [cls.code for cls in TYPES.values()]
    assert all(re.fullmatch(r"HP[0-7]\d\d", code) for code in codes)
    assert len(set(codes)) == len(codes) == len(TYPES)


@pytest.mark.parametrize("cls", TYPES.values(), ids=lambda cls: cls.__name__)
def test_a_type_has_a_cause_and_a_remedy_of_its_own(cls: type[HeteroPlaceError]) -> None:
    assert "code" in vars(cls)
    assert "remedy" in vars(cls)
    assert cause_of(cls).endswith(".")
    assert len(cls.remedy) > 15
    assert not cls.remedy.endswith(".")
    assert cls.remedy not in {other.remedy for other in TYPES.values() if other is not cls}


@pytest.mark.parts
def test_remedies_name_commands_and_options_that_there_are() -> None:
    flags = set()
    for command in command_names():
        parser = make_parser(command)._subparsers
        assert parser is not None
        (commands,) = parser._group_actions
        flags |= set(re.findall(r"--[a-z-]+", commands.choices[command].format_help()))  # type: ignore[index, union-attr]
    for cls in TYPES.values():
        for word in re.findall(r"heteroplace ([a-z-]+)", cls.remedy):
            assert word in command_names(), cls
        assert set(re.findall(r"--[a-z][a-z-]+", cls.remedy)) <= flags | {"--describe"}, cls


def test_every_message_says_something() -> None:
    sites = raised()
    assert len(sites) > 300
    for path, line, call in sites:
        assert call.args, f"{path}:{line}: no message"
        text = text_of(call.args[0])
        # Made of what others say, or a sentence of its own.
        assert "{}" in text or len(text) > 12, f"{path}:{line}: {text}"


def test_doctor_explains_a_code(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "HP501"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("HP501 InfeasibleError: There is no plan")
    assert "remedy: allow another device" in text
    assert main(["doctor", "HP501", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["name"] == "InfeasibleError"
    assert main(["doctor", "HP51"]) == 4
    assert "no error has the code 'HP51'; did you mean" in capsys.readouterr().err


def test_what_is_printed_ends_with_the_code(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", "nothing.json"]) == 4
    assert capsys.readouterr().err.rstrip().endswith("[HP001]")
