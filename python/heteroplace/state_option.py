"""The option `state`: which outputs of a model replace which of its inputs from call to call."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from heteroplace.errors import SolverError
from heteroplace.options import key_value, pairs
from heteroplace.terminal import listed

StateNames = str | Mapping[str, str]
"""Outputs by the inputs that they replace, or AUTO."""
Ports = Sequence[tuple[str, tuple[int, ...], str]]
"""Name, shape and dtype of each input or output."""
StatePairs = tuple[tuple[str, str], ...]
"""(input, output that replaces it)."""

AUTO = "auto"
"""Pairs are found by their names."""
_FORM = "state={'input': 'output'}"

_SYNONYMS: Mapping[str, Sequence[str]] = {
    "present": ("past", "past_key_values"),
    "new": ("", "old", "prev"),
    "next": ("", "prev"),
    "updated": ("",),
    "out": ("in", ""),
    "output": ("input", ""),
}
"""Words in names of outputs, and what stands for them in names of inputs: optimum,
onnxruntime-genai, sherpa-onnx and others export such models."""


def state_entry(text: str) -> tuple[str, str]:
    """Read INPUT=OUTPUT, or AUTO.

    >>> state_entry("h=hn"), state_entry("auto")
    (('h', 'hn'), ('auto', ''))
    """
    if text == AUTO:
        return AUTO, ""
    return key_value("INPUT=OUTPUT, such as 'h=hn', or auto")(text)


def joined_state(entries: Sequence[tuple[str, str]]) -> StateNames:
    """Return the entries of a command line as one value.

    >>> joined_state([("h", "hn"), ("c", "cn")]), joined_state([("auto", "")])
    ({'h': 'hn', 'c': 'cn'}, 'auto')
    """
    if (AUTO, "") not in entries:
        return pairs(entries)
    if len(entries) > 1:
        raise ValueError("'auto' finds all pairs; give it alone, or name each pair")
    return AUTO


def check_state(state: StateNames) -> None:
    """Raise SolverError unless the option has such a value."""
    if state == AUTO:
        return
    if not isinstance(state, Mapping) or not all(
        isinstance(name, str) for pair in state.items() for name in pair
    ):
        raise SolverError(
            f"state={state!r}; expected 'auto', or outputs by the inputs that they replace: "
            "{'h': 'hn'}"
        )
    twice = {output for output in state.values() if list(state.values()).count(output) > 1}
    if twice:
        raise SolverError(
            f"state={state!r} has {listed(map(repr, sorted(twice)))} twice; an output replaces "
            "one input"
        )


def check_max_sessions(max_sessions: int, state: StateNames) -> None:
    """Raise SolverError unless so many sessions may be open at once."""
    if max_sessions < 1:
        raise SolverError(f"max_sessions={max_sessions!r}; expected a number of sessions, >= 1")
    if max_sessions > 1 and not state:
        raise SolverError(
            f"max_sessions={max_sessions} is given without state, and a model without state has "
            f"no sessions; give state='auto', or leave it out"
        )


def state_pairs(state: StateNames, inputs: Ports, outputs: Ports) -> StatePairs:
    """Return the pairs of a model, in the order of its inputs.

    Raises
    ------
    SolverError
        There is no such input or output, both differ in type or shape, or AUTO finds no pair.

    Examples
    --------
    >>> inputs = [("x", (4,), "float32"), ("state", (2,), "float32")]
    >>> outputs = [("y", (4,), "float32"), ("stateN", (2,), "float32")]
    >>> state_pairs("auto", inputs, outputs)
    (('state', 'stateN'),)
    """
    if isinstance(state, str):
        return _named_alike(inputs, outputs)
    input_types, output_types = (
        {name: (shape, dtype) for name, shape, dtype in ports} for ports in (inputs, outputs)
    )
    faults = []
    for name, output in state.items():
        for kind, each, types in (("input", name, input_types), ("output", output, output_types)):
            if each not in types:
                names = listed(map(repr, types)) or "none"
                faults.append(f"the model has no {kind} {each!r}; it has {names}")
        one, other = input_types.get(name), output_types.get(output)
        if one is not None and other is not None and one != other:
            faults.append(
                f"input {name!r} is {_described(one)}, and output {output!r} is {_described(other)}"
            )
    if faults:
        raise SolverError(f"state={dict(state)!r}: {'; '.join(faults)}")
    return tuple((name, state[name]) for name, _, _ in inputs if name in state)


def possible_pairs(
    state: StateNames, inputs: Sequence[str], outputs: Sequence[str]
) -> list[tuple[str, str]]:
    """Return pairs that may be meant, by their names alone: (input, output), in order of inputs.

    Examples
    --------
    >>> possible_pairs("auto", ["x", "past.0.key"], ["y", "present.0.key"])
    [('past.0.key', 'present.0.key')]
    """
    if isinstance(state, str):
        named = [(name, output) for output in outputs for name in _input_names(output)]
    else:
        named = [(name, output) for name, output in state.items() if output in outputs]
    return [pair for name in inputs for pair in named if pair[0] == name]


def _named_alike(inputs: Ports, outputs: Ports) -> StatePairs:
    """The pairs whose names say so, of one type and shape."""
    types = {name: (shape, dtype) for name, shape, dtype in inputs}
    outputs_of: dict[str, list[str]] = {}
    for name, shape, dtype in outputs:
        for each in _input_names(name):
            if types.get(each) == (shape, dtype):
                outputs_of.setdefault(each, []).append(name)
    every = [output for several in outputs_of.values() for output in several]
    clear = {name: several[0] for name, several in outputs_of.items() if len(several) == 1}
    if len(clear) < len(outputs_of) or len(set(every)) < len(every):
        texts = [f"{name!r} by {' or '.join(map(repr, each))}" for name, each in outputs_of.items()]
        raise SolverError(
            f"state='auto' finds several pairs for one input or output: {listed(texts)}; "
            f"name the pairs: {_FORM}"
        )
    if not clear:
        raise SolverError(
            "state='auto' finds no output that replaces an input by its name, type and shape; the "
            f"model has inputs {listed(map(repr, types))} and outputs "
            f"{listed(repr(name) for name, _, _ in outputs)}; name the pairs: {_FORM}"
        )
    return tuple((name, clear[name]) for name in types if name in clear)


def _input_names(output: str) -> list[str]:
    """What an input may be called that an output replaces, each once.

    >>> _input_names("present.0.key"), _input_names("hn"), _input_names("new_cached_len_0")[:1]
    (['past.0.key', 'past_key_values.0.key'], ['h', 'h0', 'h_0'], ['cached_len_0'])
    """
    return list(dict.fromkeys(_renamed(output)))


def _renamed(output: str) -> Iterator[str]:
    for word, others in _SYNONYMS.items():
        for other in others:
            name = re.sub(rf"(?<![A-Za-z]){word}(?![A-Za-z])", other, output)
            name = re.sub(r"([_.])[_.]+", r"\1", name).strip("_.")
            # "output_0" is what a model is for, and replaces no "input_0".
            if name != output and not re.fullmatch(r"(in|input)[_.\d]*", name):
                yield name
    root = re.sub(r"_?[nN]$", "", output)
    if root and root != output:
        yield from (root, f"{root}0", f"{root}_0")


def _described(type_: tuple[tuple[int, ...], str]) -> str:
    shape, dtype = type_
    return f"{dtype} [{', '.join(map(str, shape))}]"
