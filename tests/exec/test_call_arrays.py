"""What callers hand over: numpy of any order, DLPack, names that are near."""

from __future__ import annotations

from collections.abc import Callable

import ml_dtypes
import numpy as np
import pytest
import tvm

from heteroplace.errors import ExecutionError
from heteroplace.run.arrays import InputPorts, take_input, take_outs

PORTS = (("image", (2, 3), "float32"), ("mask", (2,), "bool"), ("half", (2,), "bfloat16"))


class Tensor:
    """A tensor of another library: DLPack and nothing else."""

    def __init__(self, array: np.ndarray, device: tuple[int, int] = (1, 0)) -> None:
        self.array = array
        self.device = device

    def __dlpack__(self, **options: object) -> object:
        return self.array.__dlpack__()

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device


class Strict(Tensor):
    """As a tensor of torch that needs a gradient."""

    def __dlpack__(self, **options: object) -> object:
        raise BufferError("Can't export tensors that require gradient")


def image() -> np.ndarray:
    return np.arange(6, dtype="float32").reshape(2, 3)


@pytest.mark.parametrize("wrap", [Tensor, np.asarray])
def test_host_tensors_in_c_order_are_not_copied(wrap: Callable[[np.ndarray], object]) -> None:
    array = image()
    assert np.shares_memory(take_input("image", wrap(array)), array)


def test_tensors_of_tvm_are_not_copied() -> None:
    tensor = tvm.nd.array(image())
    first, second = take_input("image", tensor), take_input("image", tensor)
    np.testing.assert_array_equal(first, image())
    assert np.shares_memory(first, second)


@pytest.mark.parametrize("dtype", ["bool", "int8", "float16", "float64", "int64"])
def test_types_of_tvm_tensors(dtype: str) -> None:
    array = np.array([0, 1, 2]).astype(dtype)
    found = take_input("x", tvm.nd.array(array))
    assert found.dtype == dtype
    np.testing.assert_array_equal(found, array)


def test_read_only_and_other_orders_are_taken() -> None:
    array = image()
    array.flags.writeable = False
    for given in (array, np.asfortranarray(array), array[::-1][::-1], Tensor(image().T[:].T)):
        found = take_input("image", given)
        assert found.flags.c_contiguous
        np.testing.assert_array_equal(found, array)


@pytest.mark.parametrize(("kind", "name"), [(2, "cuda"), (10, "rocm"), (99, "device type 99")])
def test_another_device_is_refused(kind: int, name: str) -> None:
    with pytest.raises(ExecutionError, match=rf"'image' is in the memory of .*{name}:1; expected"):
        InputPorts(PORTS).take({"image": Tensor(image(), (kind, 1))})


def test_why_a_tensor_cannot_be_taken_is_told() -> None:
    with pytest.raises(ExecutionError, match="from Strict by DLPack: Can't export tensors"):
        take_input("image", Strict(image()))


def test_bfloat16_of_numpy_is_taken_as_bits() -> None:
    array = np.array([1, 2], ml_dtypes.bfloat16)
    found = InputPorts(PORTS).take({"half": array})["half"]
    assert found.tolist() == [0x3F80, 0x4000]
    (_, _, out) = take_outs(PORTS, [None, None, array])
    assert out is not None and np.shares_memory(out, array)


def test_bfloat16_is_not_taken_for_whole_numbers() -> None:
    ports = (("bits", (2,), "uint16"),)
    array = np.array([1, 2], ml_dtypes.bfloat16)
    expected = r"'bits'.*: expected uint16.*, got bfloat16 \(2,\)"
    with pytest.raises(ExecutionError, match=expected):
        InputPorts(ports).take({"bits": array})
    with pytest.raises(ExecutionError, match=expected):
        take_input("bits", array, "uint16")
    with pytest.raises(ExecutionError, match=expected):
        take_outs(ports, [array])


def test_all_faults_are_told_at_once_and_names_that_are_near() -> None:
    given = {"imgae": image(), "mask": np.zeros(3, bool), "half": "text"}
    with pytest.raises(ExecutionError) as fault:
        InputPorts(PORTS).take(given)
    assert str(fault.value) == (
        "the program has no input 'imgae'; it has 'image', 'mask', 'half'; did you mean "
        '"image"?; '
        "input 'mask': expected bool (2,), got bool (3,); "
        "input 'half' cannot be an array of type <U4"
    )


def test_an_output_of_another_byte_order_is_refused() -> None:
    out = [np.empty((2, 3), ">f4"), None, None]
    with pytest.raises(ExecutionError, match=r"'image': .* expected float32 .*, got >f4 \(2, 3\)"):
        take_outs(PORTS, out)


def test_lists_that_are_no_array_are_refused() -> None:
    with pytest.raises(ExecutionError, match=r"input 'image' is no array: .*inhomogeneous"):
        InputPorts(PORTS).take({"image": [[1, 2], [3]]})
