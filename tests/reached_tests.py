"""The files of a change -> test files by how near they are to it, along imports.

Nothing is imported. Imports are read from the text, and so are strings that name modules, as those
of registries do. The tests of a folder count as importers of its `conftest.py`. A change of the C++
core counts as a change of every module of `heteroplace.native`.
"""

from __future__ import annotations

import re
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

_IMPORT = re.compile(
    r"^[ \t]*(?:from[ \t]+([\w.]+)[ \t]+import[ \t]+(\([^)]*\)|[^\n]+)|import[ \t]+([\w., ]+))",
    re.M,
)
_NAMED = re.compile(r"\"((?:heteroplace|tests)(?:\.\w+)+)[:\"]")
_CORE = "heteroplace.native"


def module_of(path: str) -> str | None:
    """Return the module of a file of the checkout; that of C++ sources is `heteroplace.native`.

    Parameters
    ----------
    path
        Relative to the root of the checkout, with slashes.
    """
    if path.startswith("src/"):
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
    """Return which modules import each module of the package and of the tests; sorted."""
    paths = [*root.glob("python/heteroplace/**/*.py"), *root.glob("tests/**/*.py")]
    texts = {
        module_of(path.relative_to(root).as_posix()) or "": path.read_text(encoding="utf-8")
        for path in sorted(paths)
    }
    importers: dict[str, set[str]] = defaultdict(set)
    for module, text in texts.items():
        for name in read_names(text):
            if name in texts and name != module:
                importers[name].add(module)
        folder, _, _ = module.rpartition(".")
        if module.endswith(".conftest"):
            importers[module] |= {other for other in texts if other.startswith(f"{folder}.test_")}
    return {module: sorted(names) for module, names in importers.items()}


def distances(
    importers: Mapping[str, Iterable[str]], changed_files: Iterable[str]
) -> dict[str, int]:
    """Return the number of imports from each reached module to the nearest changed file.

    A changed module is at 0. Complexity: O(modules + imports), a breadth-first search.
    """
    changed = {module for path in changed_files if (module := module_of(path))}
    if _CORE in changed:
        changed |= {module for module in importers if module.startswith(f"{_CORE}.")}
    steps = dict.fromkeys(sorted(changed), 0)
    waiting = deque(steps)
    while waiting:
        module = waiting.popleft()
        for importer in importers.get(module, ()):
            if importer not in steps:
                steps[importer] = steps[module] + 1
                waiting.append(importer)
    return steps
