"""What routers say of their branches (memories, predictions, weights) -> where tasks may run, and
when; which weights stay.

Passes that read a profile write it there (`heteroplace.parts.routing.relay.passes`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import tvm
from tvm import relay

from heteroplace.errors import RoutingError
from heteroplace.model.cluster import Cluster
from heteroplace.model.routed.speculation import Prediction
from heteroplace.parts.routing.relay.branches.branch_weights import (
    BranchWeights,
    read_branch_weights,
)
from heteroplace.parts.routing.relay.rewrite import Router, routers_of
from heteroplace.parts.routing.solve.preloaded import Preloading
from heteroplace.relay.router_ops import has_routers
from heteroplace.relay.tasks.network import Network


def predictions_of(network: Network) -> tuple[Prediction, ...]:
    """Return which branches may be run before their routers have decided, as routers say.

    Raises
    ------
    RoutingError
        An attribute names no branches, or a share that is none.
    """
    predictions = []
    for router in _routers(network):
        options = router.options
        branches, at, share = options.predict.partition("@")
        if options.predict:
            numbers = _numbers(router, "predict", branches)
            probability = _share(router, share) if at else None
            predictions.append(Prediction(options.name, tuple(sorted(set(numbers))), probability))
    return tuple(predictions)


def _share(router: Router, text: str) -> float:
    try:
        share = float(text)
    except ValueError:
        share = -1.0
    if not 0 <= share <= 1:
        raise RoutingError(
            f"router {router.options.name!r}: predict is {router.options.predict!r}, expected a "
            f"share from 0 to 1 behind '@'"
        )
    return share


def with_branch_memories(network: Network, cluster: Cluster) -> Network:
    """Return the network whose branches run only beside the memories that their routers name.

    Raises
    ------
    RoutingError
        There is no such memory, or no device beside it may run a task of the branch.
    """
    devices: dict[tuple[str, int], list[str]] = {}
    for router in _routers(network):
        if not router.options.memories:
            continue
        names = router.options.memories.split(",")
        if len(names) != router.options.num_branches:
            raise RoutingError(
                f"router {router.options.name!r} names {len(names)} memories for "
                f"{router.options.num_branches} branches"
            )
        for branch, name in enumerate(names):
            devices[router.options.name, branch] = _devices_beside(name, router, cluster)
    tasks = []
    for task in network.graph.tasks:
        if task.branch in devices:
            beside = devices[task.branch]
            allowed = [name for name in beside if task.devices is None or name in task.devices]
            if not allowed:
                raise RoutingError(
                    f"task {task.name!r} of branch {task.branch[1]} of router {task.branch[0]!r} "
                    f"may run on {task.devices}, and its router puts it beside {beside}"
                )
            task = replace(task, devices=tuple(allowed))
        tasks.append(task)
    return network.with_graph(replace(network.graph, tasks=tuple(tasks)))


def branch_weights(network: Network, sizes: Callable[[], tuple[int, ...]]) -> Preloading | None:
    """Return what routers say of the weights of their branches; None: all stay.

    Parameters
    ----------
    sizes
        What the weights of each task take where kernels read them, [num_tasks], in bytes; asked if
        there is a budget.

    Raises
    ------
    RoutingError
        The text of a router cannot be read, or two have different budgets.
    """
    budgets_of = {
        network.graph.router_ids[router.options.name]: said
        for router in _routers(network)
        if (said := _said_of_weights(router)) is not None
    }
    if not budgets_of:
        return None
    budgets = {said.budget_bytes for said in budgets_of.values()}
    if len(budgets) > 1:
        raise RoutingError(
            f"routers have different budgets for weights: {sorted(budgets)} bytes; run "
            f"PreloadWeights on the module once, or with one budget"
        )
    resident, ahead = (
        tuple(branch for _, branch in sorted(entries, key=lambda entry: -entry[0]))
        for entries in (
            [(share, (id, b)) for id, said in budgets_of.items() for b, share in said.kept],
            [(share, (id, b)) for id, said in budgets_of.items() for b, share in said.ahead],
        )
    )
    return Preloading(budgets.pop(), resident, ahead, sizes())


def has_weights_budget(mod: tvm.IRModule) -> bool:
    """Say whether some router of a module has a budget for the weights of its branches."""
    routers = routers_of(relay.transform.InferType()(mod)) if has_routers(mod) else ()
    return any(router.options.preload for router in routers)


def _said_of_weights(router: Router) -> BranchWeights | None:
    options = router.options
    return read_branch_weights(options.name, options.preload, options.num_branches)


def _routers(network: Network) -> tuple[Router, ...]:
    return routers_of(network.mod) if network.graph.routers else ()


def _numbers(router: Router, what: str, text: str) -> list[int]:
    """Branches that an attribute names, comma between them."""
    count = router.options.num_branches
    words = text.split(",") if text else []
    if not all(number.isdigit() and int(number) < count for number in words):
        raise RoutingError(
            f"router {router.options.name!r}: {what} is {text!r}, expected branches from 0 to "
            f"{count - 1}, comma between them"
        )
    return [int(number) for number in words]


def _devices_beside(memory: str, router: Router, cluster: Cluster) -> list[str]:
    devices = [
        device.name for device in cluster.devices if cluster.memories[device.memory].name == memory
    ]
    if not devices:
        raise RoutingError(
            f"router {router.options.name!r} puts a branch into memory {memory!r}, beside which "
            f"cluster {cluster.name!r} has no device"
        )
    return devices
