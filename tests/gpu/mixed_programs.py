"""Random programs over a core and some GPUs, with copies between all of their memories."""

from __future__ import annotations

import numpy as np
from executor_programs import EXTENT, VECTOR_BYTES
from test_random_programs import Writer

from heteroplace.native.execute import Request

_SLOTS_PER_MEMORY = 3
"""Few, so that most values overwrite one that another queue may still read."""


class MixedWriter(Writer):
    """Writes one random program and computes its result in program order.

    Queue 0 is a core; each GPU has one of kernels and one of copies in each direction; the first
    GPU also copies to and from the others. Memory 0 is the host's, g + 1 that of GPU g.
    """

    def __init__(self, seed: int, gpus: tuple[int, ...], bytes_of_workspace: int = 0) -> None:
        self.gpus = gpus
        # Name, kind, GPU, and the memories that its copies go from and to.
        self.rows: list[tuple[str, str, int, int, int]] = [("core", "cpu", 0, 0, 0)]
        for place, gpu in enumerate(gpus, start=1):
            self.rows.append((f"gpu{gpu}", "cuda", gpu, place, place))
            self.rows.append((f"up{gpu}", "copy", gpu, 0, place))
            self.rows.append((f"down{gpu}", "copy", gpu, place, 0))
            if place > 1:
                self.rows.append((f"to{gpu}", "copy", gpus[0], 1, place))
                self.rows.append((f"from{gpu}", "copy", gpus[0], place, 1))
        super().__init__(seed, tuple(name for name, *_ in self.rows))
        self.workspace = bytes_of_workspace
        self.num_slots = _SLOTS_PER_MEMORY * (len(gpus) + 1)
        inputs = self.values[-2:]
        self.values = [np.zeros(EXTENT, "float32") for _ in range(self.num_slots)] + inputs

    def finish(self, request: Request) -> None:
        """Wait for a run of the program, and check all numbers."""
        request.finish()
        for slot in range(self.num_slots):
            np.testing.assert_array_equal(request.get_output(f"y{slot}"), self.values[slot])

    def slots(self, memory: int) -> range:
        """Tensors of the arena of a memory."""
        return range(memory * _SLOTS_PER_MEMORY, (memory + 1) * _SLOTS_PER_MEMORY)

    def step(self, number: int) -> None:
        """Append one random instruction."""
        queue = self.random.randrange(len(self.rows))
        _, kind, _, source, target = self.rows[queue]
        what = "copy" if kind == "copy" else self.random.choice(["add", "twice"])
        slot = self.random.choice(self.slots(target))
        choices = [other for other in self.slots(source) if other != slot]
        sources = [self.random.choice(choices) for _ in range(2 if what == "add" else 1)]
        self.emit(what, number, queue, slot, sources)

    def text(self, num_steps: int) -> str:
        """The whole program. Every slot is written first: it holds the last run's value."""
        number = 0
        for memory in range(len(self.gpus) + 1):
            copies = [
                q
                for q, (_, kind, _, source, target) in enumerate(self.rows)
                if kind == "copy" and target == memory and source < memory
            ]
            for slot in self.slots(memory):
                queue = self.random.choice(copies) if memory else 0
                source = self.random.choice(self.slots(self.rows[queue][3])) if memory else -1
                self.emit("copy", number, queue, slot, [source if memory else self.num_slots])
                number += 1
        for step in range(number, number + num_steps):
            self.step(step)
        lines = ["heteroplace-program 1"]
        arena = _SLOTS_PER_MEMORY * VECTOR_BYTES
        for memory in range(len(self.gpus) + 1):
            place = f"2 {self.gpus[memory - 1]}" if memory else "1 0"
            lines.append(f"space {memory} memory{memory} {place} {arena}")
        for q, (name, kind, gpu, memory, _) in enumerate(self.rows):
            device = "1 0" if kind == "cpu" else f"2 {gpu}"
            space = -1 if kind == "copy" else memory
            lines.append(f"queue {q} {name} {kind} {device} {space} {0 if kind == 'cpu' else '-'}")
            if kind == "cuda" and self.workspace:
                lines.append(f"workspace {q} {self.workspace}")
        for slot in range(self.num_slots):
            memory, place = divmod(slot, _SLOTS_PER_MEMORY)
            lines.append(f"tensor {slot} {memory} arena {place * VECTOR_BYTES} 2 32 {EXTENT}")
            lines.append(f"output y{slot} {slot}")
        for i in range(2):
            lines.append(f"tensor {self.num_slots + i} 0 external - 2 32 {EXTENT}")
            lines.append(f"input x{i} {self.num_slots + i}")
        kernels = ("add", "twice", "add_cuda", "twice_cuda")
        lines += [f"kernel {i} {name}" for i, name in enumerate(kernels)]
        return "\n".join([*lines, *map(self._for_gpu, self.lines), "end", ""])

    def _for_gpu(self, line: str) -> str:
        """The line with the kernel of the queue's kind of device."""
        fields = line.split(" ")
        if fields[0] == "call" and self.rows[int(fields[1])][1] == "cuda":
            fields[3] = str(int(fields[3]) + 2)
        return " ".join(fields)
