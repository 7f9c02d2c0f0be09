"""What `heteroplace shard` has found -> its tables, and the options of other frameworks.

Times and peaks are simulated unless the header of a column says "measured".
"""

from __future__ import annotations

from dataclasses import asdict

from heteroplace.cli.shared import plural
from heteroplace.model.units import format_bytes, format_ns
from heteroplace.parts.parallel.shard_model import Found
from heteroplace.parts.parallel.sharding.sharded_plan import ShardedModel
from heteroplace.parts.parallel.transforms.search_rows import EXCLUDED, SearchRow, pure, ranked
from heteroplace.report.tables import format_table

_HEADERS = ("D/T/P/K", "simulated", "items/s", "peak / limit", "bubble", "comm.", "")
_ALIGN = "<>>>>><"


def text(chosen_sharding: Found, top: int) -> str:
    """Return all that is printed: the ranking, pure degrees, what does not fit, the winner."""
    best = ranked(chosen_sharding.grid.rows)
    winner = chosen_sharding.grid.best.strategy.degrees
    shown = best[:top]
    names = {"data": "pure D", "tensor": "pure T", "pipeline": "pure P"}
    notes: dict[SearchRow, list[str]] = {row: [] for row in best}
    several = [row for row in best if row.degrees.num_devices > 1]
    for name, row in pure(several).items():
        if row is not None:
            notes[row].append(f"best {names[name]}")
    cells = [_cells(row, chosen_sharding, notes[row], winner == row.degrees) for row in shown]
    cells += [_cells(row, chosen_sharding, notes[row], False) for row in best[top:] if notes[row]]
    headers, align = list(_HEADERS), _ALIGN
    if chosen_sharding.grid.measured_ns:
        headers.insert(2, "measured")
        align = f"{align[:2]}>{align[2:]}"
    parts = [format_table(headers, cells, align), _rest(chosen_sharding, len(shown), top)]
    parts.append(_winner(chosen_sharding.grid.best, chosen_sharding))
    return "\n\n".join(part for part in parts if part)


def _cells(row: SearchRow, chosen_sharding: Found, notes: list[str], is_winner: bool) -> list[str]:
    assert row.makespan_ns is not None
    cells = [
        str(row.degrees),
        format_ns(row.makespan_ns),
        f"{row.items_per_second:,.0f}",
        f"{format_bytes(row.peak_bytes)} / {format_bytes(row.limit_bytes)}",
        f"{row.bubble:.0%}",
        f"{row.communication:.0%}",
        ", ".join(["chosen"] * is_winner + notes),
    ]
    if chosen_sharding.grid.measured_ns:
        measured = chosen_sharding.grid.measured_of(row.degrees)
        cells.insert(2, "-" if measured is None else format_ns(measured))
    return cells


def _rest(chosen_sharding: Found, shown: int, top: int) -> str:
    """How many rows are not shown, and why others are none."""
    fitting = len(ranked(chosen_sharding.grid.rows))
    lines = [f"{fitting - shown} more fit"] if fitting > shown else []
    over = [row for row in chosen_sharding.grid.rows if row.is_simulated and not row.fits]
    if over:
        least = min(over, key=lambda row: row.peak_bytes)
        lines.append(
            f"{len(over)} do not fit, e.g. {least.degrees}: {format_bytes(least.peak_bytes)} of "
            f"{format_bytes(least.limit_bytes)}"
        )
    excluded = sum(row.method == EXCLUDED for row in chosen_sharding.grid.rows)
    if excluded:
        lines.append(f"{excluded} are slower by their lower bound")
    refused = [
        row for row in chosen_sharding.grid.rows if not row.is_simulated and row.method != EXCLUDED
    ]
    lines += [f"{row.degrees} cannot be: {row.reason}" for row in refused[:top]]
    return "\n".join(lines)


def _winner(model: ShardedModel, chosen_sharding: Found) -> str:
    degrees, plan = model.strategy.degrees, model.solution.plan
    used = ", ".join(model.solution.devices_used)
    kind = f"training, {model.options.optimizer}" if model.options.is_training else "inference"
    lines = [
        f"chosen: {degrees} on {used}; {kind} of {model.options.batch} rows, microbatches of "
        f"{degrees.rows(model.options.batch)}, schedule {model.strategy.schedule}"
        f"{', weight gradients at the end' * model.strategy.sums_at_end}",
        f"plan: {plural(len(plan.steps), 'step')}, {plural(len(plan.collectives), 'collective')}, "
        f"{len(plan.copies):,} {'copy' if len(plan.copies) == 1 else 'copies'}",
        f"Megatron-LM: {megatron_options(model)}",
    ]
    if chosen_sharding.untrained:
        lines.append(f"not trained: {'; '.join(chosen_sharding.untrained)}")
    if model.coverage.text():
        lines.append(model.coverage.text())
    return "\n".join(lines)


def megatron_options(model: ShardedModel) -> str:
    """Return the strategy as options of Megatron-LM; D follows from its number of processes."""
    strategy, degrees = model.strategy, model.strategy.degrees
    batch = model.options.batch
    parts = [
        f"--tensor-model-parallel-size {degrees.tensor}",
        f"--pipeline-model-parallel-size {degrees.pipeline}",
        f"--micro-batch-size {degrees.rows(batch)}",
        f"--global-batch-size {batch}",
    ]
    if strategy.zero:
        sharding = {1: "optim", 2: "optim_grads", 3: "optim_grads_params"}[strategy.zero]
        parts.append(f"--use-distributed-optimizer --data-parallel-sharding-strategy {sharding}")
    if strategy.recompute_every:
        parts.append(
            "--recompute-granularity full --recompute-method uniform "
            f"--recompute-num-layers {strategy.recompute_every}"
        )
    return " ".join(parts)


def to_json(chosen_sharding: Found) -> dict[str, object]:
    """Return all rows and the winner as one JSON object."""
    rows = []
    for row in chosen_sharding.grid.rows:
        row_fields = asdict(row)
        row_fields["degrees"] = str(row.degrees)
        row_fields |= {"fits": row.fits, "items_per_second": row.items_per_second}
        row_fields["measured_ns"] = chosen_sharding.grid.measured_of(row.degrees)
        rows.append(row_fields)
    return {
        "rows": rows,
        "chosen": str(chosen_sharding.grid.best.strategy.degrees),
        "simulated_ns": chosen_sharding.grid.best.solution.predicted_ns,
        "expected_ns": chosen_sharding.grid.best.solution.expected_ns,
        "weight_gradients": chosen_sharding.grid.best.weight_gradients,
        "megatron": megatron_options(chosen_sharding.grid.best),
    }
