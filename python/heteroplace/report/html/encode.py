"""The content of a page -> one compact value for JSON: columns, not objects, as graphs are large.

The scripts in `assets` read it; `assets/data.js` names what the columns are for. What grows with
the plan is written as differences to what stands before, which deflate to a third.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from heteroplace.model.cluster import Cluster
from heteroplace.model.cost import CostTable
from heteroplace.model.graph import TaskGraph
from heteroplace.model.plan import Collective, Copy, Load, Plan, Run, Step, devices_of, guard_of
from heteroplace.model.step_values import channels_of, collective_bytes, moved_bytes
from heteroplace.model.tasks import Tensor, main_op
from heteroplace.model.timeline import Span, Timeline
from heteroplace.report.compare import compare
from heteroplace.report.dependencies import critical_path, critical_shares, data_pairs
from heteroplace.report.divergence import divergences
from heteroplace.report.html.content import Alternative, MeasuredTime, PageContent
from heteroplace.report.html.layer_rows import layer_tree
from heteroplace.report.layer_column import layer_label
from heteroplace.report.tables import cost_sources_line
from heteroplace.stats import spearman

MAX_CURVE_POINTS = 1000
"""Of a memory's curve: more than a screen has columns."""
_KINDS = (Run, Copy, Load, Collective)
_Json = dict[str, Any]


def encode(content: PageContent) -> _Json:
    """Return what `json.dumps` can write."""
    solution = content.solution
    graph, cluster, plan = solution.graph, solution.cluster, solution.plan
    value: _Json = {
        "sources": cost_sources_line(solution.costs),
        "graph": graph.name,
        "cluster": _cluster(cluster),
        "tasks": _tasks(graph, plan),
        "tensors": _tensors(graph),
        "costs": _costs(solution.costs),
        "plan": _plan(graph, cluster, plan),
        "pairs": _pairs(graph, cluster, plan),
        "tree": layer_tree(graph),
        "runs": [_run("predicted", content.predicted, content)],
        "result": _result(content),
        "memory": [_thinned(curve) for curve in content.memory],
        "program_memory": [
            [use.weights_bytes, use.values_bytes, use.workspace_bytes]
            for use in content.program_memory
        ],
        "moves": {
            "tasks": list(content.move_tasks),
            "ns": [list(row) for row in content.move_ns],
            "baseline": content.move_baseline_ns,
        },
        "progress": [
            [point.elapsed_ns, point.phase, point.best_ns, point.bound_ns]
            for point in content.progress
        ],
        "peaks": list(content.peak_flops),
        "alternatives": [_alternative(one) for one in content.alternatives],
        "about": [list(one) for one in content.about],
        "texts": [list(text) for text in content.texts],
        "properties": [list(one) for one in content.properties],
        "command": content.command,
        "missing": content.missing,
    }
    measured = content.measured
    if measured is not None and measured.timeline is not None:
        value["runs"].append(_run("measured", measured.timeline, content))
        value["accuracy"] = _accuracy(content, measured.timeline)
    if measured is not None:
        value["measured"] = {
            "time": None if measured.time is None else _time(measured.time),
            "in_turns": None if measured.in_turns is None else _time(measured.in_turns),
            "peers": [_time(peer) for peer in measured.peers],
            "queues": [
                [use.queue, use.busy_ns, use.wait_ns, use.wall_ns] for use in measured.queues
            ],
            "in_flight": measured.requests_in_flight,
            "others_cores": measured.others_cores,
        }
    return value


def _result(content: PageContent) -> _Json:
    solution = content.solution
    expected = solution.expected
    return {
        "makespan": solution.predicted_ns,
        "bound": solution.bound_ns,
        "item": solution.item_ns,
        "items": solution.plan.items,
        "expected": None
        if expected is None
        else [expected.expected_ns, expected.low_ns, expected.high_ns],
        "singles": [list(single) for single in solution.predicted_singles],
        "candidates": [list(candidate) for candidate in solution.candidates],
        "used": list(solution.devices_used),
        "origin": solution.plan.origin,
        "loads": list(content.loads_ns),
    }


def _time(time: MeasuredTime) -> list[object]:
    return [time.name, time.median_ns, time.low_ns, time.high_ns, time.of, time.speedup]


def _alternative(one: Alternative) -> _Json:
    return {
        "label": one.label,
        "changes": list(one.changes),
        "ns": one.objective_ns,
        "devices": list(one.devices),
        "reason": one.reason,
    }


def _cluster(cluster: Cluster) -> _Json:
    hosts = cluster.memory_hosts
    channels = {name: number for number, name in enumerate(cluster.channels)}
    return {
        "name": cluster.name,
        "devices": [
            [device.name, device.kind, device.target, device.memory] for device in cluster.devices
        ],
        "memories": [
            [memory.name, memory.bytes, host]
            for memory, host in zip(cluster.memories, hosts, strict=True)
        ],
        "links": [
            [
                link.name,
                link.src,
                link.dst,
                link.bytes_per_second,
                link.latency_ns,
                channels[link.channel],
            ]
            for link in cluster.links
        ],
        "channels": list(cluster.channels),
        "resources": list(cluster.resources),
        "host": cluster.host,
    }


def _tasks(graph: TaskGraph, plan: Plan) -> _Json:
    ops = {task.op: main_op(task.op.split("+")) for task in graph.tasks}
    numbers = {op: number for number, op in enumerate(ops)}
    devices = plan.devices_of_tasks(len(graph.tasks))
    value: _Json = {
        "name": [task.name for task in graph.tasks],
        "layer": [layer_label([task]) for task in graph.tasks],
        "ops": list(ops),
        "op_types": list(ops.values()),
        "op": [numbers[task.op] for task in graph.tasks],
        "device": [list(ids) if len(ids) != 1 else ids[0] for ids in devices],
        "reason": list(plan.reasons),
        "flops": [task.flops for task in graph.tasks],
        "weights": [
            task.weight_bytes + sum(num_bytes for _, num_bytes in task.weights)
            for task in graph.tasks
        ],
        "members": [
            list(task.members) if task.members != (task.name,) else [] for task in graph.tasks
        ],
    }
    limits = {
        str(index): {
            key: ids
            for key, ids in (
                ("only", task.devices and list(task.devices)),
                ("together", task.together),
                ("branch", task.branch and list(task.branch)),
            )
            if ids
        }
        for index, task in enumerate(graph.tasks)
    }
    value["limits"] = {index: ids for index, ids in limits.items() if ids}
    return value


def _tensors(graph: TaskGraph) -> _Json:
    producers = [-1 if tensor.producer is None else tensor.producer for tensor in graph.tensors]
    # A graph of sizes alone has no types.
    types = [
        f"{tensor.dtype} [{','.join(map(str, tensor.shape))}]" if tensor.dtype else ""
        for tensor in graph.tensors
    ]
    ids = {text: number for number, text in enumerate(dict.fromkeys(types))}
    return {
        "types": list(ids),
        "type": [ids[text] for text in types],
        "name": [_tensor_name(graph, tensor) for tensor in graph.tensors],
        "producer": _deltas(producers),
        "bytes": [tensor.bytes for tensor in graph.tensors],
        "consumers": [
            _deltas(tensor.consumers, producer)
            for tensor, producer in zip(graph.tensors, producers, strict=True)
        ],
    }


def _tensor_name(graph: TaskGraph, tensor: Tensor) -> str | int:
    """Its name; or less, where it is called by its maker: "" or the number of the output."""
    if tensor.producer is None:
        return tensor.name
    maker = graph.tasks[tensor.producer].name
    if tensor.name == maker:
        return ""
    return tensor.index if tensor.name == f"{maker}.{tensor.index}" else tensor.name


def _deltas(values: Iterable[int], before: int = 0) -> list[int]:
    differences = []
    for value in values:
        differences.append(value - before)
        before = value
    return differences


def _pairs(graph: TaskGraph, cluster: Cluster, plan: Plan) -> list[list[int]]:
    """The readers, as differences, and how far before each its maker is."""
    pairs = data_pairs(graph, cluster, plan)
    return [_deltas(reader for _, reader in pairs), [reader - maker for maker, reader in pairs]]


def _costs(costs: CostTable) -> _Json:
    return {
        "batches": list(costs.batches),
        "ns": [list(column) for column in costs.ns],
        "detail": [list(column) for column in costs.detail_ids],
        "details": [[one.source, one.spread_ns, one.reason, one.error] for one in costs.details],
    }


def _plan(graph: TaskGraph, cluster: Cluster, plan: Plan) -> _Json:
    items: dict[tuple[int, ...], int] = {}
    guards: dict[str, int] = {"": 0}
    columns: dict[str, list[Any]] = {
        name: [] for name in ("kind", "subject", "place", "bytes", "items", "guard", "channels")
    }
    of_channel = {name: number for number, name in enumerate(cluster.channels)}
    for step in plan.steps:
        subject, place, num_bytes = _step(graph, step)
        guard = guard_of(step)
        text = ""
        if guard is not None:
            when = "" if guard.when == "active" else f", {guard.when}"
            text = f"{graph.routers[guard.router].name}: branch {guard.branch}{when}"
        columns["kind"].append(_KINDS.index(type(step)))
        columns["subject"].append(subject)
        columns["place"].append(place)
        columns["bytes"].append(num_bytes)
        columns["items"].append(items.setdefault(step.items, len(items)))
        columns["guard"].append(guards.setdefault(text, len(guards)))
        used = [of_channel[name] for name in channels_of(graph, cluster, step)]
        columns["channels"].append(used)
    return {
        **columns,
        "item_sets": [list(item_set) for item_set in items],
        "guards": list(guards),
    }


def _step(graph: TaskGraph, step: Step) -> tuple[Any, Any, int]:
    """What a step is about, where it is or goes, and the bytes that it moves; -1: its tensor."""
    if isinstance(step, Run):
        return step.task, step.device, 0
    if isinstance(step, Collective):
        return step.task, list(devices_of(step)), collective_bytes(graph, step)
    num_bytes = moved_bytes(graph, step)
    if isinstance(step, Load):
        return list(step.tasks), [step.src, step.dst], num_bytes
    is_whole = num_bytes == graph.tensors[step.tensor].bytes
    return step.tensor, [step.src, step.dst], -1 if is_whole else num_bytes


def _run(label: str, timeline: Timeline, content: PageContent) -> _Json:
    """A timeline by lanes, in the order of time, and its critical path."""
    solution = content.solution
    graph, cluster, plan = solution.graph, solution.cluster, solution.plan
    lanes = [*(device.name for device in cluster.devices), *cluster.channels]
    numbers = {name: number for number, name in enumerate(dict.fromkeys(lanes))}
    for span in timeline.spans:
        numbers.setdefault(span.resource, len(numbers))
    spans: list[list[Span]] = [[] for _ in numbers]
    for span in sorted(timeline.spans, key=lambda span: (span.start_ns, span.finish_ns, span.step)):
        spans[numbers[span.resource]].append(span)
    path = critical_path(graph, cluster, plan, timeline)
    return {
        "label": label,
        "source": timeline.source,
        "makespan": timeline.makespan_ns,
        "lanes": list(numbers),
        # Of each lane the steps, the pauses before them and how long they take.
        "step": [_deltas(span.step for span in lane) for lane in spans],
        "pause": [_pauses(lane) for lane in spans],
        "length": [[span.finish_ns - span.start_ns for span in lane] for lane in spans],
        "peak": list(timeline.peak_bytes),
        "critical": [[one.step, one.waits_for, one.pause_ns] for one in path],
        "shares": [list(share) for share in critical_shares(path, timeline)],
    }


def _pauses(lane: Sequence[Span]) -> list[int]:
    finishes = [0, *(span.finish_ns for span in lane)]
    return [span.start_ns - before for span, before in zip(lane, finishes, strict=False)]


def _accuracy(content: PageContent, measured: Timeline) -> _Json:
    """Predicted and measured times of steps, and on which device they part."""
    solution = content.solution
    of = solution.graph, solution.cluster, solution.plan, content.predicted, measured
    accuracy = compare(*of)
    devices = []
    parts = divergences(*of)
    for number, device in enumerate(solution.cluster.devices):
        own = [one for one in parts if one.device == number]
        if own:
            sums = [
                *(sum(one.work_ns[side] for one in own) for side in (0, 1)),
                *(sum(one.pause_ns[side] for one in own) for side in (0, 1)),
            ]
            devices.append([device.name, len(own), *sums])
    runs = [row for row in accuracy.steps if row.resource]
    return {
        "step": [row.step for row in accuracy.steps],
        "predicted": [row.predicted_ns for row in accuracy.steps],
        "measured": [row.measured_ns for row in accuracy.steps],
        "rank": spearman([r.predicted_ns for r in runs], [r.measured_ns for r in runs]),
        "devices": devices,
    }


def _thinned(curve: Sequence[tuple[int, int]]) -> list[list[int]]:
    """At most MAX_CURVE_POINTS points that keep each peak."""
    if len(curve) <= MAX_CURVE_POINTS:
        return [list(point) for point in curve]
    size = -(-len(curve) // (MAX_CURVE_POINTS // 2))
    thinned = []
    for start in range(0, len(curve), size):
        part = range(start, min(start + size, len(curve)))
        ends = {max(part, key=lambda i: curve[i][1]), min(part, key=lambda i: curve[i][1])}
        thinned += [list(curve[index]) for index in sorted(ends)]
    return thinned
