"""What README and guide say can be done: the program runs as it stands, links lead somewhere."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import onnx
import pytest

from tests.programs import measured_shortly
from tests.relay.onnx_models import tiny_cnn

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "README.md"
PACKAGE = ROOT / "python" / "heteroplace"
FOLDERS = (PACKAGE, ROOT / "src", ROOT / "benchmarks", ROOT / "zoo")
READMES = sorted([*ROOT.glob("*.md"), *(path for base in FOLDERS for path in base.rglob("*.md"))])
FOLDER_READMES = [path for path in READMES if path.name == "README.md" and path.parent != ROOT]
_CODE = re.compile(r"(?<![\w*])[\w./-]+\.(?:py|cc|h)(?!\w)")
MAX_WORDS = 400
"""Of the README of a folder: more belongs in docs/design."""
MAX_SENTENCE_WORDS = 25
MAX_README_WORDS = 700
# What TVM has, and what a reader is to name.
_NOT_OURS = {"device_planner.cc", "NAME.py", "NAME.cc"}


@pytest.mark.costly(12)
@pytest.mark.relay
def test_program_of_the_readme_runs(tmp_path: Path) -> None:
    # What the guide has on running goes on where the README's program ends.
    texts = README.read_text() + (ROOT / "docs" / "guide" / "running.md").read_text()
    parts = re.findall(r"```python\n(.*?)```", texts, flags=re.DOTALL)
    assert len(parts) == 4
    program = "\n".join(parts)
    assert "time_limit=5)" in program
    program = program.replace("time_limit=5)", "time_limit=1)")
    onnx.save(tiny_cnn(), tmp_path / "model.onnx")
    (tmp_path / "program.py").write_text(measured_shortly(program))
    done = subprocess.run(
        [sys.executable, "-W", "error", "program.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert "<Solution: " in done.stdout
    assert "ms measured" in done.stdout
    *_, busy, again = done.stdout.splitlines()
    (many,) = [line for line in done.stdout.splitlines() if line.endswith("equal")]
    assert len(many.split()) == 11
    assert ": busy " in busy
    assert (tmp_path / "trace.json").stat().st_size > 0
    assert again == "as planned"
    assert (tmp_path / "model.so").stat().st_size > 0


def test_the_readme_is_read_in_three_minutes() -> None:
    words = [word for word in README.read_text().split() if re.search(r"\w", word)]
    assert len(words) <= MAX_README_WORDS


def test_links_of_the_readme_lead_to_files() -> None:
    links = re.findall(r"\]\(([^)#]+)\)", README.read_text())
    assert links
    missing = [link for link in links if not (README.parent / link).exists()]
    assert not missing


def test_table_of_the_rooms_has_every_room() -> None:
    _, rest = (ROOT / "CONTRIBUTING.md").read_text().split("## Where what goes\n")
    rows = re.findall(r"^\| (`[^|]*)\|", rest.split("\n## ")[0], flags=re.MULTILINE)
    named = {name for row in rows for name in re.findall(r"`([^`]+)`", row)}
    rooms = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    assert sorted(rooms - named) == []


@pytest.mark.parametrize("readme", READMES, ids=lambda path: str(path.relative_to(ROOT)))
def test_files_that_are_named_exist(readme: Path) -> None:
    files = [
        path.relative_to(ROOT).as_posix()
        for room in ("python", "benchmarks", "zoo", "src", "tests", "tutorials", "docs", "examples")
        for path in (ROOT / room).rglob("*")
        if path.suffix in (".py", ".cc", ".h")
    ]
    quoted = re.findall(r"`[^`\n]+`|^ {4}.*", readme.read_text(), flags=re.MULTILINE)
    named = {name for text in quoted for name in _CODE.findall(text)}
    found = [f"/{path}" for path in files]
    missing = [
        name
        for name in sorted(named)
        if name.rpartition("/")[2] not in _NOT_OURS
        and not any(path.endswith("/" + name.removeprefix("../").lstrip("./")) for path in found)
    ]
    assert not missing


@pytest.mark.parametrize("readme", FOLDER_READMES, ids=lambda path: str(path.relative_to(ROOT)))
def test_readme_of_a_folder_is_short(readme: Path) -> None:
    assert len(readme.read_text().split()) <= MAX_WORDS


def sentences(text: str) -> Iterator[str]:
    """Yield the sentences of a text in Markdown, without code, tables, headings and addresses."""
    text = re.sub(r"```.*?```|^ {4}.*$", "", text, flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"\]\([^)]*\)", "]", text)
    lines = [line for line in text.split("\n") if not line.startswith(("|", "#"))]
    for paragraph in re.split(r"\n\s*\n|\n(?=[-*] |\d+\. )", "\n".join(lines)):
        yield from re.split(r"(?<=[.!?:;])\**\s+", " ".join(paragraph.split()))


@pytest.mark.parametrize(
    "text",
    [README, *FOLDER_READMES, *sorted((ROOT / "docs" / "guide").glob("*.md"))],
    ids=lambda path: str(path.relative_to(ROOT)),
)
def test_sentences_are_short(text: Path) -> None:
    long = [each for each in sentences(text.read_text()) if len(each.split()) > MAX_SENTENCE_WORDS]
    assert not long


def test_sentences_are_split_at_their_ends() -> None:
    text = "# Title\n\nOne two. Three\nfour: five\n\n- six [seven](a b c)\n\n    code\n| a | b |\n"
    assert [*filter(None, sentences(text))] == ["One two.", "Three four:", "five", "- six [seven]"]
