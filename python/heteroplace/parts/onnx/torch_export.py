"""A module of PyTorch -> ONNX by torch's own exporter -> Relay (`importer.py`).

The exporter that is taken traces the program (`torch.export`) and fails where its course hangs on
values. TorchScript's takes more modules, but writes the course of the example inputs down as if it
were the only one: other inputs then give wrong results, silently. It has to be asked for.
"""

from __future__ import annotations

import importlib
import io
import re
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import onnx

from heteroplace.errors import FrontendError, MissingPackageError
from heteroplace.parts.onnx.imported_model import ImportedModel
from heteroplace.parts.onnx.importer import from_onnx

EXPORTERS = {"dynamo": 18, "torchscript": 17}
"""Each exporter, and the opset that it writes."""
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


def from_torch(
    module: Any,
    example_inputs: Sequence[Any] | Mapping[str, Any],
    *,
    exporter: str = "dynamo",
    simplify: bool = True,
    keep_weights: bool = False,
) -> ImportedModel:
    """Import a module of PyTorch; it is exported as it is used for inference.

    Parameters
    ----------
    module
        A `torch.nn.Module`; it is in the mode of inference meanwhile.
    example_inputs
        Tensors, in order, or by the name of the argument; their shapes are those of the import.
    exporter
        "dynamo", or "torchscript": see above.
    simplify, keep_weights
        As of `from_onnx`.

    Raises
    ------
    MissingPackageError
        torch, or onnxscript, which its exporter needs, is not installed.
    FrontendError
        torch cannot export the module, or what it exported cannot be compiled.

    Examples
    --------
    >>> mod, params = from_torch(model, (torch.randn(1, 3, 224, 224),))  # doctest: +SKIP
    """
    if exporter not in EXPORTERS:
        raise FrontendError(
            f"exporter={exporter!r}; expected one of {', '.join(map(repr, EXPORTERS))}"
        )
    torch = _require("torch")
    if exporter == "dynamo":
        _require("onnxscript")
    if not isinstance(module, torch.nn.Module):
        raise FrontendError(
            f"from_torch takes a torch.nn.Module, got a {type(module).__name__}; ONNX files are "
            f"read by from_onnx"
        )
    was_training = module.training
    module.eval()
    try:
        model = _exported(torch, module, example_inputs, exporter)
    finally:
        module.train(was_training)
    return from_onnx(model, simplify=simplify, keep_weights=keep_weights)


def _exported(
    torch: Any, module: Any, example_inputs: Sequence[Any] | Mapping[str, Any], exporter: str
) -> onnx.ModelProto:
    is_named = isinstance(example_inputs, Mapping)
    given: dict[str, Any] = {
        "args": () if is_named else tuple(example_inputs),
        "kwargs": dict(example_inputs) if isinstance(example_inputs, Mapping) else None,
        "opset_version": EXPORTERS[exporter],
        "dynamo": exporter == "dynamo",
    }
    written = io.BytesIO()
    try:
        with torch.no_grad(), warnings.catch_warnings():
            # That TorchScript is on its way out is no news to who asked for it.
            warnings.simplefilter("ignore", DeprecationWarning)
            if exporter == "dynamo":
                exported: onnx.ModelProto = torch.onnx.export(
                    module, verbose=False, **given
                ).model_proto
                return exported
            torch.onnx.export(module, f=written, **given)
    # What torch raises hangs on the module: its own code runs while it is traced.
    except (RuntimeError, TypeError, ValueError, AttributeError, LookupError, OSError) as err:
        raise FrontendError(
            f"torch cannot export {type(module).__name__} by its exporter {exporter!r}: "
            f"{export_reason(err)}. Check that torch.export takes it with "
            f"these inputs; exporter='torchscript' takes more, with the course of these inputs"
        ) from err
    return onnx.load_model_from_string(written.getvalue())


def export_reason(err: BaseException) -> str:
    """Return the first line of the first cause: later lines are advice, in colours."""
    while err.__cause__ is not None:
        err = err.__cause__
    lines = [line.strip() for line in _COLOUR.sub("", str(err)).splitlines() if line.strip()]
    return f"{type(err).__name__}: {lines[0].rstrip('.')}" if lines else type(err).__name__


def _require(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as err:
        raise MissingPackageError(
            f"the package {name} is not installed, which from_torch exports modules by; run: pip "
            f"install {name}"
        ) from err
