"""Public classes of the package -> no two share a name, but for a list that may only shrink."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent.parent / "python" / "heteroplace"
SHARED = {
    "Branch",
    "Decision",
    "Network",
    "Program",
    "Ranks",
    "Router",
    "RouterEntry",
    "TaskEntry",
    "TensorEntry",
    "Version",
}
"""Names that two classes still have: rename one of them, and take its line away here."""


def shared_names(package: Path) -> set[str]:
    """Return the names of public classes that several modules define."""
    names = Counter(
        node.name
        for path in package.rglob("*.py")
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    return {name for name, count in names.items() if count > 1}


def test_no_two_public_classes_share_a_name() -> None:
    assert shared_names(PACKAGE) == SHARED


def test_the_checker_sees(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "one.py").write_text("class Same: ...\nclass _Own: ...\n")
    (tmp_path / "two.py").write_text("class Same: ...\nclass _Own: ...\n")
    assert shared_names(tmp_path) == {"Same"}
