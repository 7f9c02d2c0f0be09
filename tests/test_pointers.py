"""Files and functions of the core that docstrings and comments name are there.

A name with a folder is the end of a path in this repository; a bare one is in the same folder.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("python", "benchmarks", "zoo", "src", "tests", "tutorials", "docs", "examples")
OF_OTHERS = re.compile(
    r"src/relay/|first_order_gradient\.cc|cublas|cuda_|cudnn_|(crt/)?mma\.h|library_types|mpi\.h|linux/"
)
"""Files of TVM, of NVIDIA, of MPI libraries and of the kernel."""
_FILE = re.compile(r"(?<![\w./-])(?:[\w-]+/)*\w+\.(?:py|cc|h)\b")
_OF_CORE = re.compile(r"\b([a-z]+)::(\w+)")
_COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*", re.DOTALL)


def texts() -> Iterator[tuple[Path, str]]:
    """Every docstring of the package and the benchmarks, and every comment of the core."""
    folders = ("python", "benchmarks", "zoo")
    for path in sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            # Strings behind a value tell about it.
            is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
            if is_text and isinstance(node.value.value, str):
                yield path, node.value.value
    for path in sorted((ROOT / "src").rglob("*.*")):
        if path.suffix in {".h", ".cc"}:
            yield from ((path, found) for found in _COMMENT.findall(path.read_text()))


def ends(paths: Iterator[Path]) -> set[str]:
    """All ends of paths, from two parts on."""
    parts = [path.relative_to(ROOT).parts for path in paths]
    return {"/".join(path[begin:]) for path in parts for begin in range(len(path) - 1)}


def test_files_that_are_named_exist() -> None:
    known = ends(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.*"))
    faults, num_names = [], 0
    for path, text in texts():
        for name in _FILE.findall(text):
            num_names += 1
            exists = name in known if "/" in name else (path.parent / name).exists()
            if not exists and not OF_OTHERS.match(name):
                faults.append(f"{path.relative_to(ROOT)}: {name}")
    assert not faults, "\n".join(faults)
    assert num_names > 100


def test_functions_and_classes_of_the_core_that_are_named_exist() -> None:
    core = {
        folder.name: _COMMENT.sub("", "".join(path.read_text() for path in folder.rglob("*.*")))
        for folder in (ROOT / "src").iterdir()
        if folder.is_dir()
    }
    named = [
        (path, *found)
        for path, text in texts()
        if path.suffix == ".py"
        for found in _OF_CORE.findall(text)
        if found[0] in core
    ]
    assert named
    faults = [
        f"{path.relative_to(ROOT)}: {folder}::{name}"
        for path, folder, name in named
        if not re.search(rf"\b{name}\b", core[folder])
    ]
    assert not faults, "\n".join(faults)
