"""A module and its weights -> its `main` with the weights in it, which are checked first."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import tvm
from tvm import relay

from heteroplace.argument_checks import check_mapping, check_type
from heteroplace.errors import LoweringError

_PARAMS = "weights by the names of parameters of the module's main, {name: array}"
_ARRAYS = (np.ndarray, np.generic, tvm.nd.NDArray)


def check_module(mod: object) -> None:
    """Raise LoweringError unless `mod` is a module with a function `main`."""
    expected = (
        "a Relay module (tvm.IRModule): of a model, heteroplace.frontend.from_onnx(path).mod; of a "
        "function, tvm.IRModule.from_expr(function)"
    )
    check_type("mod", mod, tvm.IRModule, expected, LoweringError)
    assert isinstance(mod, tvm.IRModule)
    if "main" not in [var.name_hint for var in mod.get_global_vars()]:
        raise LoweringError(f"the module has no function 'main'; expected {expected}")


def bound_main(mod: tvm.IRModule, params: Mapping[str, Any]) -> relay.Function:
    """Return `main` of a module with its weights as constants.

    Parameters
    ----------
    params
        Arrays by the names of parameters. Names of others are ignored, as by TVM.

    Raises
    ------
    LoweringError
        There is no such module, or an array has another type or shape than its parameter: TVM would
        compile a network of other types.
    """
    check_params(mod, params)
    main = mod["main"]
    names = [var.name_hint for var in main.params if var.name_hint in params]
    # Of an array of numpy TVM would make int32 out of int64, and float32 out of float64.
    arrays = {name: tvm.nd.array(params[name]) for name in names}
    return relay.build_module.bind_params_by_name(main, arrays)


def check_params(mod: tvm.IRModule, params: Mapping[str, Any]) -> None:
    """Raise what `bound_main` raises."""
    check_module(mod)
    check_mapping("params", params, _PARAMS, LoweringError)
    parameters = [var for var in mod["main"].params if var.name_hint in params]
    faults = [_fault(var, params[var.name_hint]) for var in parameters]
    if any(faults):
        raise LoweringError("; ".join(filter(None, faults)))


def _fault(parameter: relay.Var, value: Any) -> str:
    """What is wrong with the array of a parameter; "": nothing."""
    name, declared = f"params[{parameter.name_hint!r}]", parameter.type_annotation
    if not isinstance(value, _ARRAYS):
        return (
            f"{name} is of type {type(value).__name__}; expected an array: "
            f"numpy.asarray(value, dtype=...)"
        )
    if not isinstance(declared, relay.TensorType):
        return ""
    dtype, shape = str(value.dtype), tuple(int(size) for size in value.shape)
    if dtype != declared.dtype:
        fix = f"give array.astype({declared.dtype!r})"
        return f"{name} has dtype {dtype}, expected {declared.dtype}; {fix}"
    # Sizes that the module leaves open fit any.
    sizes = [int(size) if isinstance(size, tvm.tir.IntImm) else None for size in declared.shape]
    fits = len(sizes) == len(shape) and all(
        size in (None, extent) for size, extent in zip(sizes, shape, strict=True)
    )
    if fits:
        return ""
    expected = ["?" if size is None else size for size in sizes]
    return (
        f"{name} has shape {list(shape)}, expected [{', '.join(map(str, expected))}]; give the "
        f"weights that belong to this module"
    )
