"""Each value its type: shapes and element types of a whole plan are checked before anything runs.

DistIR (arXiv 2111.05426, section 3.3). That inputs of a task are on its device, and that each
device takes part in a collective once, is seen on the way, since the walk finds values by memory
(`interpret`) and members by position.
"""

from __future__ import annotations

from collections.abc import Sequence

from heteroplace.model.graph import TaskGraph
from tests.reference.distir.dispatch import AnyValue, Operations
from tests.reference.distir.domain_mixed import MixedDomain
from tests.reference.distir.operations import OPERATIONS


class TypesDomain(MixedDomain):
    """A domain of `interpret` in which nothing is concrete.

    An op that is not registered, as a compiled group of ops, makes what the graph says; `unchecked`
    has the names of these.
    """

    def __init__(self, graph: TaskGraph, operations: Operations = OPERATIONS) -> None:
        super().__init__(graph, operations=operations)
        self.unchecked: dict[str, None] = {}

    def evaluate(self, task: int, arguments: Sequence[AnyValue]) -> Sequence[AnyValue]:
        """See `MixedDomain.evaluate`."""
        call = self.op_call(task)
        if call.name in self._operations:
            return super().evaluate(task, arguments)
        self.unchecked[call.name] = None
        return [self.declared(tensor) for tensor in self._graph.task_outputs[task]]
