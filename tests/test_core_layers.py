"""The order of the folders of the C++ core, read from `#include`; nothing is compiled for it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

SOURCES = Path(__file__).resolve().parent.parent / "src"

# What each folder builds on; it includes from these, from what is below them, and from itself.
BELOW = {
    "support": (),
    "model": ("support",),
    "graph": ("model",),
    "decompose": ("graph",),
    "simulate": ("decompose",),
    "list": ("simulate",),
    "bounds": ("decompose",),
    "search": ("list", "bounds"),
    "exec": ("model",),
    "parts/hosts": ("exec",),
    "parts/kernels": ("exec",),
    "parts/throughput": ("search",),
    "capi": ("parts/hosts", "parts/kernels"),
    "cli": ("capi",),
    "bind": ("search", "exec"),
    "parts/hosts/bind": ("bind", "parts/hosts"),
    "parts/kernels/bind": ("bind", "parts/kernels"),
    "parts/throughput/bind": ("bind", "parts/throughput"),
}
# support/jobs.h starts those of search and of the Lagrangian bound.
MAY_START_THREADS = {"support", "exec", "parts/hosts", "parts/throughput"}
_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*"([^"]+)"', re.MULTILINE)
_THREADS = re.compile(r"std::j?thread\b|std::async\b|pthread_create\b")


def folder_of(file: str) -> str:
    """Return the folder of a file below src; a part of `parts` is two, of which one is `bind`."""
    steps = file.split("/")
    depth = 1 if steps[0] != "parts" else 3 if steps[2] == "bind" else 2
    return "/".join(steps[:depth])


def folders_below(folder: str) -> set[str]:
    """All that a folder may include from, itself left out."""
    direct = BELOW[folder]
    return set(direct).union(*(folders_below(other) for other in direct))


def check_sources(sources: Path) -> list[str]:
    """Return every breach of the order as "file: what"."""
    files = sorted(path for path in sources.rglob("*") if path.suffix in {".h", ".cc"})
    faults = []
    includes: dict[str, list[str]] = {}
    for path in files:
        name = path.relative_to(sources).as_posix()
        text = path.read_text()
        includes[name] = _INCLUDE.findall(text)
        faults += [f"{name}: {fault}" for fault in faults_of(name, text, sources, includes[name])]
    return faults + circles(includes)


def faults_of(name: str, text: str, sources: Path, includes: list[str]) -> list[str]:
    """Return what is wrong with one file."""
    folder = folder_of(name)
    if folder not in BELOW:
        return [f"{folder} has no place in tests/test_core_layers.py"]
    faults = []
    allowed = {folder} | folders_below(folder)
    for include in includes:
        if not (sources / include).is_file():
            faults.append(f"{include} is no path from src")
        elif folder_of(include) not in allowed:
            faults.append(f"{folder} includes {include}")
    if folder not in MAY_START_THREADS and _THREADS.search(text):
        faults.append(f"{folder} starts threads")
    return faults


def circles(includes: Mapping[str, list[str]]) -> list[str]:
    """Return the first circle of files that include each other, if there is one."""
    try:
        TopologicalSorter(includes).prepare()
    except CycleError as error:
        return [f"{error.args[1][0]}: circle {' <- '.join(error.args[1])}"]
    return []


def test_every_file_includes_only_from_folders_below() -> None:
    faults = check_sources(SOURCES)
    assert not faults, "\n".join(faults)


def test_every_folder_of_the_core_has_its_place() -> None:
    files = (path.relative_to(SOURCES).as_posix() for path in SOURCES.rglob("*/*.cc"))
    assert {folder_of(file) for file in files} == set(BELOW)
    parts = {folder for folder in BELOW if folder.startswith("parts/")}
    assert folders_below("bind") == set(BELOW) - parts - {"bind", "capi", "cli"}
    bindings = {folder for folder in parts if folder.endswith("/bind")}
    assert {folder.removesuffix("/bind") for folder in bindings} == parts - bindings


@pytest.mark.parametrize(
    ("files", "fault"),
    [
        ({"model/a.h": '#include "graph/b.h"', "graph/b.h": ""}, "model includes graph/b.h"),
        ({"bounds/a.cc": '# include "search/b.h"', "search/b.h": ""}, "bounds includes search"),
        ({"exec/engine/a.h": '#include "graph/b.h"', "graph/b.h": ""}, "exec includes graph/b.h"),
        ({"exec/a.h": '#include "parts/hosts/b.h"', "parts/hosts/b.h": ""}, "exec includes parts"),
        ({"bind/a.h": '#include "parts/hosts/b.h"', "parts/hosts/b.h": ""}, "bind includes parts"),
        ({"parts/hosts/a.h": '#include "exec/b.h"', "exec/b.h": ""}, None),
        ({"parts/hosts/a.h": '#include "bind/b.h"', "bind/b.h": ""}, "hosts includes bind/b.h"),
        ({"parts/hosts/bind/a.h": '#include "bind/b.h"', "bind/b.h": ""}, None),
        ({"list/a.h": '#include "parts/throughput/b.h"', "parts/throughput/b.h": ""}, "includes"),
        ({"list/a.h": '#include "b.h"', "list/b.h": ""}, "b.h is no path from src"),
        ({"list/a.h": '#include "list/b.h"', "list/b.h": '#include "list/a.h"'}, "circle"),
        ({"list/a.cc": "std::jthread worker;"}, "list starts threads"),
        ({"extra/a.cc": ""}, "extra has no place"),
        (
            {"parts/throughput/a.cc": '#include "list/b.h"\nstd::thread t;', "list/b.h": ""},
            None,
        ),
        ({"list/a.cc": '#include <thread>\n#include "model/b.h"', "model/b.h": ""}, None),
        ({"exec/engine/a.cc": '#include "exec/devices/b.h"', "exec/devices/b.h": ""}, None),
    ],
)
def test_the_checker_sees(tmp_path: Path, files: dict[str, str], fault: str | None) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    faults = check_sources(tmp_path)
    if fault is None:
        assert faults == []
    else:
        assert len(faults) == 1
        assert fault in faults[0]
