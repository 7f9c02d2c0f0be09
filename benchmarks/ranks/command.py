"""`ranks`: several ranks on this machine: their messages, plans, and plans over slow links.

| case | what is measured |
|---|---|
| `message/BYTES` | one way between two ranks, by the executor and by MPI in a bare loop |
| `plan/MODEL/RANKS` | plans over the ranks of this machine, a core each, beside one process |
| `shaped/GBIT/MS/MODEL` | predicted and measured plans over links of that bandwidth and delay |
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterator, Sequence

from benchmarks.ranks.messages import SIZES, message_rows
from benchmarks.ranks.options import RanksOptions
from benchmarks.ranks.plans import PlanOptions, plan_rows
from benchmarks.ranks.shaped import ShapedLink, why_not
from heteroplace.errors import ExecutionError
from heteroplace.options import from_arguments
from heteroplace.progress import prefixed
from heteroplace.report.tables import format_table
from heteroplace.stats import median, spearman

Row = dict[str, object]

MODELS = (
    "mobilenet_v3",
    "t5_encoder",
    "lstm_tagger",
    "resnet50",
    "bert_small",
    "bert_base",
    "gpt2_small",
)
SHAPED_MODELS = ("squeezenet", "bert_small")
LINKS = tuple(
    ShapedLink(bits, delay_ns) for bits in (10**8, 10**9) for delay_ns in (100_000, 5_000_000)
)
_FIELDS = (
    *("case", "model", "plan", "ranks", "transport", "link", "bytes", "link_bytes"),
    *("ours_us", "raw_us", "ratio_to_raw", "predicted_ms", "measured_ms", "one_process_ms"),
    "equal",
)


def run(arguments: argparse.Namespace, say: Callable[[str], None]) -> Iterator[Row]:
    """Measure the cases whose name matches `arguments.only`; yield the rows.

    Raises
    ------
    HeteroPlaceError
        Ranks cannot be started, or fail; the kernel allows no shaped links.
    """
    asked = from_arguments(RanksOptions, arguments)
    for row in _rows(asked, re.compile(arguments.only).search, say):
        yield {field: row.get(field) for field in _FIELDS}


def _rows(
    asked: RanksOptions, matches: Callable[[str], object], say: Callable[[str], None]
) -> Iterator[Row]:
    sizes = [size for size in SIZES if matches(f"message/{size}")]
    if sizes:
        yield from message_rows(sizes, say)
    here = PlanOptions(
        num_random=asked.plans,
        budget_s=asked.budget,
        is_quick=asked.quick,
        num_rounds=3 if asked.quick else 9,
    )
    for model in MODELS:
        for num_ranks in (2, 4):
            name = f"plan/{model}/{num_ranks}"
            if matches(name):
                found = plan_rows(model, num_ranks, None, here, prefixed(say, name))
                yield from [{"case": name, **row} for row in found]
    # Slow links take most of the time, so that a turn is one run.
    over_links = PlanOptions(
        num_random=asked.shaped_plans,
        solvers=(),
        budget_s=asked.budget,
        is_quick=asked.quick,
        num_rounds=3 if asked.quick else 5,
    )
    for link in LINKS:
        for model in SHAPED_MODELS:
            name = shaped_name(link, model)
            if matches(name):
                _check_links()
                found = plan_rows(model, 2, link, over_links, prefixed(say, name))
                yield from [{"case": name, **row} for row in found]


def shaped_name(link: ShapedLink, model: str) -> str:
    """Return the name of a case.

    >>> shaped_name(ShapedLink(10**8, 100_000), "vit")
    'shaped/0.1/0.1/vit'
    """
    return f"shaped/{link.bits_per_second / 1e9:g}/{link.delay_ns / 1e6:g}/{model}"


def table(rows: Sequence[Row]) -> str:
    """Return the rows as a table each for messages and plans, and how good the predictions are."""
    parts = []
    messages = [row for row in rows if row["ours_us"] is not None]
    if messages:
        cells = [
            [_text(row[field]) for field in ("case", "ours_us", "raw_us", "ratio_to_raw")]
            for row in messages
        ]
        parts.append(format_table(["messages", "us one way", "MPI alone", "ratio"], cells, "<>>>"))
    plans = [row for row in rows if row["measured_ms"] is not None]
    if plans:
        fields = ("case", "link", "plan", "ranks", "bytes", "predicted_ms", "measured_ms")
        cells = [
            [_text(row[field]) for field in (*fields, "one_process_ms", "equal")] for row in plans
        ]
        headers = ["plans", "link", "plan", "ranks", "bytes", "predicted ms", "measured ms"]
        headers += ["one process ms", "equal"]
        parts.append(format_table(headers, cells, "<<<>>>>><"))
        parts.append(_predictions(plans))
    return "\n\n".join(parts)


def _predictions(plans: Sequence[Row]) -> str:
    cells = []
    for case in dict.fromkeys((row["case"], row["ranks"], row["link"]) for row in plans):
        of_case = [row for row in plans if (row["case"], row["ranks"], row["link"]) == case]
        error, correlation = prediction_quality(of_case)
        cells.append(
            [*map(str, case), str(len(of_case)), f"{100 * error:.1f} %", _text(correlation)]
        )
    headers = ["predictions", "ranks", "link", "plans", "median error", "Spearman"]
    return format_table(headers, cells, "<><>>>")


def prediction_quality(plans: Sequence[Row]) -> tuple[float, float | None]:
    """Return the median relative error of the predicted times, and their rank correlation.

    The latter is None where there is none, as of a single plan.
    """
    predicted = [float(str(row["predicted_ms"])) for row in plans]
    measured = [float(str(row["measured_ms"])) for row in plans]
    errors = [abs(one / other - 1) for one, other in zip(predicted, measured, strict=True)]
    return median(errors), spearman(predicted, measured)


def _check_links() -> None:
    reason = why_not()
    if reason:
        raise ExecutionError(f"{reason}; leave the cases 'shaped/' out (--only)")


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "NO"
    if isinstance(value, float):
        return f"{value:.3g}" if abs(value) < 100 else f"{value:.0f}"
    return "" if value is None else str(value)
