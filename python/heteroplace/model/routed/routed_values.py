"""What is wrong with the routers, branches and routed buffers of a task graph, whatever the plan.

`model.routers` says what they are; how a plan may guard its steps is `model.check_guards`' to say.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from heteroplace.model.collectives import collective_kind
from heteroplace.model.routed.capacities import capacity_faults
from heteroplace.model.routed.routers import Router

if TYPE_CHECKING:
    from heteroplace.model.graph import TaskGraph
    from heteroplace.model.tasks import Tensor


def routed_value_faults(graph: TaskGraph) -> list[str]:
    """Return every fault, each naming its router, task or tensor; [] for a graph without them."""
    if not graph.routers and not graph.buffers and not _names_any(graph):
        return []
    faults = [*_router_faults(graph), *_branch_faults(graph)]
    # What reads what is asked of branches that exist.
    return faults or [*_buffer_faults(graph), *_reader_faults(graph)]


def branch_of_rows(graph: TaskGraph, tensor: Tensor) -> tuple[int, int] | None:
    """Return (router id, branch) of the cells whose rows a tensor in a routed buffer is.

    It is the inner one of the branch that makes it and the one whose tasks alone read it. None: it
    is made in no branch, and not read in one branch only.
    """
    readers = {graph.branches[task][:1] for task in tensor.consumers}
    maker = () if tensor.producer is None else graph.branches[tensor.producer]
    reader = graph.branches[tensor.consumers[0]] if len(readers) == 1 else ()
    around = maker if len(maker) >= len(reader) else reader
    return around[0] if around else None


def _names_any(graph: TaskGraph) -> bool:
    is_branched = any(task.branch is not None for task in graph.tasks)
    return is_branched or any(tensor.buffer is not None for tensor in graph.tensors)


def _router_faults(graph: TaskGraph) -> Iterator[str]:
    seen: set[str] = set()
    for router in graph.routers:
        name = f"router {router.name!r}"
        if router.name in seen:
            yield f"{name}: an earlier router is called so too"
        seen.add(router.name)
        yield from (f"{name}: {fault}" for fault in _figure_faults(router))
        loads = graph.tensors[router.loads]
        if loads.producer is None:
            yield f"{name}: its loads {loads.name!r} are a model input; expected a task's output"
            continue
        if loads.shared or loads.buffer is not None:
            yield f"{name}: its loads {loads.name!r} are shared, or in a routed buffer"
        if loads.dtype and (loads.shape, loads.dtype) != ((router.num_branches,), "int32"):
            yield (
                f"{name}: its loads {loads.name!r} are {loads.dtype}{list(loads.shape)}; expected "
                f"int32[{router.num_branches}], one for each branch"
            )
        if graph.tasks[loads.producer].branch != router.parent:
            yield (
                f"{name}: its parent is {_branch_text(router.parent)}, and its task "
                f"{graph.tasks[loads.producer].name!r} is in "
                f"{_branch_text(graph.tasks[loads.producer].branch)}; expected the same"
            )


def _figure_faults(router: Router) -> Iterator[str]:
    if not router.capacities:
        yield "it has no branches; expected at least one"
    yield from capacity_faults(router.capacities, router.num_branches, router.overflow)
    if router.num_cells == 1 and any(sizes != (1,) for sizes in router.capacities):
        yield f"its capacities are {router.capacities}; for one cell expected (1,) of each branch"
    for what, number, most in (
        ("num_cells", router.num_cells, None),
        ("top_k", router.top_k, max(1, router.num_branches)),
        ("quantum", router.quantum, None),
    ):
        if number < 1 or (most is not None and number > most):
            upto = "" if most is None else f" and at most {most}, its branches"
            yield f"{what} is {number}; expected at least 1{upto}"


def _branch_text(branch: tuple[str, int] | None) -> str:
    return "no branch" if branch is None else f"branch {branch[1]} of {branch[0]!r}"


def _branch_faults(graph: TaskGraph) -> Iterator[str]:
    for task_id, task in enumerate(graph.tasks):
        if task.branch is None:
            continue
        name, branch = task.branch
        if name not in graph.router_ids:
            names = ", ".join(graph.router_ids) or "none"
            yield f"task {task.name!r} is in a branch of router {name!r}; there are: {names}"
            continue
        router = graph.routers[graph.router_ids[name]]
        if branch not in range(router.num_branches):
            yield (
                f"task {task.name!r} is in branch {branch} of router {name!r}, which has branches "
                f"0 to {router.num_branches - 1}"
            )
        if router.loads not in graph.task_inputs[task_id]:
            loads = graph.tensors[router.loads].name
            yield (
                f"task {task.name!r} is in a branch of router {name!r} and does not read its loads "
                f"{loads!r}"
            )
        if collective_kind(task.op) is not None:
            yield f"collective {task.name!r} is in a branch; a collective runs in every run"
        if any(graph.tensors[tensor].shared for tensor in graph.task_outputs[task_id]):
            yield f"task {task.name!r} is in a branch and makes a shared tensor"


def _buffer_faults(graph: TaskGraph) -> Iterator[str]:
    for tensor_id, tensor in enumerate(graph.tensors):
        if tensor.buffer is None:
            continue
        if tensor.buffer not in graph.buffer_bytes:
            names = ", ".join(graph.buffer_bytes) or "none"
            yield f"tensor {tensor.name!r} is in buffer {tensor.buffer!r}; there are: {names}"
        if tensor.producer is None or tensor.shared:
            yield f"tensor {tensor.name!r} is in a routed buffer, and a model input or shared"
            continue
        branch = branch_of_rows(graph, tensor)
        if branch is None or tensor_id in graph.outputs:
            yield (
                f"tensor {tensor.name!r} is in a routed buffer; expected rows of one branch: made "
                f"in it, or read by its tasks only, and no output of the model"
            )
            continue
        num_cells = graph.routers[branch[0]].num_cells
        if tensor.bytes % num_cells:
            yield (
                f"tensor {tensor.name!r} is in a routed buffer and has {tensor.bytes} bytes; "
                f"expected those of {num_cells} rows, one for each cell of router "
                f"{graph.routers[branch[0]].name!r}"
            )


def _reader_faults(graph: TaskGraph) -> Iterator[str]:
    """Who reads what may not be there: a task of the branch, or one that reads the loads."""
    for tensor_id, tensor in enumerate(graph.tensors):
        maker = tensor.producer
        if maker is None or not graph.branches[maker]:
            continue
        router_id, branch = graph.branches[maker][0]
        router = graph.routers[router_id]
        what = f"tensor {tensor.name!r} of branch {branch} of router {router.name!r}"
        if tensor_id in graph.outputs:
            yield f"{what} is an output of the model; expected one that is made in every run"
        for task in tensor.consumers:
            around = graph.branches[task]
            if (router_id, branch) in around:
                continue
            if any(router_id == other for other, _ in around):
                yield f"task {graph.tasks[task].name!r} of another branch reads {what}"
            elif router.loads not in graph.task_inputs[task]:
                yield (
                    f"task {graph.tasks[task].name!r} reads {what} and not its loads, by which it "
                    f"would know whether the tensor is there"
                )
