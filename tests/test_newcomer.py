"""What `python -m docs.type_commands` types, and what it takes as another output."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from docs.newcomer.forms import differences, form
from docs.newcomer.sandbox import Sandbox
from docs.newcomer.texts import readme_commands, tutorial_commands
from docs.pages.commands import commands as parsers
from docs.pages.tutorials import OUTPUTS, tutorials
from docs.type_commands import LEFT_OUT
from heteroplace.command_parser import options_of

ROOT = Path(__file__).resolve().parent.parent
TEXT = """# A name

Say `make docs`, or

    make demo     # sets up
    make test

which ends with

```
largest difference 0
```

    pip install one   # a comment

```python
    print("no command")
```

```
no command
```
"""


def test_commands_of_a_readme_are_typed_in_its_order(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text(TEXT)
    found = readme_commands(tmp_path / "README.md")
    assert [(command.where, command.typed) for command in found] == [
        ("README.md:3", "make docs"),
        ("README.md:5", "make demo"),
        ("README.md:6", "make test"),
        ("README.md:14", "pip install one"),
        ("README.md:16", "python program.py"),
    ]
    shown = {command.typed: command.shown.strip() for command in found}
    assert shown["make demo"] == "largest difference 0"
    assert shown["make test"] == ""
    assert shown["python program.py"] == "no command"
    assert found[-1].program == '    print("no command")\n'


def test_the_readme_leads_from_a_wheel_to_a_report_in_at_most_five_commands() -> None:
    commands = [command.typed for command in readme_commands(ROOT / "README.md")]
    first = next(at for at, typed in enumerate(commands) if typed.startswith("pip install"))
    last = next(at for at, typed in enumerate(commands) if typed.startswith("heteroplace report"))
    assert 0 < last - first < 5
    assert set(LEFT_OUT) <= set(commands)


def test_the_readme_leads_from_a_checkout_to_a_model_of_ones_own() -> None:
    commands = readme_commands(ROOT / "README.md")
    checkout = [command.typed for command in commands if command.is_of_the_checkout]
    own = checkout.index(".venv/bin/heteroplace run model.onnx")
    assert checkout.index("make demo") < own
    assert checkout[own + 1] == f"{checkout[own]} --batch 1"
    assert {"--batch"} <= set(options_of(dict(parsers())["heteroplace run"]))


def test_every_tutorial_is_typed_and_shows_what_was_recorded() -> None:
    found = tutorial_commands()
    assert [command.copied for command in found] == tutorials()
    for command in found:
        told = json.loads((OUTPUTS / command.where / "output.json").read_text())
        assert all(block["printed"] in command.shown for block in told["blocks"])
        assert not differences(command.shown, command.shown)


def test_figures_are_no_difference() -> None:
    shown = "12.4 ms on cpu.0+cpu.1, 3.0 KiB\n'llvm -mcpu=cascadelake'\nFOLDER/a.json: 3 faults"
    printed = "1 s on cpu.all, 1.1 GiB\n'llvm -mcpu=znver5'\n/tmp/x1/a.json: 4 faults"
    assert not differences(shown, printed)
    assert form("+1,024 tasks") == "# tasks"


def test_words_behind_measured_and_predicted_are_no_figures() -> None:
    shown = "measured 2.68 ms, predicted 2.62 ms (-2.0%), lower bound 2.62 ms"
    printed = "measured 3.5 ms, predicted 3 ms (+1.0%); simulated without interference 3 ms"
    assert differences(shown, printed)
    assert not differences(printed, printed.replace("3", "4"))


def test_rows_of_a_table_of_tasks_are_decided_by_figures_but_it_has_to_be_there() -> None:
    table = "task  op    device  start\na     relu  cpu.0   1 ns\n\nend"
    other = "task  op    device  start\nb     add   cpu.1   3 ns\n... 3 more\n\nend"
    assert not differences(table, other)
    assert differences(table, "end") == ["- task op device start"]


@pytest.mark.parametrize(
    ("printed", "fault"),
    [
        ("one 3 ms", "- two # rows"),
        ("one 3 ms\ntwo 1 rows\nFault: none", "+ Fault: none"),
        ("one 3 ms\ntwo 1 columns", "- two # rows"),
        ("one 3 ms\ntwo 1 rows\nexit code 3", "+ exit code three"),
    ],
)
def test_other_words_are_a_difference(printed: str, fault: str) -> None:
    assert fault in differences("one 1 ms\ntwo 2 rows", printed)


def test_a_cut_stands_for_any_lines_where_a_text_has_them() -> None:
    shown = "...\none 1\n...\ntwo 2\n"
    assert not differences(shown, "zero\none 3\nother\ntwo 4\nend", has_cuts=True)
    assert differences(shown, "zero\ntwo 4\none 3", has_cuts=True) == ["- two #"]
    assert differences(shown, "zero\none 3\nother\ntwo 4\nend")


def test_texts_may_show_the_end_and_nothing() -> None:
    assert not differences("end 1", "begin\nend 2")
    assert not differences("", "whatever")


def test_a_sandbox_has_an_empty_home_and_nothing_of_this_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", "here")
    monkeypatch.setenv("PIP_INDEX_URL", "there")
    sandbox = Sandbox(tmp_path / "new", in_chroot=False, bound=[])
    done = sandbox.types("ls -A ~; echo $PYTHONPATH,$PIP_INDEX_URL; exit 3", sandbox.home / "work")
    assert (done.code, done.printed) == (3, "work\n,there\n")
    assert os.environ["PYTHONPATH"] == "here"
    with pytest.raises(SystemExit, match="is not empty"):
        Sandbox(tmp_path / "new", in_chroot=False, bound=[])
