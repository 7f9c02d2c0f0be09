"""The registry of plugins: what installed packages name, and what is said about a wrong one."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from heteroplace import registry
from heteroplace.errors import PluginError
from heteroplace.pipeline.stage import AddedStage, Stage, with_added_stages
from heteroplace.registry import load_plugin, plugins

CORE = tuple(Stage[str](name, "", "heteroplace.stats:median") for name in ("first", "last"))
ADDED = (
    AddedStage(Stage[str]("second", "", "heteroplace.stats:median"), before="last"),
    AddedStage(Stage[str]("third", "", "heteroplace.stats:median"), before="last"),
    AddedStage(Stage[str]("end", "", "heteroplace.stats:median"), before=None),
)
UNPLACED = (AddedStage(Stage[str]("lost", "", "heteroplace.stats:median"), before="nowhere"),)
TWICE = (AddedStage(Stage[str]("first", "", "heteroplace.stats:median"), before="last"),)


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[str, str]]]:
    """Names and values of the entry points of other packages; parts have none."""
    entries: list[tuple[str, str]] = []
    others = lambda: tuple(EntryPoint(*entry, "heteroplace.seam") for entry in entries)  # noqa: E731
    monkeypatch.setattr(registry, "_of_others", others)
    monkeypatch.setattr(registry, "_of_parts", tuple)
    plugins.cache_clear()
    yield entries
    plugins.cache_clear()


def test_plugins_are_sorted_and_loaded_on_demand(installed: list[tuple[str, str]]) -> None:
    installed += [("later", "no_such_module:value"), ("early", "heteroplace.stats:median")]
    assert list(plugins("seam")) == ["early", "later"]
    assert load_plugin("seam", "early").__name__ == "median"


def test_the_modules_of_other_packages_are_known(installed: list[tuple[str, str]]) -> None:
    installed += [("b", "theirs.inner:value"), ("a", "theirs:other"), ("c", "heteroplace.stats:x")]
    installed.append(("d", "another:value"))
    assert registry.added_modules() == ["another", "theirs"]


def test_plugins_of_our_parts_come_first(
    installed: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    installed.append(("early", "heteroplace.stats:median"))
    ours = EntryPoint("later", "heteroplace.stats:quantile", "heteroplace.seam")
    monkeypatch.setattr(registry, "_of_parts", lambda: (ours,))
    assert list(plugins("seam")) == ["later", "early"]


def test_ranked_plugins_of_our_parts_keep_the_order_of_their_file(
    installed: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    installed += [("d", "heteroplace.stats:median"), ("c", "heteroplace.stats:median")]
    ours = [EntryPoint(name, "heteroplace.stats:median", "heteroplace.seam") for name in "ba"]
    monkeypatch.setattr(registry, "_of_parts", lambda: tuple(ours))
    assert list(plugins("seam", is_ranked=True)) == ["b", "a", "c", "d"]
    assert list(plugins("seam")) == ["a", "b", "c", "d"]


def test_errors_name_the_group_and_the_package(installed: list[tuple[str, str]]) -> None:
    installed += [("lost", "no_such_module:value"), ("typo", "heteroplace.stats:no_such_name")]
    with pytest.raises(PluginError, match=r"'lost' of the group 'heteroplace.seam' cannot be"):
        load_plugin("seam", "lost")
    with pytest.raises(PluginError, match="no_such_name"):
        load_plugin("seam", "typo")
    with pytest.raises(PluginError, match=r"registers 'other' in .* registered: lost, typo"):
        load_plugin("seam", "other")


def test_two_packages_with_one_name_are_refused(installed: list[tuple[str, str]]) -> None:
    installed += [("same", "a:value"), ("same", "b:value")]
    with pytest.raises(PluginError, match="a:value and b:value; uninstall one of them"):
        plugins("seam")


def test_a_part_registers_in_a_file_of_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "part").mkdir()
    text = "[heteroplace.other]\nx = a:b\n\n[heteroplace.seam]\nHere = heteroplace.stats:median\n"
    (tmp_path / "part" / "entry_points.txt").write_text(text)
    (tmp_path / "empty").mkdir()
    monkeypatch.setattr(registry, "_PARTS", tmp_path)
    entries = registry._of_parts.__wrapped__()
    assert [(entry.group, entry.name) for entry in entries] == [
        ("heteroplace.other", "x"),
        ("heteroplace.seam", "Here"),
    ]
    assert entries[1].load().__name__ == "median"


def test_added_stages_stand_before_the_stage_that_they_name(
    installed: list[tuple[str, str]],
) -> None:
    installed.append(("part", f"{__name__}:ADDED"))
    names = [stage.name for stage in with_added_stages(CORE, "seam")]
    assert names == ["first", "second", "third", "last", "end"]


@pytest.mark.parametrize(
    ("value", "words"),
    [("UNPLACED", "before 'nowhere', which is no stage"), ("TWICE", "a second stage 'first'")],
)
def test_a_stage_without_a_place_or_name_is_refused(
    installed: list[tuple[str, str]], value: str, words: str
) -> None:
    installed.append(("part", f"{__name__}:{value}"))
    with pytest.raises(PluginError, match=words):
        with_added_stages(CORE, "seam")
