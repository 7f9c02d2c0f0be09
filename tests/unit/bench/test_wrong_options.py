"""Options of benchmarks that are wrong, or that what is asked for does not read, are refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.command import USAGE, main


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("conformance --share -1", "expected a number above 0, up to 1, got '-1'"),
        ("conformance --share 7", "expected a number above 0, up to 1, got '7'"),
        ("conformance --workers 0", "expected a whole number >= 1, got '0'"),
        ("distir --batches 8,x", "expected a whole number >= 1, got 'x'"),
        ("distir --run --rounds 0", "expected a whole number >= 1, got '0'"),
        ("distir --processes 0", "expected a whole number >= 1, got '0'"),
        ("distir --memory-gib nan", "expected a number of GiB above 0, got 'nan'"),
    ],
)
def test_a_number_out_of_range_is_refused_by_its_option(
    arguments: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(arguments.split())
    assert stopped.value.code == USAGE
    assert f"argument {arguments.split()[-2]}: {message}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "ignored"),
    [
        ("place --growth --only x --budget 3", "--growth does not read --budget, --only"),
        ("place --peers --solvers heft", "--peers does not read --solvers"),
        ("place --saga --seed 1", "--saga does not read --seed"),
        ("place --saga --peers", "--peers does not read --saga"),
        ("exact --symmetry --budget 3", "--symmetry does not read --budget"),
        ("exact --fusion --seed 1", "--fusion does not read --seed"),
        ("exact --orders --budget 3", "--orders does not read --budget"),
        ("distir --run --rows F --plot G.svg", "--run does not read --rows, --plot"),
        ("distir --run --memory-gib 8 --processes 2", "--run does not read --processes, --memory"),
        ("distir --growth --plot G.svg", "--growth does not read --plot"),
        ("distir --rounds 3", "--rounds belongs to --run"),
        ("distir --quick", "--quick belongs to --run"),
        ("distir --growth --quick", "--growth does not read --quick"),
    ],
)
def test_an_option_that_is_not_read_is_refused(
    arguments: str,
    ignored: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(arguments.split()) == 1
    assert ignored in capsys.readouterr().err
    assert not list(tmp_path.iterdir()), "an empty picture is left"
