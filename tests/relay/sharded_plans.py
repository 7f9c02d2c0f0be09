"""Random networks of lanes that exchange parts, and random plans: any task on any device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random

import numpy as np
import tvm
from host_clusters import FAR_CORE
from item_plans import batch_costs
from relay_models import STOCK_TARGET, cores, module, var, weights
from tvm import relay

from heteroplace.model.check import check_plan
from heteroplace.model.cluster import Cluster, Device, Link, Memory
from heteroplace.model.collectives import collective_kind
from heteroplace.model.graph import TaskGraph
from heteroplace.model.plan import Collective, Copy, Plan, Run, Step
from heteroplace.model.solution import Solution
from heteroplace.relay import collective_ops as ops
from heteroplace.simulate.simulator import simulate

AMPLE = 2**33


def apart_cluster(
    num_devices: int,
    core_of: Callable[[int], int] = lambda number: number,
    engines: int | None = None,
    hosts: Sequence[str] = ("",),
) -> Cluster:
    """One-core devices, each with a memory of its own and links to all others.

    Hosts are dealt out in turn; device 0 is on the one that feeds the model.
    """
    ids = range(num_devices)
    links = [Link(f"l{a}{b}", a, b, 10**9, 1000, f"l{a}{b}") for a in ids for b in ids if a != b]
    devices = [
        Device(
            *(f"d{n}", "cpu", STOCK_TARGET, 0, n, (core_of(n),), hosts[n % len(hosts)]),
            copy_engines=engines,
        )
        for n in ids
    ]
    memories = tuple(Memory(f"ram{n}", AMPLE) for n in ids)
    return Cluster("apart", memories, tuple(devices), tuple(links), 0)


def near_cluster(num_devices: int, engines: int | None = None) -> Cluster:
    """The same on the cores of this machine, of which several devices may share one."""
    own = cores()
    return apart_cluster(num_devices, lambda number: own[number % len(own)], engines)


def far_cluster(
    num_devices: int, num_hosts: int, engines: int | None = None, *, is_pinned: bool = True
) -> Cluster:
    """The same on several hosts; cores that are not here become fake devices, all of them if
    nothing is to be pinned to a core."""
    own = cores() if is_pinned else ()
    names = [f"host{n}" for n in range(num_hosts)]
    return apart_cluster(
        num_devices, lambda n: own[n] if n < len(own) else FAR_CORE + n, engines, names
    )


def taking_batches(cluster: Cluster, largest: int) -> Cluster:
    """The same, whose devices take batches of up to so many items."""
    sizes = tuple(range(1, 1 + largest))
    devices = tuple(replace(device, batch_sizes=sizes) for device in cluster.devices)
    return replace(cluster, devices=devices)


class Lanes:
    """Builds a network of `count` lanes: whole values (one for all lanes), parts, and addends."""

    def __init__(self, random: Random, count: int, rows: int, *, may_cut_rows: bool) -> None:
        self.random, self.count, self.may_cut_rows = random, count, may_cut_rows
        self.x = var("x", (rows, 12))
        self.rows = rows
        self._seed = 0

    def weights(self, *shape: int) -> relay.Constant:
        self._seed += 1
        return weights(*shape, seed=self._seed)

    def extents(self, width: int) -> list[int]:
        """Extents of parts, maybe unlike."""
        found = [width // self.count] * self.count
        if self.count > 1 and self.random.random() < 0.3:
            found[0] += 1
            found[1] -= 1
        found[-1] += width - sum(found)
        return found

    def columns(
        self, whole: relay.Expr, width: int, new: int
    ) -> tuple[list[relay.Expr], list[int]]:
        """Each lane its part of a dense layer."""
        extents = self.extents(new)
        parts = [relay.nn.dense(whole, self.weights(extent, width)) for extent in extents]
        return [self.random.choice((relay.nn.relu, relay.tanh))(part) for part in parts], extents

    def addends(
        self, parts: Sequence[relay.Expr], extents: list[int], new: int
    ) -> list[relay.Expr]:
        """Each lane what its part adds to the next layer."""
        pairs = zip(parts, extents, strict=True)
        return [relay.nn.dense(part, self.weights(new, extent)) for part, extent in pairs]

    def block(self, whole: relay.Expr, width: int) -> tuple[relay.Expr, int]:
        """One or two layers, from a whole value to a whole one."""
        new = self.random.choice((8, 12, 16))
        parts, extents = self.columns(whole, width, new)
        way = self.random.choice(("gather", "root", "reduce", "scatter", "spread", "exchange"))
        if way == "gather":
            return ops.all_gather(parts, 1), new
        if way == "root":
            return ops.broadcast(ops.gather(parts, 1)), new
        out = self.random.choice((8, 12))
        if way == "exchange":
            return self.exchanged(parts, extents, out)
        added = self.addends(parts, extents, out)
        if way == "reduce":
            return relay.nn.relu(ops.all_reduce(added)), out
        cut = self.extents(out)
        if way == "scatter":
            pieces = ops.reduce_scatter(added, 1, cut)
        else:
            pieces = ops.scatter(ops.reduce(added), 1, cut)
        kept = [relay.TupleGetItem(pieces, lane) for lane in range(self.count)]
        return ops.all_gather([relay.tanh(piece) for piece in kept], 1), out

    def exchanged(
        self, parts: Sequence[relay.Expr], extents: list[int], out: int
    ) -> tuple[relay.Expr, int]:
        """Parts of columns -> parts of rows, and a whole value of these."""
        rows = self.extents(self.rows)
        if min(rows) < 1 or not self.may_cut_rows:
            return relay.nn.dense(ops.all_gather(parts, 1), self.weights(out, sum(extents))), out
        pieces = ops.all_to_all(parts, 0, 1, rows)
        made = [
            relay.nn.dense(relay.TupleGetItem(pieces, lane), self.weights(out, sum(extents)))
            for lane in range(self.count)
        ]
        return ops.all_gather(made, 0), out

    def network(self, num_blocks: int) -> tvm.IRModule:
        whole, width = self.x, 12
        for _ in range(num_blocks):
            whole, width = self.block(whole, width)
        outputs = [relay.nn.dense(whole, self.weights(5, width))]
        if self.random.random() < 0.5:
            outputs.append(whole)
        body = outputs[0] if len(outputs) == 1 else relay.Tuple(outputs)
        return module([self.x], body)


class ShardedPlanner:
    """Runs every task for each item on any device, collectives on any different ones."""

    def __init__(self, random: Random, graph: TaskGraph, cluster: Cluster, items: int) -> None:
        self.random, self.graph, self.cluster, self.items = random, graph, cluster, items
        assert cluster.host is not None
        self.homes = {(t, i): [cluster.host] for t in graph.inputs for i in range(items)}
        self.steps: list[Step] = []

    def bring(self, tensor: int, memory: int, item: int) -> None:
        homes = self.homes[tensor, item]
        if memory not in homes:
            home = self.random.choice(homes)
            route = self.cluster.route(home, memory)
            self.steps.append(Copy(tensor, home, memory, route, (item,)))
            homes.append(memory)

    def memory_of(self, device: int) -> int:
        return self.cluster.devices[device].memory

    def run(self, task: int, item: int) -> None:
        graph = self.graph
        kind = collective_kind(graph.tasks[task].op)
        reads, makes = graph.task_inputs[task], graph.task_outputs[task]
        ids = range(len(self.cluster.devices))
        if kind is None:
            device = self.random.choice(ids)
            for tensor in reads:
                self.bring(tensor, self.memory_of(device), item)
            self.steps.append(Run(task, device, (item,)))
            for tensor in makes:
                self.homes[tensor, item] = [self.memory_of(device)]
            return
        count = max(len(reads), len(makes), 2)
        devices = tuple(self.random.sample(ids, count))
        memories = list(map(self.memory_of, devices))
        root = self.random.randrange(count) if "root" in (kind.reads, kind.makes) else 0
        for tensor, memory in zip(
            reads, [memories[root]] if kind.reads == "root" else memories, strict=True
        ):
            self.bring(tensor, memory, item)
        self.steps.append(Collective(task, devices, (item,), root))
        for place, tensor in enumerate(makes):
            found = {"all": memories, "root": [memories[root]], "each": [memories[place]]}
            self.homes[tensor, item] = list(dict.fromkeys(found[kind.makes]))

    def plan(self) -> Plan:
        graph, cluster = self.graph, self.cluster
        assert cluster.host is not None
        waiting = {item: list(range(len(graph.tasks))) for item in range(self.items)}
        while waiting:  # items go on side by side
            item = self.random.choice(list(waiting))
            self.run(waiting[item].pop(0), item)
            if not waiting[item]:
                del waiting[item]
        for tensor in dict.fromkeys(graph.outputs):
            for item in range(self.items):
                self.bring(tensor, cluster.host, item)
        digests = graph.digest(), cluster.digest()
        return Plan(*digests, tuple(self.steps), "by chance", items=self.items)


def solution_of_plan(graph: TaskGraph, cluster: Cluster, plan: Plan) -> Solution:
    """The plan, checked, with any costs."""
    costs = batch_costs(graph, cluster)
    check_plan(graph, cluster, costs, plan)
    makespan = simulate(graph, cluster, costs, plan).makespan_ns
    return Solution(graph, cluster, costs, plan, makespan, 0)


def random_sharded(random: Random, num_devices: int, items: int) -> tvm.IRModule:
    """A network of as many lanes as there are devices for, or fewer."""
    count, rows = random.randint(2, max(2, num_devices)), random.choice((1, 3, 4))
    lanes = Lanes(random, count, rows, may_cut_rows=items == 1)
    return lanes.network(random.randint(1, 3))


def item_inputs(mod: tvm.IRModule, count: int) -> list[dict[str, np.ndarray]]:
    """Inputs of each item."""
    found = []
    for item in range(count):
        rng = np.random.default_rng(item)
        shapes = {p.name_hint: [int(n) for n in p.checked_type.shape] for p in mod["main"].params}
        found.append(
            {name: rng.standard_normal(shape).astype("float32") for name, shape in shapes.items()}
        )
    return found
