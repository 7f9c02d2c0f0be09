"""Rows -> the table of ops in the documentation, as Markdown."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

from heteroplace.bench.conformance.worker import EQUAL, REFUSED


def page(rows: Sequence[Mapping[str, object]]) -> str:
    """Return the page: counts, and for each op how many cases are equal, and why others are not."""
    by_op: dict[str, list[Mapping[str, object]]] = defaultdict(list)
    for row in rows:
        by_op[str(row["op"])].append(row)
    counts = Counter(str(row["result"]) for row in rows)
    total = ", ".join(f"{count} {result}" for result, count in sorted(counts.items()))
    lines = [f"{len(rows)} cases: {total}.", "", "| op | cases | equal | refused |"]
    for op, own in sorted(by_op.items()):
        equal = sum(row["result"] == EQUAL for row in own)
        reasons = [str(row["reason"]) for row in own if row["result"] == REFUSED]
        lines.append(f"| {op} | {len(own)} | {equal} | {reasons[:1]} |")
    return "\n".join(lines) + "\n"
