"""`benchmarks dynamic`: networks with routers, specialised to how they are used, against peers.

Experiments are functions of labels and of who is told of progress; each measures what matches and
yields rows (`row.new_row`). Labels of the traces are model/trace, those of the others begin with
the experiment's name.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence

from benchmarks.dynamic import (
    early_exit,
    placement,
    preload,
    speculation,
    traces,
)
from benchmarks.dynamic.row import format_rows
from benchmarks.peers.stock import silence_tuning_hint

Say = Callable[[str], None]

EXPERIMENTS: Mapping[str, Callable[[re.Pattern[str], Say], Iterator[dict[str, object]]]] = {
    "traces": traces.rows,
    "speculation": speculation.rows,
    "early_exit": early_exit.rows,
    "placement": placement.rows,
    "preload": preload.rows,
}
"""What `benchmarks dynamic` measures, in this order."""
DEFAULT = (
    "^(switch_layer(_128)?(_top2)?/zipf1|(swin_moe|task_moe|live_sr|msdnet)/(zipf1|coactive)"
    "|speculation/(.:./.*|dynamic_routing_small/habits)|early_exit/.*"
    "|preload/.*"
    "|placement/.*/coactive)$"
)
"""Labels that are measured unless --only names others."""
PAPER_ROWS = (
    ("fusion, one layer (from the paper)", "up to 41.8x over PyTorch, one branch after another"),
    ("of that, tuned kernels and concurrency (from the paper)", "13.1x and 3.18x"),
    ("SwitchTransformer (from the paper)", "3.63x over PyTorch, 3.33x over Tutel"),
    ("LiveSR (from the paper)", "up to 8.62x"),
    ("TaskMoE placement (from the paper)", "1.34x, -42 .. -87 % traffic between GPUs"),
    ("MSDNet (from the paper)", "up to 11.7x"),
    ("DynamicRouting (from the paper)", "up to 1.7x; preloading 1.97x, -43.5 % memory"),
)
"""Brainstorm, 6, on A100 and V100."""


def run(only: str, say: Say) -> Iterator[dict[str, object]]:
    """Measure what matches the regular expression `only`; yield the rows."""
    silence_tuning_hint()
    pattern = re.compile(only or DEFAULT)
    for measure in EXPERIMENTS.values():
        yield from measure(pattern, say)


def table(rows: Sequence[Mapping[str, object]]) -> str:
    """Return the rows as text, with the paper's figures below."""
    paper = "\n".join(f"{name}: {text}" for name, text in PAPER_ROWS)
    return f"{format_rows(rows)}\n\n{paper}"
