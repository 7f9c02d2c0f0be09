"""The code says the field's words: those that it once had of its own are in no file of it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TypeGuard

import pytest

ROOT = Path(__file__).resolve().parents[1]
# Said now: segment (of an order) or neighbourhood, module, native plan, measurement request, device
# under test, device class, divergence, head-tail bound, convex combination, memory-constrained,
# refinement solver, initial solutions, reservation table, core-to-core latency, comparison.
_OLD = re.compile(
    r"stretch(es)?|pieces?|drafts?|wanted|likeness|partings?|finishers?|mixtures?|lean|hop|"
    r"facts|study"
)
# Words of others: DiviML, JSON Schema, routes; a column of the store.
_OF_OTHERS = re.compile(
    r"json-schema\.org/draft|Draft202012\w*|DiviML's study|HEFT's study|"
    r"published studies|in one piece|hop_ns|Multi-hop|hop times"
)
# An identifier is read word by word: kStageFacts, num_pieces.
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")

# They say that something was done, and not what a value is.
_PARTICIPLES = frozenset({"found", "told", "asked", "made", "kept", "known"})


def bare_participles(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """The line and name of each variable and parameter that is called so; not of fields."""
    classes = (node for node in ast.walk(tree) if isinstance(node, ast.ClassDef))
    fields = {id(line.target) for each in classes for line in each.body if _is_field(line)}
    for node in ast.walk(tree):
        name = {ast.Name: "id", ast.arg: "arg"}.get(type(node), "")
        if name and getattr(node, name) in _PARTICIPLES and id(node) not in fields:
            yield node.lineno, getattr(node, name)


def _is_field(line: ast.stmt) -> TypeGuard[ast.AnnAssign]:
    return isinstance(line, ast.AnnAssign)


def old_words(text: str) -> list[str]:
    """What of `_OLD` is in `text`, in order."""
    words = (word.lower() for word in _WORD.findall(_OF_OTHERS.sub("", text)))
    return [word for word in words if _OLD.fullmatch(word)]


@pytest.mark.parametrize("folder", ["python", "src", "benchmarks", "zoo"])
def test_no_file_says_a_word_of_our_own(folder: str) -> None:
    faults = [
        f"{path.relative_to(ROOT)}:{number}: {', '.join(old)}"
        for path in sorted((ROOT / folder).rglob("*"))
        if path.suffix in (".py", ".cc", ".h", ".md", ".json")
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if (old := old_words(line))
    ]
    assert not faults


def test_variables_say_what_they_hold() -> None:
    faults = [
        f"{path.relative_to(ROOT)}:{number}: {name}"
        for path in sorted((ROOT / "python").rglob("*.py"))
        for number, name in bare_participles(ast.parse(path.read_text()))
    ]
    assert not faults


def test_bare_participles_are_seen_in_variables_and_parameters() -> None:
    program = "def f(known): return [made for made in known.kept if (found := made)]"
    names = [name for _, name in bare_participles(ast.parse(program))]
    assert sorted(names) == ["found", "known", "known", "made", "made", "made"]


def test_words_are_found_in_names_and_prose() -> None:
    assert old_words("class StageFacts:  # a stretch of num_pieces") == [
        "facts",
        "stretch",
        "pieces",
    ]
    assert not old_words("clean lanes, booleans: a list in one piece, as HEFT's study has it")
