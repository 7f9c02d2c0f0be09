"""Rows -> the page of the documentation that says which ops are right, and which are refused."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

from benchmarks.conformance.worker import EQUAL, REFUSED, RESULTS

_MAX_REASON = 160
_HEAD = """# Conformance: ONNX's own test suite

`python -m benchmarks conformance --json FILE --page CONFORMANCE.md` wrote this page. Every
node case and simple case of `onnx.backend.test` goes through import, placement over two devices
with a memory each (tasks turn by turn, so that tensors are copied), the compiler and the executor.

- *equal*: every output has the type, the sizes and, within the tolerance of the suite, the values
  of the reference. An element may also differ by one float32 epsilon of the largest one.
- *refused*: a typed error names the node, input or output, and the reason.
- *wrong* and *crash* speak for themselves; a case that is *too slow* was ended at a limit.

Integers of 4 and 2 bits go in and come out in 8 bits; their values are compared.

Inputs that decide shapes (axes, sizes, repeats) are given to the import by `input_values`, as a
user would; the rows say which.
"""


def page(rows: Sequence[Mapping[str, object]], stamp: str) -> str:
    """Return the page: counts, then each op with its cases, and why some are refused.

    `stamp` says what was run, and when.
    """
    by_op: dict[str, list[Mapping[str, object]]] = defaultdict(list)
    for row in rows:
        by_op[str(row["op"])].append(row)
    counts = Counter(str(row["result"]) for row in rows)
    total = ", ".join(f"{counts[result]} {result}" for result in RESULTS)
    lines = [
        _HEAD,
        f"{len(rows)} cases: {total} ({100 * counts[EQUAL] / len(rows):.1f} % equal).",
        f"{stamp}.",
        "",
        "| op | cases | equal | refused, and why |",
        "|---|---|---|---|",
    ]
    for op, own in sorted(by_op.items()):
        equal = sum(row["result"] == EQUAL for row in own)
        reasons = Counter(_short(str(row["reason"])) for row in own if row["result"] == REFUSED)
        told = "; ".join(f"{count} × {reason}" for reason, count in sorted(reasons.items())[:3])
        more = f"; and {len(reasons) - 3} other reasons" if len(reasons) > 3 else ""
        lines.append(f"| {op} | {len(own)} | {equal} | {told}{more} |")
    return "\n".join(lines) + "\n"


def _short(reason: str) -> str:
    """Return the telling part of an error, without the name of the model, for a table."""
    text = " ".join(reason.split())
    text = re.sub(r"^\w+Error: (model '[^']*'(:| cannot be imported:) )?", "", text)
    text = re.sub(r"'[^']*_expanded[^']*'", "'...'", text)
    text = text if len(text) <= _MAX_REASON else text[: _MAX_REASON - 3] + "..."
    return text.replace("|", "\\|")
