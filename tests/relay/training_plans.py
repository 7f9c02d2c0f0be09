"""A training step of a small MLP, by hand, and random plans of it over replicas."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from random import Random

import numpy as np
import tvm
from relay_models import module, var
from tvm import relay

from heteroplace.model.cluster import Cluster
from heteroplace.model.collectives import collective_kind, collective_op
from heteroplace.model.graph import Task, TaskGraph, TaskGraphBuilder
from heteroplace.model.plan import Collective, Copy, Plan, Run, Step

RATE = 0.1


def training_module(widths: list[int], rows: int, batch: int) -> tvm.IRModule:
    """A step of SGD on sum((p - y)^2) / (2 batch): (x, y, w...) -> (loss, new w..., dw...)."""
    x, y = var("x", (rows, widths[0])), var("y", (rows, widths[-1]))
    pairs = list(pairwise(widths))
    states = [var(f"w{n}", (out, into)) for n, (into, out) in enumerate(pairs)]
    values, sums = [x], []
    for weight in states:
        sums.append(relay.nn.dense(values[-1], weight))
        values.append(relay.nn.relu(sums[-1]))
    error = relay.subtract(sums[-1], y)
    loss = relay.sum(relay.multiply(error, error)) * relay.const(np.float32(0.5 / batch))
    gradient = error * relay.const(np.float32(1 / batch))
    new, made = [], []
    for layer in reversed(range(len(states))):
        flat = relay.transpose(gradient)
        made.append(relay.nn.dense(flat, relay.transpose(values[layer])))
        new.append(states[layer] - made[-1] * relay.const(np.float32(RATE)))
        if layer:
            back = relay.nn.dense(gradient, relay.transpose(states[layer]))
            is_open = relay.greater(sums[layer - 1], relay.const(np.float32(0)))
            gradient = relay.where(is_open, back, relay.zeros_like(back))
    # Gradients are results too, so that no kernel spans them and their update.
    outputs = [loss, *reversed(new), *reversed(made)]
    return module([x, y, *states], relay.Tuple(outputs))


def with_shared_values(graph: TaskGraph, *, has_owner: bool = False) -> TaskGraph:
    """The graph in which gradients and loss add up, over replicas too, and weights are state.

    Where they have an owner, it alone has the sums of gradients, and gives new weights to all.
    """
    names = [tensor.name for tensor in graph.tensors]
    states = [names[tensor] for tensor in graph.inputs if names[tensor].startswith("w")]
    loss, *rest = (names[tensor] for tensor in graph.outputs)
    updates, gradients = rest[: len(states)], rest[len(states) :]
    added = {loss, *gradients}
    builder = TaskGraphBuilder(graph.name)
    for tensor in graph.tensors:
        shape, dtype, size, name = tensor.shape, tensor.dtype, tensor.bytes, tensor.name
        if tensor.producer is None:
            builder.add_input(name, shape, dtype, size, shared=name in states)
            continue
        producer, shared = graph.tasks[tensor.producer].name, name in added or name in updates
        builder.add_tensor(producer, shape, dtype, size, name, shared=shared)
        if name in added:
            builder.add_tensor(f"sum.{name}", shape, dtype, size, f"{name}.sum", shared=True)
    for task_id, task in enumerate(graph.tasks):
        adds = any(names[tensor] in added for tensor in graph.task_outputs[task_id])
        reads = [names[tensor] for tensor in graph.task_inputs[task_id]]
        reads = [f"{name}.sum" if name in added else name for name in reads]
        builder.add_task(replace(task, adds=adds), reads)
    for name in (loss, *gradients):
        kind = "reduce" if has_owner and name != loss else "all_reduce"
        builder.add_task(Task(f"sum.{name}", collective_op(kind)), [name])
    for state, update in zip(states, updates, strict=True):
        if has_owner:
            of = graph.tensors[names.index(update)]
            task, given = f"all.{update}", f"{update}.all"
            builder.add_tensor(task, of.shape, of.dtype, of.bytes, given, shared=True)
            builder.add_task(Task(task, collective_op("broadcast")), [update])
        builder.add_update(state, given if has_owner else update)
    return builder.finalize([f"{loss}.sum"])


class TrainingPlanner:
    """Each replica has devices of its own, on any of which a task of it runs.

    The owner of all weights, if there is one, is the first replica.
    """

    def __init__(
        self, random: Random, graph: TaskGraph, cluster: Cluster, replicas: int, micro: int
    ) -> None:
        self.random, self.graph, self.cluster = random, graph, cluster
        self.micro, self.items = micro, replicas * micro
        ids = list(range(len(cluster.devices)))
        random.shuffle(ids)
        self.devices = [ids[n::replicas] for n in range(replicas)]
        assert cluster.host is not None
        self.host = cluster.host
        self.steps: list[Step] = []
        self.homes: dict[tuple[int, int], list[int]] = {}
        kinds = [collective_kind(task.op) for task in graph.tasks]
        self.has_owner = any(kind is not None and kind.reads == "root" for kind in kinds)
        self.on = [[random.choice(devices) for _ in graph.tasks] for devices in self.devices]
        """[replica][task]"""

    def memory(self, device: int) -> int:
        return self.cluster.devices[device].memory

    def bring(self, tensor: int, item: int, memory: int) -> None:
        shared = self.graph.tensors[tensor].shared
        homes = self.homes[tensor, 0 if shared else item]
        if memory not in homes:
            home = self.random.choice(homes)
            items = tuple(range(self.items)) if shared else (item,)
            route = self.cluster.route(home, memory)
            self.steps.append(Copy(tensor, home, memory, route, items))
            homes.append(memory)

    def plan(self) -> Plan:
        graph = self.graph
        once = [task for task in self.tasks() if self.is_once(task)]
        self.place_state(once)
        for tensor in graph.inputs:
            if not graph.tensors[tensor].shared:
                for item in range(self.items):
                    self.homes[tensor, item] = [self.host]
        waiting = {
            replica: [
                (replica * self.micro + k, task)
                for k in range(self.micro)
                for task in self.tasks()
                if task not in once
            ]
            for replica in range(len(self.devices))
        }
        while waiting:
            replica = self.random.choice(list(waiting))
            self.run(replica, *waiting[replica].pop(0))
            if not waiting[replica]:
                del waiting[replica]
        for task in once:
            self.run_once(task)
        self.bring(graph.outputs[0], 0, self.host)
        digests = graph.digest(), self.cluster.digest()
        return Plan(*digests, tuple(self.steps), "by chance", items=self.items)

    def tasks(self) -> list[int]:
        """In the order of the graph; with an owner, what the last ones need comes first: others
        then read a weight while its gradient is on its way."""
        count = len(self.graph.tasks)
        if not self.has_owner:
            return list(range(count))
        found: dict[int, None] = {}

        def add(task: int) -> None:
            for before in self.graph.predecessors[task]:
                add(before)
            found.setdefault(task)

        for task in reversed(range(count)):
            add(task)
        return list(found)

    def is_once(self, task: int) -> bool:
        is_collective = collective_kind(self.graph.tasks[task].op) is not None
        return is_collective or (self.graph.is_made_once(task) and not self.graph.tasks[task].adds)

    def place_state(self, once: list[int]) -> None:
        """A weight is updated where its gradient is made."""
        for task in once:
            for tensor in self.graph.task_outputs[task]:
                if tensor in self.graph.state_of:
                    memories = [self.memory(device) for device in self.updaters(task)]
                    self.homes[self.graph.state_of[tensor], 0] = memories

    def updaters(self, task: int) -> list[int]:
        """The devices of a collective, or of an update: those where its gradient is made."""
        graph = self.graph
        while (kind := collective_kind(graph.tasks[task].op)) is None or kind.reads == "root":
            (task,) = [
                producer
                for tensor in graph.task_inputs[task]
                if (producer := graph.tensors[tensor].producer) is not None
            ]
        (read,) = graph.task_inputs[task]
        producer = graph.tensors[read].producer
        assert producer is not None
        return [of_replica[producer] for of_replica in self.on]

    def run(self, replica: int, item: int, task: int) -> None:
        device = self.on[replica][task]
        for tensor in self.graph.task_inputs[task]:
            self.bring(tensor, item, self.memory(device))
        self.steps.append(Run(task, device, (item,)))
        for tensor in self.graph.task_outputs[task]:
            if self.graph.tensors[tensor].shared:
                homes = self.homes.setdefault((tensor, 0), [])
                if self.memory(device) not in homes:
                    homes.append(self.memory(device))
            else:
                self.homes[tensor, item] = [self.memory(device)]

    def run_once(self, task: int) -> None:
        devices = self.updaters(task)
        everything = tuple(range(self.items))
        kind = collective_kind(self.graph.tasks[task].op)
        if kind is not None:
            self.steps.append(Collective(task, tuple(devices), everything))
            devices = devices[:1] if kind.makes == "root" else devices
        else:
            devices = devices[:1] if self.has_owner else devices
            self.steps += [Run(task, device, everything) for device in devices]
        for tensor in self.graph.task_outputs[task]:
            self.homes[tensor, 0] = [self.memory(device) for device in devices]


def sgd(weights: list[np.ndarray], x: np.ndarray, y: np.ndarray) -> tuple[float, list[np.ndarray]]:
    """The same step of the whole batch in float64."""
    values, sums = [x], []
    for weight in weights:
        sums.append(values[-1] @ weight.T)
        values.append(np.maximum(sums[-1], 0))
    error = sums[-1] - y
    gradient, new = error / len(x), []
    for layer in reversed(range(len(weights))):
        new.append(weights[layer] - RATE * gradient.T @ values[layer])
        if layer:
            gradient = (gradient @ weights[layer]) * (sums[layer - 1] > 0)
    return float((error**2).sum() / (2 * len(x))), new[::-1]
