"""No command writes over a file that it reads, or two outputs over each other."""

from __future__ import annotations

import argparse
import os
import re
from pathlib import Path

import numpy as np
import pytest

from benchmarks.command import make_parser as make_bench_parser
from heteroplace.cli.main import make_parser
from heteroplace.command_parser import leaves
from heteroplace.files.output import open_new
from heteroplace.files.routes_file import RoutesWriter
from heteroplace.model.routed.route_profile import RouterShape
from heteroplace.written_files import WrittenFile, label_of

FILE_WORDS = re.compile(r"FILE|MODEL|PLAN|KEY\.|^[AB]$")


def commands() -> list[argparse.ArgumentParser]:
    found = [*leaves(make_parser()), *leaves(make_bench_parser())]
    return list({id(parser): parser for parser in found}.values())


def takes_file(action: argparse.Action) -> bool:
    return FILE_WORDS.search(str(action.metavar or "")) is not None


def words_of(action: argparse.Action, value: str) -> list[str]:
    return [action.option_strings[-1], value] if action.option_strings else [value]


def command_line(parser: argparse.ArgumentParser, given: dict[str, str]) -> list[str]:
    """The arguments in `given`, by destination, and whatever else the command needs."""
    words: list[str] = []
    for action in parser._actions:
        if action.dest in given:
            words += words_of(action, given[action.dest])
        elif action.required and not isinstance(action, argparse._HelpAction):
            allowed = [str(each) for each in action.choices or ()]
            words += words_of(action, allowed[0] if allowed else f"other-{action.dest}")
    return words


PAIRS = [
    pytest.param(parser, written, read, id=f"{parser.prog}:{written.dest}-{read.dest}")
    for parser in commands()
    for written in parser._actions
    for read in parser._actions
    if isinstance(written, WrittenFile) and takes_file(read) and read is not written
]


def test_all_commands_that_write_are_here() -> None:
    assert len({parser.values[0].prog for parser in PAIRS}) > 10
    assert len(PAIRS) > 60


def test_every_argument_that_writes_a_file_declares_it() -> None:
    undeclared = [
        f"{parser.prog} {label_of(action)}"
        for parser in commands()
        for action in parser._actions
        if takes_file(action) and not isinstance(action, WrittenFile)
        if re.match(r"write|table of|picture|draw", action.help or "") or action.dest == "output"
    ]
    assert undeclared == []


@pytest.mark.parametrize(("parser", "written", "read"), PAIRS)
def test_an_output_that_is_another_file_of_the_command_is_refused(
    parser: argparse.ArgumentParser,
    written: argparse.Action,
    read: argparse.Action,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("same").write_bytes(b"content")
    Path("link").symlink_to("same")
    os.link("same", "hard")
    name = "x=same" if "NAME=" in str(read.metavar) else "same"
    for other in ("same", "./same", "link", "hard"):
        with pytest.raises(SystemExit) as stopped:
            parser.parse_args(command_line(parser, {written.dest: other, read.dest: name}))
        assert stopped.value.code == 2
        said = capsys.readouterr().err
        assert said.startswith("error: ") and "give" in said
        assert "would overwrite" in said or "would both write" in said
        assert label_of(read) in said and label_of(written) in said
    # Neither is a file of its own refused, nor a device.
    for other in ("new", "/dev/null"):
        parser.parse_args(command_line(parser, {written.dest: other, read.dest: name}))
    assert Path("same").read_bytes() == b"content"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["compile", "m.onnx", "--plan-in", "m.so"], "would overwrite m.so, which is read as --pl"),
        (["report", "page.html"], "would overwrite page.html, which is read as FILE"),
        (["costs", "export", "store.sqlite"], "which is read as the store of measured kernels"),
        (["run", "m.onnx", "-o", "m.data"], "which is read as the external data of m.onnx"),
    ],
)
def test_a_file_that_is_not_named_counts_too(
    words: list[str],
    says: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    onnx = pytest.importorskip("onnx")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HETEROPLACE_COSTS", str(tmp_path / "store.sqlite"))
    weights = onnx.numpy_helper.from_array(np.ones(3, "float32"), "w")
    value = onnx.helper.make_tensor_value_info("w", onnx.TensorProto.FLOAT, [3])
    graph = onnx.helper.make_graph([], "g", [], [value], [weights])
    model = onnx.helper.make_model(graph)
    onnx.save(model, "m.onnx", save_as_external_data=True, location="m.data", size_threshold=0)
    for name in ("m.so", "page.html", "store.sqlite"):
        Path(name).write_bytes(b"content")
    with pytest.raises(SystemExit) as stopped:
        make_parser().parse_args(words)
    assert stopped.value.code == 2
    assert says in capsys.readouterr().err


def test_a_value_that_is_longer_than_a_path_is_no_file() -> None:
    words = ["compile", "m.onnx"]
    for index in range(999):
        words += ["--input", f"x{index}=1,2"]
    assert make_parser().parse_args(words).model == "m.onnx"


def test_a_file_that_is_written_bit_by_bit_leaves_the_old_one_to_its_readers(
    tmp_path: Path,
) -> None:
    path = tmp_path / "model.so"
    path.write_bytes(b"mapped")
    path.chmod(0o640)
    with path.open("rb") as reader:
        with open_new(path) as file:
            file.write(b"new")
        assert reader.read() == b"mapped"
    assert path.read_bytes() == b"new" and path.stat().st_mode & 0o777 == 0o640
    with path.open("rb") as reader:
        RoutesWriter(path, "digest", 1, [RouterShape("r", 4, 2)]).close()
        assert reader.read() == b"new"
    assert path.read_bytes().startswith(b"{")
    assert [entry.name for entry in tmp_path.iterdir()] == ["model.so"]
