"""What README and guide say can be done: the program runs as it stands, links lead somewhere."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.programs import measured_shortly

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "README.md"
WALK = ROOT / "docs" / "design" / "walk.md"
PACKAGE = ROOT / "python" / "heteroplace"
READMES = sorted([WALK, *ROOT.glob("*.md"), *PACKAGE.rglob("*.md"), *(ROOT / "src").rglob("*.md")])
FOLDER_READMES = [path for path in READMES if path.name == "README.md" and path.parent != ROOT]
_CODE = re.compile(r"(?<![\w*])[\w./-]+\.(?:py|cc|h)(?!\w)")
# What TVM has, and what a reader is to name.
_NOT_OURS = {"device_planner.cc", "NAME.py", "NAME.cc"}
# On the way of every model, whatever else a room holds.
_WALKED = ("relay", "codegen", "machine", "measure", "run", "simulate", "model")
_TOP = ("hetero_place.py", "options.py", "pipeline.py", "place_options.py", "tvm_bridge.py")


@pytest.mark.costly(12)
@pytest.mark.relay
def test_program_of_the_readme_runs(tmp_path: Path) -> None:
    # What the guide has on running goes on where the README's program ends.
    texts = README.read_text() + (ROOT / "docs" / "guide" / "running.md").read_text()
    parts = re.findall(r"```python\n(.*?)```", texts, flags=re.DOTALL)
    assert len(parts) == 4
    program = "\n".join(parts)
    for text, shorter in (("time_limit=5)", "time_limit=1)"), ("_wired()", "_wired(nodes=8)")):
        assert text in program
        program = program.replace(text, shorter)
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
    assert "lower bound" in done.stdout
    assert "ms measured" in done.stdout
    *_, busy, again = done.stdout.splitlines()
    (many,) = [line for line in done.stdout.splitlines() if line.endswith("equal")]
    assert len(many.split()) == 11
    assert ": busy " in busy
    assert (tmp_path / "trace.json").stat().st_size > 0
    assert again == "as planned"
    assert (tmp_path / "model.so").stat().st_size > 0


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


def _walk() -> list[Path]:
    """The files of the table, in its order. A name without a folder is in the last one named."""
    walk = []
    for row in re.findall(r"^\| .*", WALK.read_text(), flags=re.MULTILINE):
        folder = ""
        for name in re.findall(r"`([^`]+)`", row):
            if "/" in name and " " not in name:
                folder, _, name = name.rpartition("/")
            if _CODE.fullmatch(name):
                base = ROOT if folder.startswith("src") else PACKAGE
                walk.append(base / folder / name)
    return walk


def test_walk_of_one_model_names_every_file_on_its_way() -> None:
    walk = _walk()
    assert not [path for path in walk if not path.is_file()]
    assert not sorted({path for path in walk if walk.count(path) > 1})
    files = [path for room in _WALKED for path in (PACKAGE / room).rglob("*.py")]
    on_the_way = {path for path in files if path.name != "__init__.py"}
    on_the_way |= {PACKAGE / name for name in _TOP}
    assert not sorted(on_the_way - set(walk))


@pytest.mark.parametrize("readme", READMES, ids=lambda path: str(path.relative_to(ROOT)))
def test_files_that_are_named_exist(readme: Path) -> None:
    files = [
        path.relative_to(ROOT).as_posix()
        for room in ("python", "src", "tests", "tutorials", "docs", "examples")
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
def test_readme_of_a_folder_has_at_most_40_lines(readme: Path) -> None:
    assert len(readme.read_text().splitlines()) <= 40
