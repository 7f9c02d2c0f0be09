"""Task graph + plan -> annotated Relay: `on_device` pins every value, `device_copy` moves it.

before ==> after, for a task on cpu:0 whose result is read on cpu:1:

    %1 = nn.relu(%0)      ==>  %1 = on_device(nn.relu(%0), cpu:0)
    %2 = nn.pool(%1)           %2 = on_device(device_copy(%1, cpu:0, cpu:1), cpu:1)
                               %3 = on_device(nn.pool(%2), cpu:1)

There is one `device_copy` for each tensor and destination device, shared by its consumers there.
Every parameter, every task's result and every copy is wrapped with its device fixed on both sides:
PlanDevices would otherwise insert copies of its own, one per consumer, or give an unwrapped
parameter the device of the result.

The ops stay unfused and every call's span names its task, so that the build can optimise whole
regions of one target and still trace each kernel to its task.
"""

from __future__ import annotations

import numpy as np
import tvm
from tvm import relay

from heteroplace.errors import PlanError
from heteroplace.files.solution_file import solution_to_json
from heteroplace.model.cluster import Cluster
from heteroplace.model.plan import Plan
from heteroplace.model.solution import Solution
from heteroplace.relay.expressions import (
    post_order_of_function,
    rebuild,
    task_span,
)
from heteroplace.relay.tasks.extract import Extraction, neutral_module

PLAN_ATTRIBUTE = "heteroplace_plan"
"""Attribute of `main` that carries the solution: a constant of UTF-8 JSON bytes. (A constant, so
that printing the module shows the placement and not a page of JSON.)"""


SHARDING_ATTRIBUTE = "heteroplace_sharding"
"""Attribute of `main`, where it is shared: its JSON text as bytes, then the values of its state."""
MODEL_ATTRIBUTE = "heteroplace_model"
"""Attribute of `main`: of a module with routers, what profiles of their decisions name it by."""


def tvm_devices(cluster: Cluster) -> tuple[tvm.runtime.Device, ...]:
    """Return for each device of the cluster the TVM device that stands for it in Relay.

    CPU devices are numbered in the order of the cluster (cpu:0, cpu:1, ...), since TVM's CPU
    ordinals have no meaning of their own; other kinds keep their index. TVM knows no parts of a
    GPU: those after the first device of a GPU have the numbers after the last GPU's.

    Raises
    ------
    PlanError
        A device is of a kind that TVM does not have.
    """
    devices = []
    num_cpus = 0
    taken: set[tuple[str, int]] = set()
    next_index = 1 + max(device.index for device in cluster.devices)
    for device in cluster.devices:
        index = device.index
        if device.kind == "cpu":
            index, num_cpus = num_cpus, num_cpus + 1
        elif (device.kind, index) in taken:
            index, next_index = next_index, next_index + 1
        taken.add((device.kind, index))
        try:
            devices.append(tvm.device(device.kind, index))
        except ValueError as err:
            raise PlanError(
                f"device {device.name!r} of cluster {cluster.name!r} is of kind {device.kind!r}, "
                f"which TVM does not have; a module can be placed over devices of kind cpu and cuda"
            ) from err
    return tuple(devices)


def annotate(extraction: Extraction, solution: Solution, model_digest: str = "") -> tvm.IRModule:
    """Write the solution into the module; it also travels along, as an attribute of `main`.

    Of a network with routers it only travels along: `on_device` on each row that a branch takes
    would say where it is, and not that it is moved row by row, if at all. `model_digest` is
    `Network.model_digest`.

    Raises
    ------
    PlanError
        The plan belongs to another graph, or leaves a task out.
    """
    graph, plan = extraction.graph, solution.plan
    if plan.graph_digest != graph.digest():
        raise PlanError(
            f"the plan was made for a graph with digest {plan.graph_digest}, but graph "
            f"{graph.name!r} has {graph.digest()}; solve again"
        )
    record = solution_to_json(solution)
    if graph.routers:
        main = neutral_module(extraction)["main"].with_attr(MODEL_ATTRIBUTE, model_digest)
        return with_plan(tvm.IRModule.from_expr(main), record)
    return with_plan(_Annotator(extraction, solution.cluster, plan).run(), record)


def with_plan(mod: tvm.IRModule, record: str) -> tvm.IRModule:
    """Return the module with a solution, as JSON, that travels along."""
    data = np.frombuffer(record.encode(), dtype="uint8").copy()
    main = mod["main"].with_attr(PLAN_ATTRIBUTE, relay.const(data))
    return relay.transform.InferType()(tvm.IRModule.from_expr(main))


class _Annotator:
    """Assembles the annotated `main` task by task; values are per tensor and device."""

    def __init__(self, extraction: Extraction, cluster: Cluster, plan: Plan) -> None:
        self._extraction = extraction
        self._graph = extraction.graph
        self._tvm_devices = tvm_devices(cluster)
        self._device = plan.placement(len(self._graph.tasks))
        self._home = home_device(cluster)
        self._made_on: list[int] = []
        self._on: dict[tuple[int, int], relay.Expr] = {}
        self._states: dict[relay.Expr, dict[int, relay.Expr]] = {}
        """State of sessions, which lies where it is used: as it is read on each device."""

    def run(self) -> tvm.IRModule:
        main = self._extraction.main
        for tensor in self._graph.tensors:
            made_on = self._home if tensor.producer is None else self._device[tensor.producer]
            self._made_on.append(made_on)
        for parameter in main.params:
            (own,) = self._extraction.tensors[parameter]
            if own is None:
                self._states[parameter] = {}
            else:
                self._on[own, self._home] = self._pin(parameter, self._home)
        for task in range(len(self._graph.tasks)):
            self._add_task(task)
        outputs = [self._output(tensor) for tensor in self._extraction.tensors[main.body]]
        body = relay.Tuple(outputs) if _is_tuple(main.body) else outputs[0]
        function = relay.Function(main.params, body, None, [], main.attrs)
        return tvm.IRModule.from_expr(function)

    def _pin(self, value: relay.Expr, device: int) -> relay.Expr:
        return relay.annotation.on_device(value, self._tvm_devices[device], True, True)

    def _value(self, tensor: int, device: int) -> relay.Expr:
        """The tensor as it is read on `device`; a copy is made once for each device."""
        if (tensor, device) not in self._on:
            source = self._made_on[tensor]
            copy = relay.op.device_copy(
                self._on[tensor, source], self._tvm_devices[source], self._tvm_devices[device]
            )
            self._on[tensor, device] = self._pin(copy, device)
        return self._on[tensor, device]

    def _output(self, tensor: int | None) -> relay.Expr:
        """An output on the home device; one that only replaces state stays where it is made."""
        assert tensor is not None  # constants and state are no outputs
        is_read_there = tensor in self._graph.outputs
        return self._value(tensor, self._home if is_read_there else self._made_on[tensor])

    def _argument(self, argument: relay.Expr, device: int) -> relay.Expr:
        if isinstance(argument, relay.Constant):
            return argument
        if argument in self._states:
            pinned = self._states[argument]
            if device not in pinned:
                pinned[device] = self._pin(argument, device)
            return pinned[device]
        if isinstance(argument, relay.Tuple):
            return relay.Tuple([self._argument(field, device) for field in argument.fields])
        if isinstance(argument, relay.TupleGetItem) and isinstance(
            argument.tuple_value, relay.Tuple
        ):
            return self._argument(argument.tuple_value.fields[argument.index], device)
        # What is left is a model input or a task's result, and no part of it is a constant.
        values = [
            self._value(tensor, device)
            for tensor in self._extraction.tensors[argument]
            if tensor is not None
        ]
        is_tuple = isinstance(argument.checked_type, relay.TupleType)
        return relay.Tuple(values) if is_tuple else values[0]

    def _add_task(self, task: int) -> None:
        device = self._device[task]
        name = self._graph.tasks[task].name
        if device < 0:
            raise PlanError(f"the plan does not run task {name!r}; every task runs once")
        call = self._extraction.calls[task]
        arguments = [self._argument(argument, device) for argument in call.args]
        mapped = dict(zip(call.op.params, arguments, strict=True))
        rebuild(post_order_of_function(call.op), mapped, span=task_span(name))
        body = mapped[call.op.body]
        for index, tensor in enumerate(self._graph.task_outputs[task]):
            value = body
            if isinstance(body, relay.Tuple):
                value = body.fields[index]
            elif isinstance(call.checked_type, relay.TupleType):
                value = relay.TupleGetItem(body, index, task_span(name))
            self._on[tensor, device] = self._pin(value, device)


def _is_tuple(body: relay.Expr) -> bool:
    return isinstance(body.checked_type, relay.TupleType)


def home_device(cluster: Cluster) -> int:
    """The device whose memory holds inputs and outputs: the first CPU device of the host memory."""
    for index, device in enumerate(cluster.devices):
        if device.memory == cluster.host:
            return index
    raise PlanError(
        f"cluster {cluster.name!r} has no device in a host memory, so a model could neither be "
        f"fed nor read; name the host memory in the cluster ('host') and give it a CPU device"
    )
