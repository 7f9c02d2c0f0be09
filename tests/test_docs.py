"""The site's sources: every public name is in it, links inside lead somewhere, outputs are current.

Building it is `make docs`, where a warning is an error; here is what can be told without.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import json
import re
import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import nbformat
import pytest

import heteroplace
from docs import run_tutorials
from docs.pages import write_pages
from docs.pages.api import INTERNALS, api_modules
from docs.pages.blocks import read_blocks
from docs.pages.commands import commands
from docs.pages.docstrings import to_rst
from docs.pages.errors import error_types
from docs.pages.formats import SCHEMAS, schema_names
from docs.pages.notebooks import notebook
from docs.pages.rooms import NO_SEARCH, rooms
from docs.pages.tutorials import LEVELS, OUTPUTS, card, digest, tutorial_pages, tutorials
from docs.run_tutorials import apart
from heteroplace import errors
from heteroplace.cli.main import main
from heteroplace.command_parser import options_of
from heteroplace.costs.roofline import estimate_costs
from heteroplace.files.cluster_file import load_cluster
from heteroplace.machine.usage import Usage
from heteroplace.model.graph import Task, TaskGraphBuilder
from heteroplace.solve import Problem, SolveOptions, solve_network

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
PACKAGE = Path(heteroplace.__file__).parent
SEARCHED = {
    "pin": "pin",
    "batch": "throughput",
    "gpus": "prediction",
    "serv": "serving",  # as the index stems it
    "docker": "docker",
}
"""Words that users search, and the page of the guide whose title has each."""
_LINK = re.compile(r"\]\(<?([^)>#\s]*)(?:#[^)>]*)?>?\)")


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the texts by hand, with the pages that are made beside them."""
    pytest.importorskip("tvm.relay")
    folder = tmp_path_factory.mktemp("docs")
    for path in DOCS.rglob("*.md"):
        if "generated" not in path.parts:
            copy = folder / path.relative_to(DOCS)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_text(path.read_text())
    write_pages(folder / "generated")
    return folder


def file_of(module: str) -> Path:
    path = PACKAGE.parent.joinpath(*module.split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


@pytest.mark.relay
def test_every_public_name_is_in_the_api_pages() -> None:
    pytest.importorskip("tvm.relay")
    told = {module for modules in api_modules().values() for module in modules}
    named = {f"heteroplace.{name}": getattr(heteroplace, name) for name in heteroplace.__all__}
    for name in heteroplace.routing.__all__:
        named[f"heteroplace.routing.{name}"] = getattr(heteroplace.routing, name)
    missing = {
        name
        for name, value in named.items()
        if not inspect.ismodule(value) and value.__module__ not in told
    }
    assert not missing


@pytest.mark.costly
@pytest.mark.relay
def test_the_search_finds_public_names_alone(pages: Path) -> None:
    text = (pages / "generated" / "api.md").read_text()
    shown = re.findall(r"auto(?:class|function):: heteroplace\.([\w.]+)", text)
    assert len(shown) == len(set(shown))
    expected = {*heteroplace.__all__} - {"HeteroPlaceError", "frontend", "routing"}
    assert {name for name in shown if "." not in name} == expected
    inner = {name for name in shown if name.startswith("routing.")}
    assert inner == {f"routing.{name}" for name in heteroplace.routing.__all__}
    for folder in (INTERNALS, "rooms"):
        for path in (pages / "generated" / folder).glob("*.md"):
            assert path.read_text().startswith(NO_SEARCH), path.name


@pytest.mark.slow
@pytest.mark.relay
def test_the_search_of_the_site_finds_the_main_words(tmp_path: Path) -> None:
    pytest.importorskip("furo")
    command = [sys.executable, "-m", "sphinx", "--quiet", "--fail-on-warning", "-b", "html"]
    subprocess.run([*command, str(DOCS), str(tmp_path)], check=True, cwd=ROOT)
    text = (tmp_path / "searchindex.js").read_text()
    index = json.loads(text.removeprefix("Search.setIndex(").rstrip(";\n)"))
    for word, page in SEARCHED.items():
        numbers = index["titleterms"][word]
        numbers = numbers if isinstance(numbers, list) else [numbers]
        assert f"guide/{page}" in {index["docnames"][number] for number in numbers}, word
    modules = {*index["objects"]} - {"", "heteroplace"}
    assert all(hasattr(heteroplace, name.split(".")[1]) for name in modules)


@pytest.mark.parametrize("folder", sorted(api_modules()))
def test_what_a_told_module_defines_has_a_docstring(folder: str) -> None:
    # What has none is left out of the page in silence.
    faults = []
    for module in api_modules()[folder]:
        for node in ast.parse(file_of(module).read_text()).body:
            is_told = isinstance(node, ast.FunctionDef | ast.ClassDef)
            if is_told and not node.name.startswith("_") and not ast.get_docstring(node):
                faults.append(f"{module}.{node.name}")
    assert not faults


def test_modules_that_the_texts_import_are_told() -> None:
    texts = [*tutorials(), *sorted((ROOT / "examples").glob("*.py")), *DOCS.rglob("guide/*.md")]
    told = {module for modules in api_modules().values() for module in modules}
    imported = {
        name
        for path in texts
        for name in re.findall(r"^from (heteroplace(?:\.\w+)+) import", path.read_text(), re.M)
    }
    packages = {module.rpartition(".")[0] for module in told}
    unknown = {name for name in imported - told - packages if not name.startswith("benchmarks")}
    assert not unknown


@pytest.mark.costly
@pytest.mark.relay
def test_links_between_pages_lead_somewhere(pages: Path) -> None:
    faults = []
    for path in pages.rglob("*.md"):
        for target in _LINK.findall(path.read_text()):
            if target and not target.startswith("http") and not (path.parent / target).exists():
                faults.append(f"{path.relative_to(pages)}: {target}")
    assert not faults


@pytest.mark.costly
@pytest.mark.relay
def test_names_of_code_in_the_texts_exist(pages: Path) -> None:
    faults = []
    for path in pages.rglob("*.md"):
        for kind, name in re.findall(r"\{py:(\w+)\}`(?:[^`<]*<)?([\w.]+)>?`", path.read_text()):
            module, _, last = name.rpartition(".")
            if kind == "mod":
                found = file_of(name).exists()
            else:
                found = hasattr(importlib.import_module(module), last)
            if not found:
                faults.append(f"{path.name}: {name}")
    assert not faults


@pytest.mark.costly
@pytest.mark.relay
def test_every_page_is_in_a_table_of_contents(pages: Path) -> None:
    listed = set()
    for path in [*pages.rglob("*.md"), *pages.rglob("*.rst")]:
        text = path.read_text()
        blocks = re.findall(r"```\{toctree\}\n(.*?)```", text, re.S)
        blocks += re.findall(r"\.\. toctree::\n(.*)", text, re.S)
        for block in blocks:
            for name in re.findall(r"^ *([\w./-]+)$", block, re.M):
                listed.add((path.parent / name).resolve())
    every = {path.with_suffix("") for path in [*pages.rglob("*.md"), *pages.rglob("*.rst")]}
    names = {Path(str(path)) for path in listed}
    assert not {path for path in every - names if path.name != "README"} - {pages / "index"}


@pytest.mark.costly
@pytest.mark.relay
def test_pages_tell_every_error_and_every_schema(pages: Path) -> None:
    text = (pages / "generated" / "errors.md").read_text()
    raised = [errors.HeteroPlaceError]
    for error in raised:
        raised += [below for below in error.__subclasses__() if below.__module__ == errors.__name__]
    assert {*error_types()} == {*raised}
    assert all(f"## {error.__name__}\n\n`{error.code}`: " in text for error in raised)
    assert {f"{name}.schema.json" for name in schema_names()} == {
        path.name for path in SCHEMAS.glob("*.json")
    }


@pytest.mark.costly
@pytest.mark.relay
def test_page_of_options_tells_every_option(pages: Path) -> None:
    from heteroplace.options import options_of
    from heteroplace.place_options import OPTION_CLASSES

    text = (pages / "generated" / "options.md").read_text()
    names = {entry.name for cls in OPTION_CLASSES for entry in options_of(cls)}
    assert all(f"| `{name}` |" in text for name in names)


def typed_commands() -> list[str]:
    """The commands of the README and the guide: lines of shell and what stands in backticks."""
    found = []
    for path in [ROOT / "README.md", *sorted((DOCS / "guide").glob("*.md"))]:
        text = path.read_text()
        for block in re.findall(r"```sh\n(.*?)```", text, re.S):
            found += [line.partition(" #")[0] for line in block.splitlines()]
        plain = re.sub(r"```.*?```", "", text, flags=re.S)
        found += [" ".join(one.split()) for one in re.findall(r"`([^`]+)`", plain)]
    typed = (command.partition("mpiexec -n 2 ")[2] or command for command in found)
    return [command for command in dict.fromkeys(typed) if command.startswith("heteroplace ")]


def test_commands_in_the_texts_have_the_options_that_they_are_typed_with() -> None:
    known = {name: options_of(parser) for name, parser in commands()}
    typed = typed_commands()
    assert len(typed) > 40
    faults = []
    for command in typed:
        words = shlex.split(command)
        name = max((one for one in known if f"{command} ".startswith(f"{one} ")), key=len)
        options = [word.partition("=")[0] for word in words if re.match(r"--?[a-z]", word)]
        if name == "heteroplace" and len(words) > 1 and words[1] not in ("--help", "-h", "..."):
            faults.append(command)
        faults += [f"{command}: {option}" for option in options if option not in known[name]]
    assert not faults


def test_options_of_a_placement_have_one_name_but_the_one_that_the_readme_tells() -> None:
    from heteroplace.options import options_of as options_of_class
    from heteroplace.place_options import OPTION_CLASSES

    known = {name: options_of(parser) for name, parser in commands()}
    flags = [f"--{entry.flag}" for cls in OPTION_CLASSES for entry in options_of_class(cls)]
    for command in ("heteroplace run", "heteroplace compile"):
        assert [flag for flag in flags if flag not in known[command]] == ["--inputs"]
    missing = [flag for flag in flags if flag not in known["heteroplace place"]]
    assert missing == ["--inputs", "--verify"]
    page = " ".join((DOCS / "guide" / "placing.md").read_text().split())
    assert "The arrays of `inputs` are given one by one, `--input x=x.npy`" in page
    assert "`place` has no `verify`" in page
    for command in ("place", "run", "compile", "simulate"):
        assert {"--time-limit", "--budget"} <= set(known[f"heteroplace {command}"])


def test_questions_about_a_plan_have_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    builder = TaskGraphBuilder("two")
    for name in ("NAME", "encoder.0.conv"):
        builder.add_task(Task(name, "nn.conv2d", flops=10**9), [])
        builder.add_tensor(name, num_bytes=1000, name=name)
    graph = builder.finalize(["NAME", "encoder.0.conv"])
    cluster = load_cluster("cpu-one-gpu")
    cpu, *gpus = cluster.devices
    cluster = replace(cluster, devices=(replace(cpu, name="cpu.0"), *gpus))
    problem = Problem(graph, cluster, estimate_costs(graph, cluster))
    solution = solve_network(problem, SolveOptions(iterations=50), solver="heft")
    for name in ("model.so", "before.json", "after.json"):  # what it is, its content says
        solution.save(name)
    page = (DOCS / "guide" / "questions.md").read_text()
    asked = re.findall(
        r"`heteroplace ((?:explain|show|simulate|diff|report|doctor HP)[^`]*)`", page
    )
    asked = [command for command in dict.fromkeys(asked) if "--measure" not in command]
    assert len(asked) >= 6
    for command in asked:
        assert main(shlex.split(command)) == 0, command
        assert capsys.readouterr().out.strip()


def test_the_gallery_has_every_tutorial_with_its_time_and_a_picture() -> None:
    names = [name for level in LEVELS.values() for name in level]
    assert sorted(names) == [path.stem for path in tutorials()]
    written = tutorial_pages()
    gallery = written["tutorials/index.rst"]
    for path in tutorials():
        shown = card(path.read_text())
        assert re.fullmatch(r"(half )?an? (few )?\w+", shown.time)
        assert f"grid-item-card:: {shown.title}\n" in gallery
        picture = re.search(rf":link: {path.stem}\n.*?:img-top: (\S+)", gallery, re.DOTALL)
        assert picture
        file = picture[1].removeprefix("../../")
        assert (DOCS / file).is_file() or f"tutorials/{file}" in written


def test_a_notebook_has_the_code_and_the_texts_of_its_script() -> None:
    script = tutorials()[0].read_text()
    cells = nbformat.reads(notebook(read_blocks(script)), as_version=4).cells
    code = "\n".join(cell.source for cell in cells if cell.cell_type == "code")
    whole = ast.parse(script)
    assert ast.dump(ast.parse(code)) == ast.dump(ast.Module(whole.body[1:], []))
    texts = [cell.source for cell in cells if cell.cell_type == "markdown"]
    assert texts[0].startswith("# Run a trained model\n")
    assert not [text for text in texts if "``" in text or "\n---" in text]


def test_every_readme_has_a_page() -> None:
    readmes = [*PACKAGE.rglob("README.md"), *(ROOT / "src").rglob("README.md")]
    assert {room.path for room in rooms()} >= set(readmes)
    assert len({room.name for room in rooms()}) == len(rooms())


@pytest.mark.parametrize("path", tutorials(), ids=lambda path: path.stem)
def test_outputs_that_are_shown_are_those_of_the_script(path: Path) -> None:
    record = OUTPUTS / path.stem / "output.json"
    told = json.loads(record.read_text())
    assert told["code"] == digest(path.read_text()), "python -m docs.run_tutorials " + path.stem
    assert len(told["blocks"]) == len(read_blocks(path.read_text()))
    assert any(block["printed"] for block in told["blocks"])
    for block in told["blocks"]:
        for picture in block["pictures"]:
            assert (record.parent / picture["file"]).is_file()


@pytest.mark.parametrize("path", tutorials(), ids=lambda path: path.stem)
def test_blocks_of_a_tutorial_hold_all_of_its_code(path: Path) -> None:
    blocks = read_blocks(path.read_text())
    assert blocks[0].text.splitlines()[1] == "=" * len(blocks[0].text.splitlines()[0])
    together = "\n".join(block.code for block in blocks)
    whole = ast.parse(path.read_text())
    assert ast.dump(ast.parse(together)) == ast.dump(ast.Module(whole.body[1:], []))


def test_docstrings_become_restructuredtext() -> None:
    text = "Return `If`s of a*b.\n\n    x  y\n      z\n\nAnd `w`.\n\n>>> f(*a)\n3"
    assert to_rst(text.splitlines()) == [
        "Return ``If``\\ s of a\\*b.",
        "",
        "::",
        "",
        "    x  y",
        "      z",
        "",
        "And ``w``.",
        "",
        ">>> f(*a)",
        "3",
    ]


@pytest.mark.parametrize(
    ("printed", "is_apart"),
    [
        ("172.17 ms, predicted 6.43 ms", True),
        ("6.50 ms, predicted 6.43 ms", False),
        ("measured 900 us (1 run), predicted 1.1 ms", False),
        ("predicted 329 us, median of 100 runs 1,307 us", True),
        ("predicted 329 us, median of 100 runs 307 us", False),
        ("predicted 329 us on cpu.0", False),
    ],
)
def test_times_of_a_disturbed_run_are_not_kept(printed: str, is_apart: bool) -> None:
    assert apart(printed) == ([printed] if is_apart else [])


def test_a_tutorial_is_not_recorded_beside_other_programs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(Usage, "others_since", lambda self, before: 1.5)
    monkeypatch.setattr(run_tutorials, "_LOOK_S", 0.0)
    monkeypatch.setattr(run_tutorials, "OUTPUTS", tmp_path)
    with pytest.raises(SystemExit, match=r"01_first_placement: other programs use 1\.5 cores"):
        run_tutorials.main(["01_first"])
    assert not list(tmp_path.iterdir())


def test_texts_name_one_version_of_each_peer() -> None:
    texts = [ROOT / "README.md", DOCS / "guide" / "alternatives.md", DOCS / "measured.md"]
    written = "\n".join(path.read_text() for path in texts)
    for peer, pattern in (
        ("onnxruntime", r"(?:onnxruntime|ONNX Runtime \|) ([0-9]+\.[0-9]+)"),
        ("OpenVINO", r"OpenVINO(?: \|)? ([0-9]+\.[0-9]+)"),
    ):
        versions = set(re.findall(pattern, written))
        assert len(versions) == 1, f"{peer}: {sorted(versions)}"
