"""Inputs of a model: what is made up, and what is said of wrong ones."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from heteroplace.cli.models.model_arrays import make_inputs, numbers_of
from heteroplace.errors import ExecutionError

PORTS = [("image", (1, 4), "float32"), ("mask", (3,), "int64"), ("half", (2,), "bfloat16")]


def test_what_is_not_given_is_made_up_within_what_is_legal() -> None:
    image = np.ones((1, 4), "float32")
    found = make_inputs(PORTS, {"image": image}, {"mask": (5.0, 6.0)}, seed=1)
    assert list(found) == ["image", "mask", "half"]
    assert np.array_equal(found["image"], image)
    assert found["mask"].dtype == "int64"
    assert set(found["mask"].tolist()) <= {5, 6}
    assert found["half"].dtype == "uint16"
    again = make_inputs(PORTS, {}, {}, seed=1)
    assert np.array_equal(make_inputs(PORTS, {}, {}, seed=1)["image"], again["image"])


def test_a_single_number_stays_one() -> None:
    ports = [("rate", (), "float32"), ("turned", (2, 3), "float32"), ("half", (), "bfloat16")]
    given = {"rate": np.array(0.5), "turned": np.ones((3, 2)).T}
    found = make_inputs(ports, given, {}, seed=0)
    assert found["rate"].shape == ()
    assert found["rate"].dtype == "float32"
    assert float(found["rate"]) == 0.5
    assert found["turned"].flags.c_contiguous
    assert isinstance(found["half"], np.ndarray)
    assert found["half"].shape == ()


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"imagee": np.ones((1, 4), "float32")}, "no input 'imagee'; did you mean \"image\""),
        ({"image": np.ones(4, "float32")}, r"'image' has shape \[4\], expected \[1, 4\]"),
        ({"mask": np.ones(3, "float32")}, "'mask' is of type float32, expected int64"),
        (
            {"half": np.ones(2, "uint8")},
            "'half' is of type uint8, expected bfloat16: floating .* or",
        ),
        ({"half": np.ones(2, "int64")}, "bfloat16: .* or the bits of each as uint16"),
        ({"half": np.array([0, 3.4e38])}, "from 0.0 to 3.4e.38 of type float64, of which bfloat16"),
    ],
)
def test_wrong_arrays_are_told(given: dict[str, np.ndarray], told: str) -> None:
    with pytest.raises(ExecutionError, match=told):
        make_inputs(PORTS, given, {}, seed=0)


@pytest.mark.parametrize(
    ("dtype", "array", "told"),
    [
        ("int8", np.array([1, 200], "uint8"), "from 1 to 200 of type uint8, .* int8"),
        ("int32", np.array([0, 2**40]), "from 0 to 1099511627776 of type int64, .* int32"),
        (
            "int64",
            np.array([0, 2**63], "uint64"),
            "from 0 to 9223372036854775808 of type uint64, .* int64",
        ),
        ("float32", np.array([-1e39, 0.5]), r"from -1e\+39 to 0.5 of type float64, .* float32"),
        ("float16", np.array([0, 70000]), "from 0 to 70000 of type int64, .* float16"),
    ],
)
def test_numbers_that_the_type_does_not_hold_are_told(
    dtype: str, array: np.ndarray, told: str
) -> None:
    with pytest.raises(ExecutionError, match=f"^input 'x' has values {told}"):
        make_inputs([("x", (2,), dtype)], {"x": array}, {}, seed=0)


def test_numbers_of_a_wider_type_are_taken_where_they_fit() -> None:
    ports = [("whole", (2,), "int8"), ("real", (4,), "float32"), ("none", (0,), "int8")]
    real = np.array([np.nan, np.inf, -np.inf, 0.1])
    given = {"whole": np.array([0, 127], "uint8"), "real": real, "none": np.ones(0, "int64")}
    found = make_inputs(ports, given, {}, seed=0)
    assert found["whole"].tolist() == [0, 127]
    np.testing.assert_array_equal(found["real"], real.astype("float32"))


@pytest.mark.parametrize("dtype", ["float16", "float32", ">f4", "float64"])
def test_floating_point_numbers_are_rounded_to_bfloat16(dtype: str) -> None:
    fine = [0, -0.0, 1, 1 + 2**-8, 1 + 3 * 2**-8, -1.004, np.inf, -np.inf, 6e4]
    array = np.array(fine).astype(dtype)
    found = make_inputs([("x", (9,), "bfloat16")], {"x": array}, {}, seed=0)["x"]
    assert found.dtype == "uint16"
    assert found.tolist() == array.astype(ml_dtypes.bfloat16).view("uint16").tolist()


def test_a_bfloat16_is_taken_by_its_bits_and_what_is_none_stays_none() -> None:
    ports = [(name, (), "bfloat16") for name in ("bits", "nan")]
    nan = np.array(0xFFFFFFFF, "uint32").view("float32")
    found = make_inputs(ports, {"bits": np.array(0x4000, ">u2"), "nan": nan}, {}, seed=0)
    assert found["bits"].dtype == "uint16"
    assert numbers_of(found["bits"], "bfloat16") == 2
    assert np.isnan(numbers_of(found["nan"], "bfloat16"))
    assert numbers_of(found["bits"], "uint16") == 0x4000
