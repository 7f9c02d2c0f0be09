"""Options of benchmarks that are wrong, or that what is asked for does not read, are refused."""

from __future__ import annotations

import pytest

from heteroplace.bench.__main__ import USAGE, main


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
