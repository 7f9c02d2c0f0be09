"""Time of every kernel call in a run of the whole network on one device.

Kernel times add up only when each kernel runs where it will run, with the caches that its
neighbours leave behind: measured alone with warm caches they are up to 11 % too short, with cold
ones up to 72 % too long.
"""

from __future__ import annotations

from collections import defaultdict, deque
from dataclasses import dataclass

from heteroplace.lower.kernels import KernelCalls
from heteroplace.measure.rounds import Rounds
from heteroplace.model.graph import TaskGraph
from heteroplace.native.execute import Executor

_CPU_RUNS = 5


@dataclass(frozen=True)
class SiteTimes:
    """Times of one kernel call of a network, in ns; see `Measurement`."""

    wall_ns: int
    spread_ns: int
    cpu_ns: int
    num_samples: int


def site_times(rounds: Rounds, calls: KernelCalls, graph: TaskGraph) -> dict[int, SiteTimes]:
    """Return the times of the calls of a network by call, from rounds that were measured.

    Processor times come from some more runs: reading that clock takes longer than a short kernel.
    """
    program = rounds.program
    site_of = sites(program.executor, calls, graph)
    cpu_ns: dict[int, int] = defaultdict(int)
    # Work elsewhere than on cores takes no processor time that could be told apart.
    if all(kind == "cpu" for kind in program.queue_kinds):
        times = program.executor.profile_cpu(min(_CPU_RUNS, rounds.num_runs))
        for site, time_ns in zip(site_of, times, strict=True):
            if site is not None:
                cpu_ns[site] += int(time_ns)
    low, median, high = rounds.quartiles()
    return {
        site: SiteTimes(
            round(median[index]),
            round((high[index] - low[index]) / 2),
            cpu_ns[site],
            rounds.num_samples,
        )
        for index, site in enumerate(site_of)
        if site is not None and program.task_of[index] is not None
    }


def sites(executor: Executor, calls: KernelCalls, graph: TaskGraph) -> list[int | None]:
    """Return for each instruction the call that it carries out, or helps with; None: a copy.

    Steps of the plan are tasks. A task's calls of one kernel keep the order of its calls, and the
    calls that a worker joins come in the order in which they are led.
    """
    instructions = executor.instructions
    task_id = {task.name: index for index, task in enumerate(graph.tasks)}
    waiting: dict[tuple[int, str], deque[int]] = defaultdict(deque)
    own = {call.kernel_in_place: call.kernel for call in calls.calls if call.kernel_in_place}
    for index, call in enumerate(calls.calls):
        waiting[task_id[call.task], call.kernel].append(index)
    sites_of_instructions: list[int | None] = [None] * len(instructions)
    led: dict[int, list[int]] = defaultdict(list)
    for index, at in enumerate(instructions):
        if at.kernel is not None:
            call_id = waiting[at.step, own.get(at.kernel, at.kernel)].popleft()
            sites_of_instructions[index] = call_id
            led[at.step].append(call_id)
    joined: dict[tuple[int, int], int] = defaultdict(int)
    for index, at in enumerate(instructions):
        if at.kernel is None and at.step in led:
            position = joined[at.queue, at.step]
            joined[at.queue, at.step] += 1
            if position < len(led[at.step]):
                sites_of_instructions[index] = led[at.step][position]
    return sites_of_instructions
