"""The fixture `golden`: a difference shows input, expected and actual; an update writes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.golden_files import check_golden


def test_equal_text_passes_and_a_difference_shows_all_three(tmp_path: Path) -> None:
    (tmp_path / "input.txt").write_text("the input\n")
    (tmp_path / "plan.txt").write_text("as it was\n")
    check_golden(tmp_path, "plan.txt", "as it was\n", "input.txt", False)
    with pytest.raises(pytest.fail.Exception) as caught:
        check_golden(tmp_path, "plan.txt", "as it is\n", "input.txt", False)
    assert str(caught.value).endswith(
        "---- input (input.txt)\nthe input\n\n---- expected\nas it was\n\n---- actual\nas it is\n"
    )


def test_a_missing_file_says_how_to_make_it(tmp_path: Path) -> None:
    with pytest.raises(pytest.fail.Exception, match="make it by `pytest --update-golden`"):
        check_golden(tmp_path, "new/plan.txt", "text", "", False)


def test_an_update_writes_the_file(tmp_path: Path) -> None:
    check_golden(tmp_path, "new/plan.txt", "text\n", "", True)
    assert (tmp_path / "new" / "plan.txt").read_text() == "text\n"
