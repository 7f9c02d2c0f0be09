"""Files and functions stay short enough to be read in one go."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 60

ROOT = Path(__file__).resolve().parent.parent
CODE = ("python", "benchmarks", "zoo")
ROOMS = ("python", "src", "tests", "tutorials", "benchmarks", "zoo")


def long_functions(text: str, limit: int) -> Iterator[str]:
    """Yield "line name: lines" of each function over the limit; its docstring is not counted."""
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        lines = (node.end_lineno or node.lineno) - node.lineno + 1
        if ast.get_docstring(node, clean=False) is not None:
            docstring = node.body[0]
            lines -= (docstring.end_lineno or docstring.lineno) - docstring.lineno + 1
        if lines > limit:
            yield f"{node.lineno} {node.name}: {lines} lines, at most {limit}"


def test_every_source_file_has_at_most_400_lines() -> None:
    files = [path for room in ROOMS for path in (ROOT / room).rglob("*.*")]
    sources = [path for path in files if path.suffix in {".py", ".c", ".h", ".cc"}]
    assert {path.relative_to(ROOT).parts[0] for path in sources} == set(ROOMS)
    counts = {path: len(path.read_text().splitlines()) for path in sources}
    long = [f"{path.relative_to(ROOT)}: {n}" for path, n in counts.items() if n > MAX_FILE_LINES]
    assert not long, f"over {MAX_FILE_LINES} lines, split by idea:\n" + "\n".join(sorted(long))


def test_every_function_has_at_most_60_lines() -> None:
    faults = []
    for path in sorted(path for room in CODE for path in (ROOT / room).rglob("*.py")):
        for fault in long_functions(path.read_text(), MAX_FUNCTION_LINES):
            faults.append(f"{path.relative_to(ROOT)}:{fault}")
    assert not faults, "\n".join(faults)


def test_a_long_function_is_found_and_its_docstring_is_not_counted() -> None:
    text = 'def f():\n    """One.\n\n    Two.\n    """\n    a = 1\n    return a\n'
    assert list(long_functions(text, 3)) == []
    assert list(long_functions(text, 2)) == ["1 f: 3 lines, at most 2"]
