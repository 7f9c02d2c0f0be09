"""Answers -> text for a terminal."""

from __future__ import annotations

from heteroplace.errors import HeteroPlaceError
from heteroplace.model.answers import MoreMemory, PlanDiff, TaskAnswer, Totals, WhatIf
from heteroplace.model.units import format_bytes, format_ns
from heteroplace.report.headline import solution_headline
from heteroplace.report.tables import format_table

_MAX_ROWS = 40
_MAX_LISTED = 8


def text_of(answer: object) -> str:
    """Return an answer as text, without a line end behind it."""
    if isinstance(answer, TaskAnswer):
        return _task_text(answer)
    if isinstance(answer, PlanDiff):
        return _diff_text(answer)
    if isinstance(answer, WhatIf):
        return _what_if_text(answer)
    if isinstance(answer, MoreMemory):
        return _more_memory_text(answer)
    raise HeteroPlaceError(f"{type(answer).__name__} is no answer to a question about a solution")


def _task_text(answer: TaskAnswer) -> str:
    unit = "time per item" if answer.is_per_item else "run"
    layers = f", layer {', '.join(answer.layers[:_MAX_LISTED])}" if answer.layers else ""
    lines = [
        f"{answer.task} ({answer.op}{layers})",
        f"on {'+'.join(answer.devices)} from {format_ns(answer.start_ns)} to "
        f"{format_ns(answer.finish_ns)} of a {unit} of {format_ns(answer.objective_ns)}",
    ]
    if answer.reason:
        lines.append(f"why: {answer.reason}")
    if answer.saved_ns is not None:
        share = answer.saved_ns / answer.objective_ns if answer.objective_ns else 0.0
        lines.append(
            f"if it took no time, the {unit} would be {format_ns(answer.saved_ns)} shorter "
            f"({share:.1%})"
            if answer.saved_ns
            else f"if it took no time, the {unit} would be as long: other work decides"
        )
    rows = []
    for choice in answer.choices:
        rows.append(
            [
                choice.device,
                "-" if choice.run_ns is None else format_ns(choice.run_ns),
                choice.source,
                "-" if choice.objective_ns is None else format_ns(choice.objective_ns),
                "here" if choice.is_chosen else _change(choice.change_ns, answer.objective_ns),
                choice.note,
            ]
        )
    heads = ["device", "its time", "source", f"the {unit} then", "moving it", "note"]
    parts = ["\n".join(lines), format_table(heads, rows, "<><>><")]
    if answer.waits_for:
        first, *others = answer.waits_for
        waited = [f"it waits for {first.what} until {format_ns(first.ready_ns)}"]
        waited += [f"  {m.what}: ready at {format_ns(m.ready_ns)}" for m in others[:_MAX_LISTED]]
        parts.append("\n".join(waited))
    else:
        parts.append("it waits for nothing: all it needs is there from the start")
    parts.append(_readers_text(answer))
    return "\n\n".join(parts)


def _readers_text(answer: TaskAnswer) -> str:
    if not answer.readers:
        return "nothing waits for it: what it makes is an output of the model"
    lines = ["what waits for it:"]
    for reader in answer.readers[:_MAX_LISTED]:
        when = "as soon as it is there"
        if reader.waited_ns:
            when = f"{format_ns(reader.waited_ns)} after it is there, as other things come first"
        lines.append(
            f"  {reader.task} on {reader.device} starts at {format_ns(reader.start_ns)}, {when}"
        )
    left_out = len(answer.readers) - _MAX_LISTED
    return "\n".join(lines + ([f"  ... and {left_out} more"] if left_out > 0 else []))


def _change(change_ns: int | None, of_ns: int) -> str:
    if change_ns is None:
        return "-"
    if change_ns == 0:
        return "no change"
    share = f" ({change_ns / of_ns:+.1%})" if of_ns else ""
    return f"{'+' if change_ns > 0 else ''}{format_ns(change_ns)}{share}"


def _diff_text(answer: PlanDiff) -> str:
    was, now = answer.was, answer.now
    rows = [
        ["objective", *_pair(was.objective_ns, now.objective_ns)],
        ["makespan", *_pair(was.makespan_ns, now.makespan_ns)],
        ["lower bound", *_pair(was.bound_ns, now.bound_ns)],
        [
            "copies",
            str(was.num_copies),
            str(now.num_copies),
            f"{now.num_copies - was.num_copies:+}",
        ],
        ["bytes copied", *_sizes(was.copied_bytes, now.copied_bytes)],
        *_tasks(was, now),
        *_peaks(was, now),
    ]
    parts = [f"note: {note}" for note in answer.notes]
    parts.append(format_table(["", "before", "now", "change"], rows, "<>>>"))
    summary = [
        f"tasks moved: {len(answer.moved)}, run in another order: {answer.num_reordered}",
        f"{len(answer.added)} new" if answer.added else "",
        f"{len(answer.dropped)} gone" if answer.dropped else "",
    ]
    parts.append(", ".join(filter(None, summary)))
    if answer.moved:
        cells = [
            [m.task, "+".join(m.was), "+".join(m.now), format_ns(m.was_ns), format_ns(m.now_ns)]
            for m in answer.moved[:_MAX_ROWS]
        ]
        parts.append(format_table(["task", "was on", "is on", "took", "takes"], cells, "<<<>>"))
        if len(answer.moved) > _MAX_ROWS:
            parts.append(f"... and {len(answer.moved) - _MAX_ROWS} more")
    return "\n".join(parts)


def _pair(was_ns: int, now_ns: int) -> list[str]:
    return [format_ns(was_ns), format_ns(now_ns), _change(now_ns - was_ns, was_ns)]


def _sizes(was: int, now: int) -> list[str]:
    sign = "+" if now >= was else "-"
    return [format_bytes(was), format_bytes(now), sign + format_bytes(abs(now - was))]


def _tasks(was: Totals, now: Totals) -> list[list[str]]:
    old, new = dict(was.tasks_of), dict(now.tasks_of)
    return [
        [f"tasks on {name}", *(str(each.get(name, "-")) for each in (old, new)),
         f"{new.get(name, 0) - old.get(name, 0):+}"]
        for name in dict.fromkeys([*old, *new])
    ]  # fmt: skip


def _peaks(was: Totals, now: Totals) -> list[list[str]]:
    old, new = dict(was.peak_bytes), dict(now.peak_bytes)
    return [
        [f"memory of {name}", *_sizes(old.get(name, 0), new.get(name, 0))]
        for name in dict.fromkeys([*old, *new])
    ]


def _what_if_text(answer: WhatIf) -> str:
    unit = " per item" if answer.is_per_item else ""
    lines = [f"changed: {change}" for change in answer.changes]
    rows = [["as it is", format_ns(answer.before_ns) + unit, "", ""]]
    times = [("the same plan", answer.same_ns, answer.same_note)]
    if answer.solution is not None:
        times.append(("placed again", answer.solution.objective_ns, ""))
    for what, ns, note in times:
        if ns is None:
            rows.append([what, "not possible", "", note])
        else:
            rows.append([what, format_ns(ns) + unit, _change(ns - answer.before_ns,
                         answer.before_ns), note])  # fmt: skip
    lines.append(format_table(["", "simulated", "change", "note"], rows, "<>><"))
    if answer.solution is None:
        lines.append("nothing was solved again; --solve (solve=True) says what a new plan gains")
    else:
        lines.append(f"placed again: {solution_headline(answer.solution)}")
    return "\n".join(lines)


def _more_memory_text(answer: MoreMemory) -> str:
    before_ns, now_ns = answer.before_ns, answer.objective_ns
    rows = [
        ["as it is", format_ns(before_ns), "", format_ns(answer.before_bound_ns)],
        [
            "placed again",
            format_ns(now_ns),
            _change(now_ns - before_ns, before_ns),
            format_ns(answer.bound_ns),
        ],
    ]
    memories = [
        f"memory {name}: {format_bytes(num_bytes)} of weights and state, "
        f"{format_bytes(answer.value_bytes[name])} of tensors"
        for name, num_bytes in answer.weight_bytes.items()
    ]
    sizes = f"{format_bytes(answer.now_bytes)} instead of {format_bytes(answer.was_bytes)}"
    return "\n".join(
        [
            f"changed: memory {answer.memory}: {sizes}",
            format_table(["", "all calls", "change", "lower bound"], rows, "<>>>"),
            *memories,
        ]
    )
