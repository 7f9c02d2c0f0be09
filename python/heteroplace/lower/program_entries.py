"""Executables of one model at several sizes -> one executable that has them as entries.

All entries read one array of weights, in which equal weights lie once. They keep the same state,
each in memories of its own choice. The first entry is what the executable itself is. The libraries
of the others lie behind the weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache

import numpy as np

from heteroplace.errors import LoweringError
from heteroplace.files.manifest import ProgramEntry
from heteroplace.lower.executable import Executable
from heteroplace.lower.kernels import Value
from heteroplace.lower.shared_weights import share_weights
from heteroplace.lower.weight_blob import WeightLayout


def with_entries(executables: Mapping[str, Executable]) -> Executable:
    """Return one executable with all of them, by name; the first one is its own program.

    Raises
    ------
    LoweringError
        An entry is for several hosts, or two keep different state.
    """
    names = list(executables)
    for name, executable in executables.items():
        if len(executable.lowered.hosts) > 1:
            raise LoweringError(f"entry {name!r} is for several hosts; place it on one")
        if executable.solution.cluster.devices != executables[names[0]].solution.cluster.devices:
            raise LoweringError(
                f"entry {name!r} is placed on other devices than {names[0]!r}; use one cluster"
            )
        _check_state(names[0], executables[names[0]], name, executable)
    programs = share_weights([executable.lowered for executable in executables.values()])
    layout = WeightLayout(programs[0].weights, programs[0].blob_bytes)
    codes = [np.frombuffer(each.library.image, dtype="uint8") for each in executables.values()]
    offsets = [layout.offset(Value(code.shape, "uint8", constant=code)) for code in codes[1:]]
    programs = [
        replace(program, weights=layout.weights, blob_bytes=layout.blob_bytes)
        for program in programs
    ]
    make_blob = cache(programs[0].make_blob)
    written = [
        executable.with_weights_of(program, make_blob)
        for executable, program in zip(executables.values(), programs, strict=True)
    ]
    first, others = written[0], dict(zip(names[1:], written[1:], strict=True))
    entries = tuple(
        ProgramEntry(name, offset, len(code), each.manifest)
        for (name, each), offset, code in zip(others.items(), offsets, codes[1:], strict=True)
    )
    manifest = replace(first.manifest, entry=names[0], entries=entries)
    return replace(first, manifest=manifest, entries=others, source=None)


def _check_state(name: str, one: Executable, other_name: str, other: Executable) -> None:
    """Raise LoweringError unless both keep the same state."""
    states = _states(one), _states(other)
    for input_ in dict.fromkeys([*states[0], *states[1]]):
        texts = [each.get(input_, "keeps none") for each in states]
        if texts[0] != texts[1]:
            raise LoweringError(
                f"state {input_!r} is {texts[0]} in entry {name!r} and {texts[1]} in entry "
                f"{other_name!r}; entries share their state, so give it one size"
            )


def _states(executable: Executable) -> dict[str, str]:
    """What each input is that sessions keep."""
    program = executable.lowered.program
    tensors = [program.tensors[tensor] for _, tensor in program.inputs]
    return {
        program.inputs[input_][0]: (f"{tensors[input_].dtype} {list(tensors[input_].shape)}")
        for input_, _ in program.kept_states
    }
