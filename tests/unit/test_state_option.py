"""The option `state`: pairs that are named, and pairs that names tell."""

from __future__ import annotations

import pytest

from heteroplace.errors import SolverError
from heteroplace.state_option import check_state, joined_state, state_pairs


def ports(*names: str, shape: tuple[int, ...] = (2, 3)) -> list[tuple[str, tuple[int, ...], str]]:
    return [(name, shape, "float32") for name in names]


@pytest.mark.parametrize(
    ("inputs", "outputs", "pairs"),
    [
        ("x state sr", "y stateN", {"state": "stateN"}),
        ("x h c", "y hn cn", {"h": "hn", "c": "cn"}),
        ("x h0 c0", "y h_n c_n", {"h0": "h_n", "c0": "c_n"}),
        (
            "input_ids past_key_values.0.key past_key_values.0.value",
            "logits present.0.key present.0.value",
            {
                "past_key_values.0.key": "present.0.key",
                "past_key_values.0.value": "present.0.value",
            },
        ),
        (
            "ids past_key_1 past_1",
            "logits present_key_1 present_1",
            {"past_key_1": "present_key_1", "past_1": "present_1"},
        ),
        ("x cached_len_0", "y new_cached_len_0", {"cached_len_0": "new_cached_len_0"}),
        (
            "x state_in_0 state_in_1",
            "y state_out_0 state_out_1",
            {"state_in_0": "state_out_0", "state_in_1": "state_out_1"},
        ),
        ("input state", "output stateN", {"state": "stateN"}),
        ("input_0 in h", "output_0 out hn", {"h": "hn"}),
        ("x cache_prev", "y cache_next", {"cache_prev": "cache_next"}),
    ],
)
def test_names_tell_the_pairs(inputs: str, outputs: str, pairs: dict[str, str]) -> None:
    assert dict(state_pairs("auto", ports(*inputs.split()), ports(*outputs.split()))) == pairs


def test_an_output_of_another_shape_replaces_nothing() -> None:
    outputs = [*ports("hn", shape=(2, 4)), *ports("cn")]
    assert state_pairs("auto", ports("h", "c"), outputs) == (("c", "cn"),)


@pytest.mark.parametrize(
    ("inputs", "outputs", "text"),
    [("x h", "new_h hn", "'h' by 'new_h' or 'hn'"), ("h h0", "hn", "'h' by 'hn', 'h0' by 'hn'")],
)
def test_names_that_tell_several_pairs_are_an_error(inputs: str, outputs: str, text: str) -> None:
    with pytest.raises(SolverError, match=f"several pairs .*: {text}; name the pairs"):
        state_pairs("auto", ports(*inputs.split()), ports(*outputs.split()))


def test_no_pair_is_an_error_that_lists_the_names() -> None:
    with pytest.raises(SolverError, match="inputs 'x' and outputs 'y'; name the pairs"):
        state_pairs("auto", ports("x"), ports("y"))


def test_all_faults_of_named_pairs_are_told() -> None:
    with pytest.raises(SolverError) as refused:
        state_pairs(
            {"g": "hn", "h": "z", "c": "cn"},
            ports("h", "c"),
            [*ports("hn"), *ports("cn", shape=(9,))],
        )
    text = str(refused.value)
    assert "no input 'g'; it has 'h', 'c'" in text
    assert "no output 'z'; it has 'hn', 'cn'" in text
    assert "input 'c' is float32 [2, 3], and output 'cn' is float32 [9]" in text


def test_pairs_are_in_the_order_of_the_inputs() -> None:
    pairs = state_pairs({"b": "b1", "a": "a1"}, ports("a", "b"), ports("b1", "a1"))
    assert pairs == (("a", "a1"), ("b", "b1"))


@pytest.mark.parametrize("state", [3, "hn", {"h": 3}, {"h": "n", "c": "n"}])
def test_other_values_are_refused(state: object) -> None:
    with pytest.raises(SolverError, match="state="):
        check_state(state)  # type: ignore[arg-type]


def test_auto_stands_alone() -> None:
    with pytest.raises(ValueError, match="give it alone"):
        joined_state([("auto", ""), ("h", "hn")])
