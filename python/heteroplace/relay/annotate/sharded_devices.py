"""A sharded module and its plan <-> the same with `on_device` and `device_copy`.

The module is one microbatch of one replica, so each of its ops has one device there: that of its
lane and stage, in the first replica. Further replicas run the same ops on devices that only the
plan names. A collective runs on all its members; Relay has one device for an op, so it is annotated
with that of its root, and copies lead to it and from it as a tool that knows no ranks needs them.

before ==> after, for a stage on cpu:0 whose result the next stage reads on cpu:1:

    %1 = nn.relu(%0)      ==>  %1 = on_device(nn.relu(%0), cpu:0)
    %2 = nn.dense(%1)          %2 = on_device(device_copy(%1, cpu:0, cpu:1), cpu:1)
                               %3 = on_device(nn.dense(%2), cpu:1)

As in `writer`, every parameter, every value that another task reads and every copy is wrapped with
its device fixed on both sides, and there is one copy for each value and device.
"""

from __future__ import annotations

from collections.abc import Collection

import tvm
from tvm import relay

from heteroplace.errors import LoweringError
from heteroplace.model.cluster import Cluster
from heteroplace.model.plan import Collective, Run
from heteroplace.model.solution import Solution
from heteroplace.relay.annotate.devices import device_keys, distinct, read_devices
from heteroplace.relay.annotate.writer import home_device, tvm_devices
from heteroplace.relay.expressions import SharedFields, post_order, rebuild, task_of_span


def with_task_devices(
    mod: tvm.IRModule, solution: Solution, state: Collection[str]
) -> tvm.IRModule:
    """Return a neutral sharded module with the device of each op.

    Parameters
    ----------
    mod
        The span of each call names its task.
    state
        Names of inputs that a run replaces: they are where they are read, others in the host's
        memory.

    Raises
    ------
    PlanError
        A device of the cluster is of a kind that TVM does not have; the host's memory has no CPU.
    """
    typed = relay.transform.InferType()(mod)["main"]
    return _Pinner(typed, solution.cluster, _task_devices(solution), state).run()


def check_devices(mod: tvm.IRModule, solution: Solution) -> None:
    """Raise LoweringError unless the ops of a sharded module are where its plan runs them."""
    cluster, expected = solution.cluster, _task_devices(solution)
    keys = device_keys(cluster)
    moved = [
        f"task {task!r} to {cluster.devices[device].name} from "
        f"{cluster.devices[expected[task]].name}"
        for op, device in read_devices(mod["main"], cluster).items()
        if (task := task_of_span(op)) in expected and keys[device] != keys[expected[task]]
    ]
    if moved:
        raise LoweringError(
            f"annotations of the sharded module were changed and move {distinct(moved)}: an op of "
            f"a shard runs on the device of its rank. Share the model again, and say the devices "
            f"of the ranks by devices=, or what each stage computes by cuts="
        )


def _task_devices(solution: Solution) -> dict[str, int]:
    """By the name of a task the device on which it runs for its first item; of several the root."""
    first: dict[int, tuple[int, int]] = {}  # item, device
    for step in solution.plan.steps:
        if isinstance(step, Run):
            device = step.device
        elif isinstance(step, Collective):
            device = step.devices[step.root]
        else:
            continue
        item = min(step.items, default=0)
        if step.task not in first or item < first[step.task][0]:
            first[step.task] = item, device
    return {solution.graph.tasks[task].name: device for task, (_, device) in first.items()}


class _Pinner:
    """Rewrites a typed `main` of plain dataflow."""

    def __init__(
        self,
        main: relay.Function,
        cluster: Cluster,
        device_of: dict[str, int],
        state: Collection[str],
    ) -> None:
        self._main = main
        self._names = tvm_devices(cluster)
        self._home = home_device(cluster)
        self._device_of = device_of
        self._task: dict[relay.Expr, str] = {}
        self._made_on: dict[relay.Expr, int] = dict.fromkeys(main.params, self._home)
        self._made_on |= self._state_devices(state)
        self._on: dict[tuple[relay.Expr, int], relay.Expr] = {}
        self._shared = SharedFields()

    def run(self) -> tvm.IRModule:
        body = self._main.body
        mapped: dict[relay.Expr, relay.Expr] = {}
        rebuild(post_order(body), mapped, self._rewrite)
        result = self._shared.opened(mapped[body], body.checked_type)
        function = relay.Function(self._main.params, self._brought(result, self._home))
        return tvm.IRModule.from_expr(function)

    def _state_devices(self, state: Collection[str]) -> dict[relay.Var, int]:
        """Where each part of the state is first read."""
        devices: dict[relay.Var, int] = {}
        for node in post_order(self._main.body):
            for argument in node.args if isinstance(node, relay.Call) else ():
                if isinstance(argument, relay.Var) and argument.name_hint in state:
                    devices.setdefault(argument, self._device_of[task_of_span(node) or ""])
        return devices

    def _rewrite(self, old: relay.Expr, new: relay.Expr) -> relay.Expr:
        new = self._shared(old, new)
        if isinstance(new, relay.Call):
            task = task_of_span(old) or ""
            device = self._device_of[task]
            arguments = [self._brought(argument, device, task) for argument in new.args]
            new = relay.Call(new.op, arguments, new.attrs, new.type_args, new.span)
            self._made_on[new], self._task[new] = device, task
        return new

    def _brought(self, value: relay.Expr, device: int, task: str | None = None) -> relay.Expr:
        """The expression by which a task reads a value; None: the caller of `main`."""
        if isinstance(value, relay.Constant):
            # One for each device: PlanDevices would copy it for the readers on others.
            src = self._made_on.setdefault(value, device)
            other = value if src == device else relay.Constant(value.data)
            return self._on.setdefault((value, device), other)
        if isinstance(value, relay.Tuple):
            fields = [self._brought(field, device, task) for field in value.fields]
            return relay.Tuple(fields, value.span)
        maker = value
        while isinstance(maker, relay.TupleGetItem):
            maker = maker.tuple_value
        if task is not None and self._task.get(maker) == task:
            return value
        src = self._made_on[maker]
        if (value, src) not in self._on:
            self._on[value, src] = self._pin(value, src)
        if (value, device) not in self._on:
            names = self._names[src], self._names[device]
            copy = relay.op.device_copy(self._on[value, src], *names)
            self._on[value, device] = self._pin(copy, device)
        return self._on[value, device]

    def _pin(self, value: relay.Expr, device: int) -> relay.Expr:
        return relay.annotation.on_device(value, self._names[device], True, True)
