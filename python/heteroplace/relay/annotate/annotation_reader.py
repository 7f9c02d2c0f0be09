"""Annotated Relay -> what it carries: the solution that was attached, and the ops themselves."""

from __future__ import annotations

import tvm
from tvm import relay

from heteroplace.errors import UnsupportedRelayError
from heteroplace.files.solution_file import solution_from_json
from heteroplace.model.solution import Solution
from heteroplace.relay.annotate.devices import device_key, is_barrier
from heteroplace.relay.annotate.writer import (
    MODEL_ATTRIBUTE,
    PLAN_ATTRIBUTE,
    SHARDING_ATTRIBUTE,
)
from heteroplace.relay.expressions import SharedFields, post_order, rebuild


def read_solution(mod: tvm.IRModule) -> Solution | None:
    """Return the solution that `annotate` stored in `main`; None if the module has none.

    Raises
    ------
    PlanError
        The attribute is there, but was not written by this version.
    UnsupportedRelayError
        The module has no function `main`.
    """
    if all(variable.name_hint != "main" for variable in mod.get_global_vars()):
        raise UnsupportedRelayError("the module has no function 'main', which is what is placed")
    attributes = mod["main"].attrs
    if attributes is None or PLAN_ATTRIBUTE not in attributes:
        return None
    data = attributes[PLAN_ATTRIBUTE].data.numpy().tobytes()
    return solution_from_json(data.decode(), "attribute of main")


def read_model_digest(mod: tvm.IRModule) -> str:
    """Return what profiles of the routers of a placed module name it by; "": it has none."""
    attributes = mod["main"].attrs
    is_there = attributes is not None and MODEL_ATTRIBUTE in attributes
    return str(attributes[MODEL_ATTRIBUTE]) if is_there else ""


def is_sharded(mod: tvm.IRModule) -> bool:
    """Say whether `Shard` has divided the module, which `sharded_attribute` then reads."""
    if all(variable.name_hint != "main" for variable in mod.get_global_vars()):
        return False
    attributes = mod["main"].attrs
    return attributes is not None and SHARDING_ATTRIBUTE in attributes


def is_annotated(mod: tvm.IRModule) -> bool:
    """Say whether anything in `main` names a device."""
    main = mod["main"]
    if any(device_key(value.virtual_device_) is not None for value in (main, *main.params)):
        return True
    return any(is_barrier(node) for node in post_order(main.body))


def strip_annotations(mod: tvm.IRModule) -> tvm.IRModule:
    """Return the neutral module under the annotations: no device, no copy, no plan in it.

    Of a module that `annotate` made it is the one that `neutral_module` gives, with equal hash.
    """
    main = relay.transform.InferType()(mod)["main"]
    # Parameters that PlanDevices gave a virtual device would bring it along.
    params = [relay.Var(param.name_hint, param.checked_type) for param in main.params]
    mapped: dict[relay.Expr, relay.Expr] = dict(zip(main.params, params, strict=True))
    shared = SharedFields()

    def drop(old: relay.Expr, new: relay.Expr) -> relay.Expr:
        return new.args[0] if is_barrier(old) else shared(old, new)

    rebuild(post_order(main.body), mapped, drop)
    function = relay.Function(params, mapped[main.body], None, [])
    return relay.transform.InferType()(tvm.IRModule.from_expr(function))
