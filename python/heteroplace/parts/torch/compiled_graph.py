"""A graph of TorchDynamo -> compiled programs, one for each set of sizes, or PyTorch's own run."""

from __future__ import annotations

import logging
import threading
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

import heteroplace
from heteroplace.errors import FrontendError, UnsupportedRelayError, VerificationError
from heteroplace.parts.onnx.verify.tolerances import choose_tolerance, compare
from heteroplace.parts.torch.dynamo_backend import TorchOptions, is_verified
from heteroplace.parts.torch.frozen_weights import FrozenWeights
from heteroplace.parts.torch.graph_export import ExportedGraph, export_graph, own_tensors
from heteroplace.parts.torch.tensor_arrays import array_of, dtype_of, tensor_of

_LOG = logging.getLogger("heteroplace")
_STATIC = "_dynamo_static_input_type"
"""TorchDynamo marks parameters and buffers of modules by this attribute."""


def compile_graph(
    graph: torch.fx.GraphModule,
    examples: Sequence[torch.Tensor | int],
    options: TorchOptions,
    placing: Mapping[str, Any],
) -> Callable[..., Sequence[object]]:
    """Return what runs a graph: compiled programs, or PyTorch where gradients are needed.

    Raises
    ------
    FrontendError
        With `strict`, gradients are needed.
    """
    tensors = [each for each in (*examples, *own_tensors(graph)) if isinstance(each, torch.Tensor)]
    if torch.is_grad_enabled() and any(each.requires_grad for each in tensors):
        _refuse(
            "it needs gradients, and compiled code is for inference; call it under "
            "torch.no_grad() or torch.inference_mode()",
            options,
        )
        run_by_torch: Callable[..., Sequence[object]] = graph
        return run_by_torch
    return CompiledGraph(graph, examples, options, placing)


@dataclass(frozen=True)
class _Program:
    """A graph that is compiled for one set of sizes."""

    executor: heteroplace.Executor
    inputs: tuple[tuple[str, int], ...]
    """Name of each input of the executor, and its position in the arguments."""
    outputs: tuple[int | None, ...]
    """For each output of the graph its position in those of the executor; None: no tensor."""
    numbers: tuple[object, ...]
    """The outputs that are no tensors: with the sizes they are constant."""

    def run(self, arguments: Sequence[torch.Tensor | int]) -> tuple[object, ...]:
        arrays = {name: array_of(arguments[position]) for name, position in self.inputs}
        results = [
            tensor_of(array, dtype)
            for array, (_, _, dtype) in zip(
                self.executor.run(arrays), self.executor.outputs, strict=True
            )
        ]
        return tuple(
            number if index is None else results[index]
            for index, number in zip(self.outputs, self.numbers, strict=True)
        )


class CompiledGraph:
    """Runs a graph of TorchDynamo; any thread may call it.

    Parameters
    ----------
    placing
        Options of `heteroplace.compile`.
    """

    def __init__(
        self,
        graph: torch.fx.GraphModule,
        examples: Sequence[torch.Tensor | int],
        options: TorchOptions,
        placing: Mapping[str, Any],
    ) -> None:
        self._graph, self._options = graph, options
        self._placing = {**placing, "verify": "off"}
        self._is_verified = is_verified(placing)
        self._weight_positions = [
            position for position, each in enumerate(examples) if _is_weight(each)
        ]
        self._own = own_tensors(graph)
        self._programs: dict[tuple[object, ...], _Program] = {}
        self._weights: FrozenWeights | None = None
        self._num_compiles = 0
        self._is_eager = self._is_limit_reported = False
        self._lock = threading.Lock()

    def __call__(self, *arguments: torch.Tensor | int) -> Sequence[object]:
        program = None if self._is_eager else self._program(arguments)
        if program is None:
            outputs: Sequence[object] = self._graph(*arguments)
            return outputs
        return program.run(arguments)

    def _program(self, arguments: Sequence[torch.Tensor | int]) -> _Program | None:
        """Return the program for some arguments; None: PyTorch runs the graph."""
        sizes = tuple(getattr(each, "shape", each) for each in arguments)
        with self._lock:
            weights = self._weights_of(arguments)
            if self._weights is not None and not self._weights.are_same(weights):
                self._forget(self._weights.changed(weights), arguments)
            program = self._programs.get(sizes)
            if program is not None:
                return program
            if self._num_compiles == self._options.max_compiles:
                self._refuse_more_compiles()
                return None
            try:
                if self._weights is None:
                    self._weights = FrozenWeights(
                        self._weights_of(arguments), self._options.check_all_weights
                    )
                self._programs[sizes] = self._compiled(arguments)
            except (FrontendError, UnsupportedRelayError, VerificationError) as err:
                self._is_eager = not self._options.strict
                _refuse(str(err), self._options, err)
            return self._programs.get(sizes)

    def _weights_of(self, arguments: Sequence[torch.Tensor | int]) -> list[torch.Tensor]:
        """Return the tensors that compiled code has as constants."""
        return [*(arguments[position] for position in self._weight_positions), *self._own]

    def _forget(self, changed: Sequence[int], arguments: Sequence[torch.Tensor | int]) -> None:
        """Drop all programs; buffers that have changed become inputs, parameters stay constants.

        Parameters
        ----------
        changed
            Indices into the weights.
        """
        _LOG.info("%d weights have changed: the graph is compiled again", len(changed))
        self._programs.clear()
        self._weights = None
        positions = [self._weight_positions[i] for i in changed if i < len(self._weight_positions)]
        for position in positions:
            if not isinstance(arguments[position], torch.nn.Parameter):
                self._weight_positions.remove(position)

    def _refuse_more_compiles(self) -> None:
        """Warn once that the limit is reached; with `strict`, raise FrontendError each time."""
        if not self._is_limit_reported:
            self._is_limit_reported = not self._options.strict
            _refuse(
                f"it was compiled {self._num_compiles} times, for other sizes or weights, which is "
                f"the limit; options={{'max_compiles': N}} sets another one",
                self._options,
            )

    def _compiled(self, arguments: Sequence[torch.Tensor | int]) -> _Program:
        start = time.monotonic()
        exported = export_graph(self._graph, arguments, self._weight_positions)
        expected = self._run_by_torch(arguments)
        executable = heteroplace.compile(exported.model, self._options.cluster, **self._placing)
        executor = heteroplace.Executor(executable)
        program = _program_of(executor, exported, arguments, expected)
        if self._is_verified:
            check_outputs(program.run(arguments), expected)
        self._num_compiles += 1
        _LOG.info("compiled a graph of torch.compile in %.1f s", time.monotonic() - start)
        return program

    def _run_by_torch(self, arguments: Sequence[torch.Tensor | int]) -> Sequence[object]:
        """Return PyTorch's outputs, which show what a compiled program cannot do."""
        state = torch.get_rng_state()
        outputs: Sequence[object] = self._graph(*arguments)
        if not torch.equal(state, torch.get_rng_state()):
            torch.set_rng_state(state)
            raise FrontendError("it draws random numbers; call model.eval() if a dropout does")
        memory = {_memory(each) for each in (*arguments, *self._own)} - {0}
        for index, output in enumerate(outputs):
            if _memory(output) in memory:
                raise FrontendError(f"its output {index} is a view of an input or a weight")
        return outputs


def _is_weight(example: torch.Tensor | int) -> bool:
    return isinstance(example, torch.nn.Parameter) or getattr(example, _STATIC, None) is not None


def _memory(value: object) -> int:
    """Return where the storage of a tensor begins; 0: it has none, or this is no tensor."""
    return value.untyped_storage().data_ptr() if isinstance(value, torch.Tensor) else 0


def _program_of(
    executor: heteroplace.Executor,
    exported: ExportedGraph,
    arguments: Sequence[torch.Tensor | int],
    expected: Sequence[object],
) -> _Program:
    ports = {name: (name, shape, dtype) for name, shape, dtype in executor.inputs}
    inputs = tuple(each for each in exported.inputs if each[0] in ports)
    for name, position in inputs:
        _check_port("input", arguments[position], ports[name])
    for index, output in zip(exported.outputs, expected, strict=True):
        if index is not None:
            _check_port("output", output, executor.outputs[index])
    numbers = tuple(None if isinstance(each, torch.Tensor) else each for each in expected)
    return _Program(executor, inputs, exported.outputs, numbers)


def _check_port(kind: str, tensor: Any, port: tuple[str, tuple[int, ...], str]) -> None:
    """Raise FrontendError unless an input or output of a program is as PyTorch's."""
    name, *compiled = port
    shape, dtype = tuple(tensor.shape), dtype_of(tensor)
    if compiled != [shape, dtype]:
        raise FrontendError(
            f"its {kind} {name!r} is {dtype} {shape} in PyTorch, and {compiled[1]} {compiled[0]} "
            f"compiled"
        )


def check_outputs(outputs: Sequence[object], expected: Sequence[object]) -> None:
    """Raise VerificationError if outputs differ from PyTorch's by more than rounding."""
    pairs = [
        (ours, theirs)
        for ours, theirs in zip(outputs, expected, strict=True)
        if isinstance(ours, torch.Tensor) and isinstance(theirs, torch.Tensor)
    ]
    tolerance = choose_tolerance({dtype_of(theirs) for _, theirs in pairs}, ())
    actual, reference = zip(*((_numbers(a), _numbers(b)) for a, b in pairs), strict=True)
    difference = compare(actual, reference, tolerance)
    if not difference.is_within:
        raise VerificationError(
            f"its compiled outputs differ from PyTorch's by {difference.relative:.2g} of the "
            f"largest value, more than {tolerance.relative:g}; options={{'verify': 'off'}} takes "
            f"them"
        )


def _numbers(tensor: torch.Tensor) -> Any:
    """Return a tensor as an array of numbers; bfloat16 becomes float32."""
    return array_of(tensor.float() if tensor.dtype is torch.bfloat16 else tensor)


def _refuse(reason: str, options: TorchOptions, cause: Exception | None = None) -> None:
    """Warn that PyTorch runs a graph; with `strict`, raise FrontendError."""
    if options.strict:
        raise FrontendError(f"a graph of torch.compile cannot be compiled: {reason}") from cause
    warnings.warn(
        f"backend 'heteroplace': PyTorch runs a graph: {reason} (options={{'strict': True}} makes "
        f"this an error)",
        stacklevel=2,
    )
