"""Ranks that follow their own programs, under a random scheduler: they see their own values only,
and meet in sends, receives and collectives."""

from __future__ import annotations

from random import Random

from heteroplace.model.plan import Copy
from heteroplace.model.step_values import items_of, makes, reads, state_places
from tests.reference.distir.interpret import StepCall
from tests.reference.distir.project import Receive, RunHere, Send, TakePart, project


class Ranks:
    """One job of ranks.

    `is_buffered`: who sends goes on at once; else it waits for the receiver.
    """

    def __init__(self, graph, cluster, plan, domain, seed, is_buffered):
        self.graph, self.cluster, self.plan, self.domain = graph, cluster, plan, domain
        self.random = Random(seed)
        self.is_buffered = is_buffered
        self.programs = {p.memory: p.steps for p in project(graph, cluster, plan)}
        self.at = dict.fromkeys(self.programs, 0)
        self.own = {memory: {} for memory in self.programs}
        """For each rank its values by (tensor, item)."""
        self.messages = {}
        self.order = []
        """(memory, tag) as they were done."""
        states = set(state_places(graph, cluster, plan.steps))
        updated = {state for state, _ in graph.updates}
        for memory, values in self.own.items():
            for tensor in graph.inputs:
                is_home = cluster.host in (None, memory)
                if (tensor, memory) in states or (tensor not in updated and is_home):
                    for item in items_of(graph, tensor, tuple(range(plan.items))):
                        values[tensor, item] = domain.given((tensor, memory, item))

    def current(self, memory):
        steps = self.programs[memory]
        return steps[self.at[memory]] if self.at[memory] < len(steps) else None

    def is_ready(self, memory):
        step = self.current(memory)
        if isinstance(step, RunHere):
            return True
        if isinstance(step, Send):
            return self.is_buffered or self.tag_of(step.receiver) == step.tag
        if isinstance(step, Receive):
            return step.tag in self.messages
        if isinstance(step, TakePart):
            return all(self.tag_of(other) == step.tag for other in step.group)
        return False

    def tag_of(self, memory):
        step = self.current(memory)
        return None if step is None else step.tag

    def run(self):
        """Run all ranks to their ends; return their values by (tensor, memory, item)."""
        unfinished = list(self.programs)
        while unfinished:
            # A random order to ask them in is a random one of those that are ready.
            self.random.shuffle(unfinished)
            ready = next((memory for memory in unfinished if self.is_ready(memory)), None)
            assert ready is not None, "ranks wait for each other: " + "; ".join(
                f"{memory}: {self.current(memory)}" for memory in unfinished
            )
            while self.is_ready(ready):
                self.advance(ready)
                if self.random.random() < 0.5:
                    break
            unfinished = [memory for memory in unfinished if self.current(memory) is not None]
        return {(t, m, i): value for m, own in self.own.items() for (t, i), value in own.items()}

    def advance(self, memory):
        step = self.current(memory)
        if isinstance(step, RunHere | TakePart):
            members = step.group if isinstance(step, TakePart) else (memory,)
            self.apply(step.tag)
            for member in members:
                self.pass_by(member)
        elif isinstance(step, Send):
            tensor_items = items_of(self.graph, step.tensor, step.items)
            own = self.own[memory]
            self.messages[step.tag] = [own[step.tensor, item].copy() for item in tensor_items]
            self.pass_by(memory)
            if not self.is_buffered:
                self.advance(step.receiver)
        else:
            values = self.messages.pop(step.tag)
            items = items_of(self.graph, step.tensor, step.items)
            for item, value in zip(items, values, strict=True):
                assert value.shape == step.shape and value.dtype == step.dtype
                self.own[memory][step.tensor, item] = value
            self.pass_by(memory)

    def pass_by(self, memory):
        self.order.append((memory, self.tag_of(memory)))
        self.at[memory] += 1

    def apply(self, tag):
        """Run a task or a collective, from the values of the ranks that take part."""
        step = self.plan.steps[tag]
        assert not isinstance(step, Copy)
        read = self.keys(reads(self.graph, self.cluster, step), step.items)
        made = self.keys(makes(self.graph, self.cluster, step), step.items)
        values = {key: self.own[key[1]][key[0], key[2]] for key in read}
        for tensor, memory, item in made:
            if (tensor, item) in self.own[memory]:
                values[tensor, memory, item] = self.own[memory][tensor, item]
        found = self.domain.apply(StepCall(tag, step, read, made), values)
        for tensor, memory, item in made:
            self.own[memory][tensor, item] = found[tensor, memory, item]
            state = self.graph.state_of.get(tensor)
            if state is not None:
                self.own[memory].pop((state, 0), None)

    def keys(self, places, items):
        return tuple(
            (tensor, memory, item)
            for tensor, memory in places
            for item in items_of(self.graph, tensor, items)
        )
