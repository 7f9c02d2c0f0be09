"""Texts that are kept as files in tests/golden, the input beside what is made from it."""

from __future__ import annotations

from pathlib import Path

import pytest


def check_golden(folder: Path, name: str, text: str, made_from: str, is_updated: bool) -> None:
    """Fail unless `text` is what the file `name` of `folder` holds.

    Parameters
    ----------
    folder : Path
        Where the files are.
    name : str
        Path in `folder`, e.g. "chain/plan.txt".
    text : str
        What was made.
    made_from : str
        Name of the file that holds what it was made from, shown beside a difference; "": none.
    is_updated : bool
        Write the file instead.
    """
    path = folder / name
    if is_updated:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return
    if not path.is_file():
        pytest.fail(f"{path} does not exist; make it by `pytest --update-golden`:\n{text}")
    expected = path.read_text(encoding="utf-8")
    if text == expected:
        return
    given = (folder / made_from).read_text(encoding="utf-8") if made_from else ""
    parts = {f"input ({made_from})": given, "expected": expected, "actual": text}
    shown = "\n".join(f"---- {title}\n{part}" for title, part in parts.items() if part)
    pytest.fail(
        f"{name} differs; if that is meant, run `pytest --update-golden`, read the diff\n{shown}",
        pytrace=False,
    )
