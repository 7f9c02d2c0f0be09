"""terminal: nothing out of a file reaches a terminal as a control character."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heteroplace.cli.main import main
from heteroplace.errors import GraphError, MissingTVMError
from heteroplace.progress import ProgressDisplay
from heteroplace.report.tables import format_table
from heteroplace.terminal import PrintableStream, drawable, printable, printable_streams

BAD = "a\x1b[2J\r\u202eb\u009b31mc\u2066\ud800\x07"
SHOWN = r"a\x1b[2J\r\u202eb\x9b31mc\u2066\ud800\x07"


def test_all_that_moves_a_cursor_or_turns_text_round_is_escaped() -> None:
    assert printable(BAD) == SHOWN
    assert printable("two\nlines\tand é漢😀") == "two\nlines\tand é漢😀"
    assert printable("a\nname", allowed="") == r"a\nname"


@given(st.text())
def test_printable_text_stays_as_it_is(text: str) -> None:
    shown = printable(text, allowed="")
    assert shown.isprintable()
    assert printable(shown, allowed="") == shown
    assert not text.isprintable() or shown == text


def test_errors_are_printable() -> None:
    assert str(GraphError(f"task '{BAD}'")) == f"task '{SHOWN}'"
    assert str(MissingTVMError(BAD, name="tvm")) == SHOWN


def test_cells_of_tables_are_one_line_each() -> None:
    table = format_table(["name", "reason"], [[f"{BAD}\n", "x\ny"]])
    assert table.splitlines()[1] == rf"{SHOWN}\n  x\ny"


def test_a_stream_takes_what_its_encoding_lacks() -> None:
    raw = io.BytesIO()
    stream = PrintableStream(io.TextIOWrapper(raw, "ascii", write_through=True))
    print("5 µs", BAD, file=stream)
    stream.writelines(["é"])
    assert raw.getvalue().decode() == rf"5 \xb5s {SHOWN}" + "\n" + r"\xe9"
    assert stream.encoding == "ascii"


def test_progress_lines_are_printable_and_may_draw() -> None:
    below = io.StringIO()
    stream = PrintableStream(below)
    display = ProgressDisplay(stream, is_verbose=True)  # type: ignore[arg-type]
    display.detail(f"{BAD}\n")
    assert below.getvalue() == rf"{SHOWN}\n" + "\n"
    assert drawable(stream) is below  # type: ignore[arg-type]
    assert drawable(below) is below


def test_streams_are_put_back() -> None:
    before = sys.stdout, sys.stderr
    with pytest.raises(KeyError), printable_streams():
        raise KeyError
    assert (sys.stdout, sys.stderr) == before


NAMES = ["\x1b[31mred", "up\r", "line\nbreak", "\u202egnp"]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("what", ["task", "device", "file", "fault", "wrong option"])
def test_no_command_prints_it_raw(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, what: str
) -> None:
    task = name if what == "task" else "t"
    device = name if what == "device" else "cpu"
    cluster = {
        "schema_version": 1,
        "name": "c",
        "devices": [{"name": device, "target": "llvm", "device": "cpu:0", "memory": "1 GiB"}],
    }
    graph = {
        "schema_version": 1,
        "name": name,
        "tasks": [{"name": task, "op": name, "times_ns": {device: 5}}],
        "tensors": [{"producer": task, "bytes": 4}],
        "outputs": [f"{task}.0" if what != "fault" else name],
    }
    path = tmp_path / (f"{name}.json" if what == "file" else "graph.json")
    path.write_text(json.dumps(graph))
    (tmp_path / "cluster.json").write_text(json.dumps(cluster))
    cluster_path = str(tmp_path / "cluster.json")
    commands = [["check", str(path)], ["show", str(path)]]
    commands.append(["place", "--graph", str(path), "--cluster", cluster_path, "--solver", "heft"])
    if what == "wrong option":
        commands = [["show", str(path), "--task", name], ["check", f"{path}{name}"]]
    for command in commands:
        main(command)
        found = capsys.readouterr()
        said = found.out + found.err
        assert said
        assert all(char.isprintable() or char == "\n" for char in said), repr(said)
