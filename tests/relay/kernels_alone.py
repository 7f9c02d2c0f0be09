"""Kernel calls one after the other, each value in bytes of its own: what any program must equal."""

from __future__ import annotations

from pathlib import Path
from tempfile import mkdtemp

import numpy as np
import tvm
from tvm import tir

from heteroplace.files.manifest import State
from heteroplace.lower.compile import CompiledKernels
from heteroplace.lower.lowered import Lowered
from heteroplace.native.compiled_file import SealedCode
from heteroplace.native.execute import Executor as NativeExecutor
from heteroplace.run.loaded_program import LoadedProgram
from heteroplace.run.state import ProgramState
from heteroplace.tir.lowered_functions import with_functions
from heteroplace.tvm_bridge import library_path

Arrays = dict[str, np.ndarray]


class BareProgram(LoadedProgram):
    """A program without a file, which holds the code that it is loaded from."""

    def __init__(self, native: NativeExecutor, states: ProgramState, code: SealedCode) -> None:
        super().__init__(native, states.ports)
        self._code = code


def loaded(kernels: CompiledKernels, lowered: Lowered) -> tuple[LoadedProgram, ProgramState]:
    """A program of these kernels, whatever solution it is of, and its state, which is to be set."""
    code, blob = kernels.library.sealed(), lowered.make_blob()
    text = lowered.program.to_text()
    native = NativeExecutor(str(library_path()), code.path, text, blob=blob)
    states = ProgramState(native, [State(name, ports) for name, ports in lowered.state.items()])
    return BareProgram(native, states, code), states


def with_check(functions: tvm.IRModule, condition: bool, message: str) -> tvm.IRModule:
    """Lowered functions that first check a condition."""
    check = tir.AssertStmt(tir.const(condition), tir.StringImm(message), tir.Evaluate(0))
    return with_functions(functions, lambda each: each.with_body(tir.SeqStmt([check, each.body])))


class KernelsAlone:
    """The kernels of a plan, called by TVM."""

    def __init__(self, kernels: CompiledKernels, folder: Path) -> None:
        # Each in a file of its own: one that is loaded must not be written over.
        path = Path(mkdtemp(dir=folder)) / "kernels.so"
        path.write_bytes(kernels.library.image)
        self._library = tvm.runtime.load_module(str(path))
        self._calls = kernels.calls

    def run(self, inputs: Arrays, state: Arrays) -> tuple[list[np.ndarray], Arrays]:
        """Outputs and new state, which must be the same in all memories that have it."""
        calls = self._calls
        made: dict[int, np.ndarray] = {}
        waiting = list(calls.calls)
        while waiting:
            call = next(
                each for each in waiting if all(self._is_ready(i, made) for i in each.reads)
            )
            waiting.remove(call)
            reads = [
                np.asarray(self._value(index, made, inputs | state), order="C")
                for index in call.reads
            ]
            if not call.kernel:
                (made[call.writes[0]],) = reads
                continue
            types = [calls.values[index] for index in call.writes]
            arrays = [tvm.nd.empty(each.shape, each.dtype) for each in types]
            self._library[call.kernel](*map(tvm.nd.array, reads), *arrays)
            found = [array.numpy() for array in arrays]
            made.update(zip(call.writes, found, strict=True))
        new: Arrays = {}
        for index, value in enumerate(calls.values):
            before = None if value.in_place_of is None else calls.values[value.in_place_of]
            if before is not None and before.input_name is not None:
                array = self._value(index, made, {})
                assert new.setdefault(before.input_name, array).tobytes() == array.tobytes()
        return [self._value(index, made, inputs | state) for index in calls.outputs], new

    def _value(self, index: int, made: dict[int, np.ndarray], given: Arrays) -> np.ndarray:
        found = self._calls.values[index]
        if index in made:
            return made[index]
        if found.alias_of is not None:
            return self._value(found.alias_of, made, given).reshape(found.shape)
        if found.constant is not None:
            return found.constant
        if found.input_name is not None:
            return given[found.input_name]
        assert found.joined is not None
        parts = []
        for item, part in zip(found.items, found.joined.parts, strict=True):
            items = self._calls.values[part].items
            whole = np.reshape(self._value(part, made, given), (found.joined.outer, len(items), -1))
            parts.append(whole[:, items.index(item)])
        return np.stack(parts, axis=1).reshape(found.shape)

    def _is_ready(self, index: int, made: dict[int, np.ndarray]) -> bool:
        found = self._calls.values[index]
        if found.alias_of is not None:
            return self._is_ready(found.alias_of, made)
        parts = () if found.joined is None else found.joined.parts
        is_given = found.constant is not None or found.input_name is not None
        return (
            index in made or is_given or bool(parts and all(self._is_ready(p, made) for p in parts))
        )
