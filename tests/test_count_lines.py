"""`make lines`: every file is counted once, and each part owns folders that are there."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from tools.count_lines import OWNERS, PACKAGE, owner_of

ROOT = Path(__file__).resolve().parents[1]


def test_parts_own_what_is_there() -> None:
    places = [place for part in OWNERS.values() for place in part]
    assert [place for place in places if not (ROOT / place).exists()] == []
    assert len(places) == len(set(places))
    assert owner_of(f"{PACKAGE}/parts/onnx/importer.py") == "onnx"
    assert owner_of(f"{PACKAGE}/dynamic_costs.py") == "core"


def test_rows_add_up_to_all_lines() -> None:
    done = subprocess.run(
        [sys.executable, "tools/count_lines.py"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    rows = {row.split()[0]: row for row in done.stdout.splitlines()[1:]}
    assert list(rows) == ["core", *OWNERS, "without"]
    sums = [int(re.findall(r"[\d,]+", rows[part])[-1].replace(",", "")) for part in OWNERS]
    core = int(re.findall(r"[\d,]+", rows["core"])[-1].replace(",", ""))
    files = [
        path
        for folder in (PACKAGE, "src", "benchmarks", "zoo")
        for path in (ROOT / folder).rglob("*")
        if path.suffix in {".py", ".h", ".cc"}
    ]
    assert core + sum(sums) == sum(path.read_text().count("\n") for path in files)
