"""Nothing that changes lives at module level, but the registries: results come from arguments."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent.parent / "python" / "heteroplace"
REGISTRIES = {
    "KINDS",
    "LABELS",
    "LOSSES",
    "MEMBER_OUTPUTS",
    "OPTIMIZERS",
    "SCHEDULES",
    "SOLVERS",
}
"""Filled when they are made, and by whoever adds an entry of his own."""
LATE_CONSTANTS = {"_by_name", "_of_others", "_of_parts", "plugins", "why_no_gurobi"}
"""Functions whose result is a constant that takes long to make, as which packages are installed."""
_CHANGES = {
    *("append", "add", "update", "setdefault", "pop", "popitem", "clear", "extend", "insert"),
    *("remove", "discard", "move_to_end", "appendleft"),
}
_MAKERS = {
    *("dict", "list", "set", "OrderedDict", "defaultdict", "deque", "Counter"),
    *("WeakKeyDictionary", "WeakValueDictionary"),
}
_CACHES = {"cache", "lru_cache"}


def _names(tree: ast.Module) -> dict[str, ast.expr]:
    """The module's variables with their values."""
    found: dict[str, ast.expr] = {}
    for node in tree.body:
        if isinstance(node, ast.Assign):
            found |= {t.id: node.value for t in node.targets if isinstance(t, ast.Name)}
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value:
            found[node.target.id] = node.value
    return found


def _last_name(value: ast.expr) -> str:
    """The last part of a dotted name."""
    return str(getattr(value, "attr", getattr(value, "id", "")))


def _callee(value: ast.expr) -> str:
    return _last_name(value.func) if isinstance(value, ast.Call) else ""


def _is_empty(value: ast.expr) -> bool:
    """Whether it is a dict, a list or a set that is written without members."""
    if isinstance(value, ast.Dict):
        return not value.keys
    return isinstance(value, ast.List | ast.Set) and not value.elts


def faults(text: str) -> Iterator[str]:
    """Yield "line: what" of each variable that functions change, or that begins empty."""
    tree = ast.parse(text)
    names = _names(tree)
    for name, value in names.items():
        is_made = isinstance(value, ast.Call) and _callee(value) in _MAKERS and not value.args
        if (_is_empty(value) or is_made) and name not in REGISTRIES:
            yield f"{value.lineno}: {name} begins empty, to be filled"
    for node in ast.walk(tree):
        if isinstance(node, ast.Global):
            yield f"{node.lineno}: global {', '.join(node.names)}"
        elif isinstance(node, ast.FunctionDef):
            for decorator in node.decorator_list:
                name = _callee(decorator) or _last_name(decorator)
                if name in _CACHES and node.name not in LATE_CONSTANTS:
                    yield f"{node.lineno}: {node.name} keeps its results"
            yield from _changes(node, set(names) - REGISTRIES)


def _changes(function: ast.FunctionDef, names: set[str]) -> Iterator[str]:
    targets: list[tuple[int, ast.expr | None]] = []
    for node in ast.walk(function):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            targets.append((node.lineno, node.func.value if node.func.attr in _CHANGES else None))
        elif isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store | ast.Del):
            targets.append((node.lineno, node.value))
    found = [(line, at.id) for line, at in targets if isinstance(at, ast.Name) and at.id in names]
    own = _own_names(function) if found else set()
    for line, name in found:
        if name not in own:
            yield f"{line}: {function.name} changes {name}"


def _own_names(function: ast.FunctionDef) -> set[str]:
    """Its arguments and what it assigns."""
    own = set()
    for node in ast.walk(function):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            own.add(node.id)
        elif isinstance(node, ast.arg):
            own.add(node.arg)
    return own


def test_no_module_keeps_what_changes() -> None:
    found = [
        f"{path.relative_to(PACKAGE)}:{fault}"
        for path in sorted(PACKAGE.rglob("*.py"))
        for fault in faults(path.read_text())
    ]
    assert not found, "\n".join(found)


def test_the_checker_sees() -> None:
    assert list(faults("_kept = {}")) == ["1: _kept begins empty, to be filled"]
    assert list(faults("_kept = OrderedDict()")) == ["1: _kept begins empty, to be filled"]
    assert list(faults("A = {1: 2}\ndef f():\n    A[3] = 4")) == ["3: f changes A"]
    assert list(faults("A = [1]\ndef f():\n    A.append(2)")) == ["3: f changes A"]
    assert list(faults("def f():\n    global x")) == ["2: global x"]
    assert list(faults("@functools.lru_cache(3)\ndef f(): ...")) == ["2: f keeps its results"]
    assert list(faults("A = {1: 2}\ndef f(A):\n    A[3] = 4")) == []
    assert list(faults("A = {1: 2}\ndef f():\n    A = {}\n    A[3] = 4")) == []
