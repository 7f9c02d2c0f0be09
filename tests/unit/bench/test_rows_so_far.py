"""A benchmark that fails late has written and shown what it had measured."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from heteroplace.bench.__main__ import main
from heteroplace.bench.place import command
from heteroplace.errors import ExecutionError


@pytest.mark.parametrize("end", [ExecutionError("kernel fell"), KeyboardInterrupt()])
def test_rows_before_a_failure_are_kept(
    end: BaseException,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def two_rows(*_: object) -> Iterator[dict[str, object]]:
        yield {"graph": "first"}
        yield {"graph": "second"}
        raise end

    monkeypatch.setattr(command, "run", two_rows)
    monkeypatch.setattr(command, "table", lambda rows: f"{len(rows)} rows")
    file = tmp_path / "rows.json"
    if isinstance(end, KeyboardInterrupt):
        with pytest.raises(KeyboardInterrupt):
            main(["place", "--json", str(file)])
    else:
        assert main(["place", "--json", str(file)]) == 1
        printed = capsys.readouterr()
        assert printed.out == "2 rows\n"
        assert printed.err == "error: kernel fell\n"
    assert json.loads(file.read_text()) == {"rows": [{"graph": "first"}, {"graph": "second"}]}
