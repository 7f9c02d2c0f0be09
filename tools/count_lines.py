"""Print the lines of the core, of each part and of the benchmarks, in Python and in C++.

`make lines` runs it. A part owns the folders of its name.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = "python/heteroplace"
OWNERS = {
    "onnx": (f"{PACKAGE}/parts/onnx",),
    "kernels": (f"{PACKAGE}/parts/kernels", "src/parts/kernels"),
    "parallel": (f"{PACKAGE}/parts/parallel",),
    "routing": (f"{PACKAGE}/parts/routing",),
    "hosts": (f"{PACKAGE}/parts/hosts", "src/parts/hosts"),
    "throughput": (f"{PACKAGE}/parts/throughput", "src/parts/throughput"),
    "benchmarks": ("benchmarks", "zoo"),
}
"""Folders and files of each part; all others are the core's."""
KINDS = {".py": "Python", ".h": "C++", ".cc": "C++"}


def owner_of(path: str) -> str:
    """Return the part that a file of the repository belongs to."""
    for part, places in OWNERS.items():
        if any(path == place or path.startswith(f"{place}/") for place in places):
            return part
    return "core"


def count_lines() -> Counter[tuple[str, str]]:
    """Return the number of lines by (part, language)."""
    lines: Counter[tuple[str, str]] = Counter()
    for folder in (PACKAGE, "src", "benchmarks", "zoo"):
        for path in (ROOT / folder).rglob("*"):
            if path.suffix in KINDS:
                part = owner_of(path.relative_to(ROOT).as_posix())
                lines[part, KINDS[path.suffix]] += path.read_text().count("\n")
    return lines


def main() -> None:
    """Print a row for each part."""
    lines = count_lines()
    print(f"{'part':<12}{'Python':>9}{'C++':>9}{'sum':>9}")
    for part in ("core", *OWNERS):
        python, cpp = lines[part, "Python"], lines[part, "C++"]
        print(f"{part:<12}{python:>9,}{cpp:>9,}{python + cpp:>9,}")
    product = sum(count for (part, _), count in lines.items() if part != "benchmarks")
    print(f"without benchmarks {product:,}")


if __name__ == "__main__":
    main()
