"""The files of a change -> files of tests by how near they are to it, along imports.

Nothing is imported. Imports are read from the text, and so are names in strings: modules, as in
registries; packages, of which any module may be loaded; files of a folder of tests, which run as
programs. A module of ours that names a seam of the registry imports all entries that plug into it.
The tests below a folder import its `conftest.py`. A test that names a file or a folder that holds
no module, such as `README.md`, counts as its importer.

A change of the C++ core counts as a change of every module of `heteroplace.native`. The programs of
tests/cpp are reached through `#include`, and through the source of a header that they include.
"""

from __future__ import annotations

import re
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path, PurePosixPath

_IMPORT = re.compile(
    r"^[ \t]*(?:from[ \t]+([\w.]+)[ \t]+import[ \t]+(\([^)]*\)|[^\n]+)|import[ \t]+([\w., ]+))",
    re.M,
)
_NAMED = re.compile(r"\"((?:heteroplace|tests|benchmarks|zoo)(?:\.\w+)+)[:\"]")
_NAMED_FILE = re.compile(r"\"(?:[\w.]+/)*([\w.]+)\"")
_SEAM = re.compile(r"^\[heteroplace\.(\w+)\]\n((?:.+\n)+)", re.M)
"""A group in the file `entry_points.txt` of a part."""
_ENTRY = re.compile(r"= *([\w.]+)")
_INCLUDE = re.compile(r"^#include \"([\w./]+)\"", re.M)
_PLANNING = re.compile(r"set\(PLANNING ([^)]+)\)")
"""The programs of tests/cpp that are about what makes plans, in their CMakeLists.txt."""
_PLAN_LIBRARY, _EXEC_LIBRARY = "heteroplace_plan", "heteroplace_exec"
_SUPPORT_LIBRARY = "heteroplace_support"
_CORE = "heteroplace.native"
_FOLDERS = ("python/heteroplace", "tests", "benchmarks", "zoo", "docs", "tutorials", "examples")
_PROGRAMS = ("docs", "tutorials", "examples")
"""Folders of which tests run the files, and do not import them."""
_CPP = ("src", "tests/cpp")


def module_of(path: str) -> str | None:
    """Return the module of a file of the checkout; that of C++ sources is `heteroplace.native`.

    Parameters
    ----------
    path
        Relative to the root of the checkout, with slashes.
    """
    if path.startswith("src/") or path == "CMakeLists.txt":
        return _CORE
    if not path.endswith(".py"):
        return None
    parts = Path(path.removeprefix("python/")).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def read_names(text: str) -> Iterator[str]:
    """Yield the dotted names that a file imports, or names in a string: modules and attributes."""
    for package, names, modules in _IMPORT.findall(text):
        if package:
            yield package
            words = re.sub(r"#[^\n]*", "", names).strip("()").split(",")
            yield from (f"{package}.{word.split()[0]}" for word in words if word.split())
        yield from (word.split()[0] for word in modules.split(",") if word.split())
    yield from _NAMED.findall(text)


def read_importers(root: Path) -> dict[str, list[str]]:
    """Return which modules and C++ files import each module or file; sorted."""
    paths = sorted(path for folder in _FOLDERS for path in root.glob(f"{folder}/**/*.py"))
    texts = {
        module_of(path.relative_to(root).as_posix()) or "": path.read_text(encoding="utf-8")
        for path in paths
    }
    importers: dict[str, set[str]] = defaultdict(set)
    for module, imported in (*_python_edges(texts), *_seam_edges(root, texts)):
        if module != imported:
            importers[imported].add(module)
    for file, included in _cpp_edges(root):
        importers[included].add(file)
    return {name: sorted(modules) for name, modules in importers.items()}


def _python_edges(texts: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield pairs of a module and a module or a file that it imports or names."""
    children: dict[str, list[str]] = defaultdict(list)
    helpers: dict[str, list[str]] = defaultdict(list)
    for module in texts:
        package, _, last = module.rpartition(".")
        children[package].append(module)
        if package.startswith("tests"):
            helpers[last].append(module)
    for module, text in texts.items():
        if module == __name__:
            continue  # it names folders and modules that it does not load
        for name in read_names(text):
            if name in texts:
                yield from ((module, loaded) for loaded in _with_packages(name))
            if module.startswith("tests"):  # pytest puts the folder of a test on the path
                yield from ((module, helper) for helper in helpers[name.split(".")[0]])
        for package in _NAMED.findall(text):
            yield from ((module, child) for child in children[package])
        folder, _, last = module.rpartition(".")
        if last == "conftest":
            yield module, "pyproject.toml"  # it has pytest's settings and all dependencies
            tests = (name for name in texts if name.startswith(f"{folder}.") and ".test_" in name)
            yield from ((test, module) for test in tests)
        if module.startswith("tests"):
            for file in _NAMED_FILE.findall(text):
                if file not in texts:
                    yield module, file
                yield module, f"{folder}.{file.removesuffix('.py')}"
                if file in _PROGRAMS:
                    programs = (name for name in texts if name.startswith(f"{file}."))
                    yield from ((module, program) for program in programs)


def _seam_edges(root: Path, texts: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield pairs of a module that names a seam and a module that plugs into it."""
    files = root.glob("python/heteroplace/parts/*/entry_points.txt")
    groups = [group for file in files for group in _SEAM.findall(file.read_text(encoding="utf-8"))]
    for seam, entries in groups:
        for module, text in texts.items():
            if module.startswith("heteroplace") and f'"{seam}"' in text:
                for entry in _ENTRY.findall(entries):
                    yield from ((module, loaded) for loaded in _with_packages(entry))


def _with_packages(name: str) -> Iterator[str]:
    """Yield a module and the packages around it, which are loaded first.

    The outermost package is left out: it names all of ours, and loads next to none.
    """
    yield name
    while "." in (name := name.rpartition(".")[0]):
        yield name


def _cpp_edges(root: Path) -> Iterator[tuple[str, str]]:
    """Yield pairs of a C++ file or library and what it includes, defines or links."""
    globs = [f"{folder}/**/*.{kind}" for folder in _CPP for kind in ("h", "cc")]
    paths = [path for pattern in globs for path in root.glob(pattern)]
    files = {path.relative_to(root).as_posix(): path for path in paths}
    lists = root / "tests" / "cpp" / "CMakeLists.txt"
    planning = _PLANNING.findall(lists.read_text(encoding="utf-8"))[0].split() if files else []
    for file, path in files.items():
        for name in _INCLUDE.findall(path.read_text(encoding="utf-8")):
            yield from ((file, f"{folder}/{name}") for folder in _CPP)
        if file.endswith(".h"):
            yield file, f"{file.removesuffix('.h')}.cc"
        if file.startswith("src/"):
            yield f"objects of {_library(file)}", file
        if file.startswith("tests/cpp/check_"):
            yield from ((file, name) for name in ("CMakeLists.txt", "tests/cpp/CMakeLists.txt"))
            yield file, _PLAN_LIBRARY if path.stem in planning else _EXEC_LIBRARY
    for library in (_PLAN_LIBRARY, _EXEC_LIBRARY):
        yield library, f"objects of {library}"
        yield library, f"objects of {_SUPPORT_LIBRARY}"


def _library(file: str) -> str:
    """Return the library of a C++ file, as in CMakeLists.txt."""
    libraries = {"support": _SUPPORT_LIBRARY, "exec": _EXEC_LIBRARY, "parts": _EXEC_LIBRARY}
    return libraries.get(file.split("/")[1], _PLAN_LIBRARY)


def changed_nodes(importers: Mapping[str, Iterable[str]], changed_files: Iterable[str]) -> set[str]:
    """Return what changed files are in `importers`: modules, files, and names of files and folders.

    With a package its modules change, which import it first.
    """
    changed: set[str] = set()
    for path in changed_files:
        module = module_of(path)
        if module is not None:
            changed.add(module)
        if path.endswith("/__init__.py") or module == _CORE:
            changed |= {name for name in importers if name.startswith(f"{module}.")}
        changed |= {path, PurePosixPath(path).name}
        if module is None:  # a text or data: tests name it, or a folder around it
            changed |= {*PurePosixPath(path).parent.parts}
    return changed


def distances(
    importers: Mapping[str, Iterable[str]], changed_files: Iterable[str]
) -> dict[str, int]:
    """Return the number of imports from each reached module or file to the nearest changed file.

    What changed is at 0. Complexity: O(modules + imports), a breadth-first search.
    """
    steps = dict.fromkeys(sorted(changed_nodes(importers, changed_files)), 0)
    waiting = deque(steps)
    while waiting:
        module = waiting.popleft()
        for importer in importers.get(module, ()):
            if importer not in steps:
                steps[importer] = steps[module] + 1
                waiting.append(importer)
    return steps
