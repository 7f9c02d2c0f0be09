"""What an import gives: a Relay module, its parameters, and a report of what was done."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import tvm
from tvm import relay

from heteroplace.errors import FrontendError
from heteroplace.parts.onnx.prepare.onnx_batch import SYMBOLIC
from heteroplace.parts.onnx.prepare.onnx_source import read_source, with_source
from heteroplace.relay.expressions import static_shape
from heteroplace.relay.output_names import read_graph_name, with_graph_name, with_output_names
from heteroplace.relay.tasks.rebatch import rebatch


@dataclass(frozen=True)
class ImportedModel:
    """A model in Relay. Unpacks as `mod, params = from_onnx(...)`.

    Invariant (checked by `from_onnx`): every expression of `mod` has a static shape.
    """

    mod: tvm.IRModule
    """Typed module; the parameters of its `main` are `inputs`, then the names of `params`, in
    order. An attribute of `main` says what it was imported from (`prepare/onnx_source.py`)."""
    params: Mapping[str, tvm.nd.NDArray]
    "Weights by parameter name; they are not bound into `mod`."
    inputs: Mapping[str, tuple[tuple[int, ...], str]]
    "Input name -> (shape, dtype), in the order of the file."
    outputs: tuple[str, ...]
    "Names of the outputs, in order."
    report: tuple[str, ...]
    "What was simplified, repaired and folded; op counts; processor seconds."
    symbolic: tuple[str, ...] = ()
    """Inputs that hold any number of rows, one in `mod`; empty: all sizes are fixed."""

    def at_batch(self, rows: int) -> ImportedModel:
        """Return a model that was imported with a symbolic batch for one number of rows.

        Raises
        ------
        FrontendError
            It was imported with fixed sizes, or the number is no positive one.
        """
        if not self.symbolic or rows < 1:
            raise FrontendError(
                f"a batch of {rows} rows: expected 1 or more, of a model whose batch is symbolic "
                f"(from_onnx(..., batch={SYMBOLIC!r}))"
            )
        return self.of_module(rebatch(self.mod, rows, self.symbolic))

    def of_module(self, mod: tvm.IRModule) -> ImportedModel:
        """Return the model with a module of the same parameters, for other sizes of its inputs."""
        types = {var.name_hint: var.checked_type for var in mod["main"].params}
        inputs = {
            name: (static_shape(types[name]), dtype) for name, (_, dtype) in self.inputs.items()
        }
        source = read_source(self.mod)
        if source is not None:
            sizes = {name: inputs[name][0] for name in source.input_shapes}
            mod = with_source(mod, replace(source, input_shapes=sizes))
        mod = with_graph_name(with_output_names(mod, self.outputs), read_graph_name(self.mod))
        return replace(self, mod=mod, inputs=inputs, symbolic=())

    def __iter__(self) -> Iterator[Any]:
        return iter((self.mod, self.params))

    def bind_params(self) -> tvm.IRModule:
        """Return a copy of `mod` in which the parameters are constants."""
        if not self.params:
            return self.mod
        main = relay.build_module.bind_params_by_name(self.mod["main"], dict(self.params))
        return relay.transform.InferType()(tvm.IRModule.from_expr(main))
