"""`benchmarks conformance`: ONNX's own test suite through import, placement and executor.

Each case must be equal to its reference, or be refused by a typed error; none may be wrong or
crash. `--page FILE` writes the table of ops for the documentation.
"""

from __future__ import annotations

import argparse
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime, timezone

import onnx

from benchmarks.conformance.cases import load_cases
from benchmarks.conformance.page import page
from benchmarks.conformance.pool import Row, run_cases
from benchmarks.conformance.worker import REFUSED, RESULTS
from benchmarks.tables.store import code_stamp
from heteroplace.files.output import check_writable, write_text
from heteroplace.report.tables import format_table

LIMIT_S = 300.0
"""A case takes seconds at most; this is for a busy machine."""
_MAX_REASON = 120


def run(options: argparse.Namespace, say: Callable[[str], None]) -> Iterator[Row]:
    """Run the cases that are asked for; yield a row for each."""
    check_writable(options.page)
    stamp = stamp_now()  # of the code that is loaded now, whatever is changed meanwhile
    cases = load_cases(options.only, options.share, options.seed)
    say(f"{len(cases)} cases")
    rows = []
    for row in run_cases(cases, options.workers, LIMIT_S, say):
        rows.append(row)
        yield row
    if options.page is not None and rows:
        write_text(page(rows, stamp), options.page)


def stamp_now() -> str:
    """Return what is run here and now: commit, the version of the suite, date."""
    today = datetime.now(timezone.utc).strftime("%Y-%m-%d")
    return f"Of commit {code_stamp()} with the suite of onnx {onnx.__version__}, {today}"


def table(rows: Sequence[Mapping[str, object]]) -> str:
    """Return counts, and the ops of which cases are refused."""
    counts = Counter(str(row["result"]) for row in rows)
    percent = 100 * counts["equal"] / len(rows)
    lines = [f"{result}: {counts[result]}" for result in RESULTS]
    refused: dict[str, list[str]] = defaultdict(list)
    for row in rows:
        if row["result"] == REFUSED:
            refused[str(row["op"])].append(str(row["reason"]))
    cells = [
        [op, str(len(reasons)), " ".join(reasons[0].split())[:_MAX_REASON]]
        for op, reasons in sorted(refused.items())
    ]
    text = format_table(["refused", "cases", "reason of the first"], cells, "<><")
    return f"{text}\n\n{', '.join(lines)} of {len(rows)} cases ({percent:.1f} % equal)"
