"""`bench place --memory`: what it costs, and gains, to count memory by lifetime.

Each solver solves each graph by both rules of memory: by the static one alone, under which nothing
is freed (`model/memory_use/memory.py`), and by lifetime (`model/memory_use/live_memory.py`), which
is what all commands do. The memories are filled to 75 % by the static rule. Every (graph, solver)
pair has a process of its own, in which the rules take turns after one turn that does not count; a
slowdown is the median of the ratios within turns, of processor time. Solvers that go on as long as
they may get iterations (`_ITERATIONS`), so that both rules have equal work. A row has the keys

    graph, tasks, solver, static, lifetime, ratio, static_seconds, lifetime_seconds, slowdown,
    turns, note

`static` and `lifetime` are makespans in ns, None where there is no plan; ratio = lifetime / static.
A process that fails becomes a note.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from heteroplace.bench.suites.catalogue import Instance, get_instance, instances, select
from heteroplace.bench.suites.clusters import fill_memories
from heteroplace.errors import HeteroPlaceError
from heteroplace.model.check import check_plan
from heteroplace.report.tables import format_table
from heteroplace.solve import get_solver
from heteroplace.solve.feasibility import overflow
from heteroplace.solve.problem import Problem, SolveOptions
from heteroplace.stats import median

FILL = 0.75
"""Part of all memories that the graph needs by the static rule."""
SOLVERS = (
    *("heft", "etf", "m-etf", "m-sct", "order-place", "adjusting-placement", "celeritas", "metis"),
    *("sa", "ea", "cross-entropy", "search", "lns", "split", "cpsat", "moirai", "auto"),
)
"""Without `--solvers`."""
GRAPHS = (
    *("rwnn/er32x1", "rwnn/er10x5", "rwnn/er10x10", "layered/1000"),
    *("moirai/gpt3-330m/inter", "moirai/gpt3-330m/intra"),
)
"""Without `--only`, and those of `published/` for latency, if they are there."""
_PUBLISHED = r"^published/(.*-latency|googlenet|example-1)$"
_ITERATIONS: Mapping[str, int] = {
    **dict.fromkeys(("search", "auto", "lns", "split", "cpsat"), 5_000),
    **dict.fromkeys(("sa", "ea", "cross-entropy"), 1_000),
    "moirai": 200,
}
"""`SolveOptions.iterations` of solvers that else take all the time there is."""
_LIMIT_S = 300.0
"""Of one solve; what it ends is not compared."""
_LEAST_TURNS, _MOST_TURNS = 3, 15
_ENOUGH_S = 2.0
"""Processor time of all turns after which there are no more."""
_LARGEST_SLOWDOWN = 1.2
_NOTE_CHARACTERS = 80
_NOT_COMPARED = dict.fromkeys(("ratio", "static_seconds", "lifetime_seconds", "slowdown")) | {
    "turns": 0
}

Row = dict[str, object]
Say = Callable[[str], None]


def memory_rows(only: str | None, solvers: Sequence[str], seed: int, say: Say) -> Iterator[Row]:
    """Run the solvers by both rules; yield the rows. See the module for the keys.

    Raises
    ------
    SolverError
        A solver's name is unknown, or one of them serves only several items.
    """
    names = solvers or SOLVERS
    for name in names:
        get_solver(name).check(SolveOptions(seed=seed))
    if only is None:
        known = instances()
        chosen = [known[name] for name in GRAPHS] + select(_PUBLISHED)
    else:
        chosen = select(only)
    return _rows_of(chosen, names, seed, say)


def _rows_of(
    chosen: Sequence[Instance], names: Sequence[str], seed: int, say: Say
) -> Iterator[Row]:
    for instance in chosen:
        for solver in names:
            row = _in_own_process(instance.name, solver, seed)
            say(f"{instance.name}: {solver}: {_summary(row)}")
            yield row


def memory_table(rows: list[Row]) -> str:
    """Return the rows as text, and a sentence on where counting by lifetime does not pay."""
    headers = ["graph", "tasks", "solver", "static ms", "lifetime ms", "ratio"]
    headers += ["static s", "lifetime s", "slowdown", "note"]
    cells = [
        [
            str(row["graph"]),
            _number(row["tasks"], "{}", 1),
            str(row["solver"]),
            *(_number(row[rule], "{:.3f}", 1e-6) for rule in ("static", "lifetime")),
            _number(row["ratio"], "{:.4f}"),
            *(_number(row[f"{rule}_seconds"], "{:.4f}") for rule in ("static", "lifetime")),
            _number(row["slowdown"], "{:.2f}"),
            str(row["note"])[:_NOTE_CHARACTERS],
        ]
        for row in rows
    ]
    return "\n\n".join((format_table(headers, cells, "<><>>>>>><"), _faults(rows)))


def _faults(rows: Sequence[Row]) -> str:
    longer = [_name(row) for row in rows if _is_above(row["ratio"], 1.0)]
    lost = [_name(row) for row in rows if row["static"] and not row["lifetime"]]
    slow = [_name(row) for row in rows if _is_above(row["slowdown"], _LARGEST_SLOWDOWN)]
    compared = sum(row["slowdown"] is not None for row in rows)
    return (
        f"by lifetime, of {compared} solves: {_counted(longer)} longer, {_counted(lost)} without a "
        f"plan that the static rule has, {_counted(slow)} more than {_LARGEST_SLOWDOWN} x slower"
    )


def compare_rules(problem: Problem, solver: str, options: SolveOptions) -> Row:
    """Solve by both rules in turns; see the module for the keys, of which the graph is missing.

    Memories are as `problem` has them.
    """
    problems = {"static": replace(problem, frees_tensors=False), "lifetime": problem}
    makespans: dict[str, int | None] = {}
    seconds: dict[str, list[float]] = {rule: [] for rule in problems}
    note = ""
    for rule, one in problems.items():
        _ = one.native  # made once, as it is for both alike
        begin = time.perf_counter()
        try:
            makespans[rule] = _solve(one, solver, options)
        except HeteroPlaceError as refusal:
            makespans[rule] = None
            note = note or f"{rule}: {type(refusal).__name__}: {refusal}".partition("\n")[0]
        if time.perf_counter() - begin >= options.time_limit_s:
            note = note or f"{rule}: ended by the limit of {options.time_limit_s:g} s"
    row: Row = {"tasks": len(problem.graph.tasks), "solver": solver, **makespans}
    static, lifetime = makespans["static"], makespans["lifetime"]
    if static is None or lifetime is None or note:
        return row | _NOT_COMPARED | {"note": note}
    while not _is_enough(seconds):
        for rule, one in problems.items():
            begin = time.process_time()
            get_solver(solver).solve(one, options)
            seconds[rule].append(time.process_time() - begin)
    ratios = [
        live / max(fixed, 1e-6)
        for live, fixed in zip(seconds["lifetime"], seconds["static"], strict=True)
    ]
    return row | {
        "ratio": round(lifetime / max(1, static), 6),
        "static_seconds": round(median(seconds["static"]), 5),
        "lifetime_seconds": round(median(seconds["lifetime"]), 5),
        "slowdown": round(median(ratios), 3),
        "turns": len(ratios),
        "note": note,
    }


def _solve(problem: Problem, solver: str, options: SolveOptions) -> int:
    """The makespan of its plan in ns. The plan is checked by the rule of the problem."""
    found = get_solver(solver).solve(problem, options)
    check_plan(problem.graph, problem.cluster, problem.costs, found.plan)
    if not problem.frees_tensors and any(overflow(problem, found.plan.steps)):
        raise HeteroPlaceError("its plan fits by lifetime only")
    return found.objective_ns


def _is_enough(seconds: Mapping[str, list[float]]) -> bool:
    turns = len(seconds["static"])
    spent = sum(sum(times) for times in seconds.values())
    return turns >= _MOST_TURNS or (turns >= _LEAST_TURNS and spent >= _ENOUGH_S)


def _in_own_process(instance: str, solver: str, seed: int) -> Row:
    command = [sys.executable, "-m", __name__, instance, solver, str(seed)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        last = " / ".join(done.stderr.strip().splitlines()[-3:])
        failed = dict.fromkeys(("tasks", "static", "lifetime")) | _NOT_COMPARED
        note = f"its process ended with {done.returncode}: {last}"
        return {"graph": instance, "solver": solver, **failed, "note": note}
    row: Row = json.loads(done.stdout.splitlines()[-1])
    return row


def _main() -> None:
    instance, solver, seed = sys.argv[1:]
    problem = get_instance(instance).build()
    sized = replace(problem, cluster=fill_memories(problem.cluster, problem.graph, FILL))
    options = SolveOptions(
        time_limit_s=_LIMIT_S, iterations=_ITERATIONS.get(solver), seed=int(seed), threads=1
    )
    print(json.dumps({"graph": instance} | compare_rules(sized, solver, options)))


def _summary(row: Row) -> str:
    if row["ratio"] is None:
        return str(row["note"])
    return f"makespan {row['ratio']} and time {row['slowdown']} of the static rule's"


def _is_above(value: object, limit: float) -> bool:
    return isinstance(value, float) and value > limit


def _name(row: Row) -> str:
    return f"{row['solver']} on {row['graph']}"


def _counted(names: Sequence[str]) -> str:
    return f"{len(names)} ({', '.join(names)})" if names else "0"


def _number(value: object, form: str, factor: float = 1.0) -> str:
    return form.format(value * factor) if isinstance(value, int | float) else "-"


if __name__ == "__main__":
    _main()
