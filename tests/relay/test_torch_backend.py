"""`torch.compile(model, backend="heteroplace")`: PyTorch's numbers, or a warning with a reason."""

from __future__ import annotations

import copy
import functools
import importlib.util
import logging
import re
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest

import heteroplace
from heteroplace.errors import FrontendError, SolverError, VerificationError
from heteroplace.machine.local import local_cluster
from heteroplace.model.cluster import Cluster, Device

HAS_TORCH = all(importlib.util.find_spec(name) for name in ("torch", "onnxscript"))
needs_torch = pytest.mark.skipif(not HAS_TORCH, reason="torch and onnxscript are not installed")
pytestmark = [pytest.mark.relay, pytest.mark.filterwarnings("ignore")]
if HAS_TORCH:
    import torch
    from torch import nn

    from heteroplace.parts.torch.compiled_graph import check_outputs
    from heteroplace.parts.torch.frozen_weights import FrozenWeights
    from heteroplace.parts.torch.tensor_arrays import array_of, tensor_of


def one_core() -> Cluster:
    """A core of this machine, as if it computed a flop per ns: no peak speed is measured."""
    base = local_cluster(cores=local_cluster(has_gpus=False).devices[0].cores[:1], has_gpus=False)
    devices = tuple(
        Device(each.name, "cpu", each.target, 0, 0, each.cores, "", 10**9, 10**10)
        for each in base.devices
    )
    return Cluster("one core", base.memories, devices, (), 0)


OPTIONS = {
    "cluster": one_core(),
    "costs": "estimate",
    "store": "off",
    "time_limit": 1.0,
}


@pytest.fixture(autouse=True)
def new_dynamo() -> Iterator[None]:
    """Forget what TorchDynamo compiled in an earlier test."""
    if HAS_TORCH:
        torch._dynamo.reset()
        torch.manual_seed(0)
    yield


def compiled(module: Any, **options: Any) -> Any:
    return torch.compile(module, backend="heteroplace", options={**OPTIONS, **options})


def num_compiled(caplog: pytest.LogCaptureFixture) -> int:
    return sum("compiled a graph of torch.compile" in each.message for each in caplog.records)


def network() -> Any:
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3)).eval()


def check_equal(module: Any, other: Any, *inputs: Any) -> None:
    """Assert that two modules give the same within 1e-4 of the largest value, in inference."""
    with torch.no_grad():
        expected, outputs = module(*inputs), other(*inputs)
    if isinstance(expected, torch.Tensor):
        expected, outputs = (expected,), (outputs,)
    for ours, theirs in zip(outputs, expected, strict=True):
        if not isinstance(theirs, torch.Tensor):
            assert ours == theirs
            continue
        assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
        largest = float(theirs.float().abs().max())
        np.testing.assert_allclose(ours.float(), theirs.float(), rtol=0, atol=1e-4 * largest)


def test_importing_heteroplace_imports_no_torch() -> None:
    program = (
        "import sys, heteroplace; heteroplace.torch_backend; heteroplace.compile\n"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_misspelt_options_are_named_without_torch() -> None:
    with pytest.raises(SolverError, match='no option strickt; did you mean "strict"'):
        heteroplace.torch_backend(None, (), options={"strickt": True})
    with pytest.raises(SolverError, match='did you mean "time_limit"'):
        functools.partial(heteroplace.torch_backend, time_limt=5)(None, ())
    with pytest.raises(SolverError, match="strict is 1; expected True or False"):
        heteroplace.torch_backend(None, (), options={"strict": 1})
    with pytest.raises(SolverError, match="max_compiles is 0; expected 1 or more"):
        heteroplace.torch_backend(None, (), options={"max_compiles": 0})
    with pytest.raises(SolverError, match="no mode 'max-autotune'"):
        heteroplace.torch_backend(None, (), mode="max-autotune")


@needs_torch
def test_torch_finds_the_backend_and_its_options_are_checked_at_the_first_call() -> None:
    assert "heteroplace" in torch._dynamo.list_backends()
    module = torch.compile(network(), backend="heteroplace", options={"time_limt": 5})
    with torch.no_grad(), pytest.raises(Exception, match='did you mean "time_limit"'):
        module(torch.randn(2, 4))


@needs_torch
@pytest.mark.costly(4)
@pytest.mark.parametrize("mode", ["no_grad", "inference_mode"])
def test_a_network_gives_the_numbers_of_torch(mode: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "heteroplace")
    module = network()
    backend = functools.partial(heteroplace.torch_backend, strict=True, **OPTIONS)
    fast = torch.compile(module, backend=backend)
    with getattr(torch, mode)():
        for _ in range(3):
            x = torch.randn(2, 4)
            torch.testing.assert_close(fast(x), module(x), rtol=0, atol=1e-5)
    assert num_compiled(caplog) == 1


@needs_torch
@pytest.mark.costly(8)
def test_each_graph_between_breaks_is_compiled(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "heteroplace")

    class Broken(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 2)

        def forward(self, x: Any) -> Any:
            x = self.first(x)
            torch._dynamo.graph_break()
            return self.second(x.relu()), x.argmax(dim=1)

    module = Broken().eval()
    check_equal(module, compiled(module, strict=True), torch.randn(3, 4))
    assert num_compiled(caplog) == 2


@needs_torch
@pytest.mark.costly(4)
@pytest.mark.parametrize("is_strict", [False, True])
def test_each_size_is_compiled_once_and_the_limit_ends_it(
    is_strict: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "heteroplace")

    class Sized(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 3)

        def forward(self, x: Any) -> Any:
            return self.layer(x) / x.shape[0], x.shape[0] * 2

    module = Sized().eval()
    fast = compiled(module, max_compiles=2, strict=is_strict)
    # TorchDynamo captures a graph for the first size, and another one for all others.
    for rows in (2, 3, 5, 3, 5):
        check_equal(module, fast, torch.randn(rows, 4))
    assert num_compiled(caplog) == 3
    limit = r"compiled 2 times.*max_compiles"
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for rows in (7, 9):
            with pytest.raises(FrontendError, match=limit) if is_strict else nullcontext():
                check_equal(module, fast, torch.randn(rows, 4))
        check_equal(module, fast, torch.randn(3, 4))
    messages = [str(each.message) for each in caught if "heteroplace" in str(each.message)]
    assert len(messages) == (0 if is_strict else 1)
    assert all(re.search(limit, message) for message in messages)
    assert num_compiled(caplog) == 3


def step(module: Any) -> None:
    """Train one step outside of the compiled function."""
    optimizer = torch.optim.SGD(module.parameters(), lr=0.5)
    module(torch.randn(5, 4)).square().sum().backward()
    optimizer.step()


def replace_weight(module: Any) -> None:
    module[0].weight = nn.Parameter(torch.randn(8, 4))


CHANGES: dict[str, Callable[[Any], object]] = {
    "a step of an optimizer": step,
    "load_state_dict": lambda module: module.load_state_dict(network().state_dict()),
    "in place, by data": lambda module: module[0].weight.data.mul_(2),
    "another parameter": replace_weight,
    "a buffer": lambda module: module[1].running_mean.add_(1),
}


@needs_torch
@pytest.mark.costly(8)
@pytest.mark.parametrize("change", CHANGES)
def test_changed_weights_are_compiled_again(change: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "heteroplace")
    module, x = network(), torch.randn(2, 4)
    fast = compiled(module, strict=True)
    check_equal(module, fast, x)
    before = module(x)
    CHANGES[change](module)
    assert not torch.allclose(module(x), before)
    check_equal(module, fast, x)
    check_equal(module, fast, x)
    assert num_compiled(caplog) == 2


@needs_torch
@pytest.mark.costly(4)
def test_a_buffer_that_changes_becomes_an_input(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "heteroplace")
    module, x = network(), torch.randn(2, 4)
    fast = compiled(module, strict=True)
    for _ in range(4):
        check_equal(module, fast, x)
        module[1].running_mean.add_(1)
    assert num_compiled(caplog) == 2


@needs_torch
def test_gradients_come_from_torch_with_a_warning() -> None:
    module, x = network(), torch.randn(2, 4)
    with pytest.warns(UserWarning, match=r"needs gradients.*torch\.no_grad"):
        compiled(module)(x).sum().backward()
    gradient = module[0].weight.grad.clone()
    module.zero_grad()
    module(x).sum().backward()
    torch.testing.assert_close(gradient, module[0].weight.grad)
    with pytest.raises(Exception, match=r"FrontendError: a graph .* needs gradients"):
        compiled(module, strict=True)(x)


REFUSED: dict[str, tuple[Callable[[Any], Any], str]] = {
    "an op": (lambda x: torch.special.i1e(x) * 2, "bessel_i1e"),
    "in place": (lambda x: x.add_(1) * 2, r"changes 1 of its inputs .* in place"),
    "random": (lambda x: nn.functional.dropout(x, 0.5), "draws random numbers"),
    "a type": (lambda x: torch.complex(x, x), "complex"),
    "a view": (lambda x: (x.relu(), x.view(-1)), "output 1 is a view of an input"),
}


@needs_torch
@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_compiled_is_run_by_torch_with_a_warning(case: str) -> None:
    function, reason = REFUSED[case]
    x, other = torch.rand(2, 3), torch.rand(2, 3)
    ours, theirs = x.clone(), x.clone()
    fast = compiled(function)
    with torch.no_grad(), pytest.warns(UserWarning, match=reason) as warned:
        torch.manual_seed(1)
        outputs = fast(ours)
        fast(other.clone())
    assert len([each for each in warned if "heteroplace" in str(each.message)]) == 1
    torch.manual_seed(1)
    torch.testing.assert_close(outputs, function(theirs))
    torch.testing.assert_close(ours, theirs)
    torch._dynamo.reset()
    strict = compiled(function, strict=True)
    for _ in range(2):
        with torch.no_grad(), pytest.raises(FrontendError, match=reason):
            strict(x)


@needs_torch
def test_statistics_of_a_network_in_training_mode_change_as_in_torch() -> None:
    module, x = network().train(), torch.randn(2, 4)
    other = copy.deepcopy(module)
    with torch.no_grad(), pytest.warns(UserWarning, match=r"in place.*call model\.eval"):
        outputs = compiled(module)(x)
        torch.testing.assert_close(outputs, other(x))
    torch.testing.assert_close(module[1].running_mean, other[1].running_mean)


@needs_torch
@pytest.mark.parametrize("dtype", ["int64", "float32"])
def test_a_number_that_depends_on_values_is_not_taken_for_a_size(dtype: str) -> None:
    fast = compiled(lambda x: (x * 2, x.sum().item() + 1))
    reason = "a number that depends on the values"
    # TorchDynamo returns a float as a tensor, which is compiled, and an integer as a number.
    warns = pytest.warns(UserWarning, match=reason) if dtype == "int64" else nullcontext()
    with torch.no_grad(), torch._dynamo.config.patch(capture_scalar_outputs=True), warns:
        inputs = [torch.full((3,), value, dtype=getattr(torch, dtype)) for value in (1, 2)]
        assert [fast(x)[1] for x in inputs] == [4, 7]


@needs_torch
@pytest.mark.parametrize("dtype", ["float32", "int64", "bool", "float16", "bfloat16"])
def test_tensors_and_arrays_share_memory(dtype: str) -> None:
    tensor = torch.ones(2, 3).to(getattr(torch, dtype))
    array = array_of(tensor)
    assert array.__array_interface__["data"][0] == tensor.data_ptr()
    back = tensor_of(array, dtype)
    assert (back.data_ptr(), back.dtype) == (tensor.data_ptr(), tensor.dtype)


@needs_torch
@pytest.mark.parametrize("shape", [(), (0, 3), (3,), (40, 4), (2, 3, 5, 7)])
@pytest.mark.parametrize("has_all_values", [False, True])
def test_writes_past_the_count_of_torch_are_noticed(
    shape: tuple[int, ...], has_all_values: bool
) -> None:
    weight = torch.randn(shape)
    forms = [weight, weight.T, weight.expand(2, *shape)]
    if len(shape) == 4:
        forms.append(weight.to(memory_format=torch.channels_last))
    for form in forms:
        frozen = FrozenWeights([form], has_all_values)
        assert frozen.are_same([form])
        if form.numel():
            assert not frozen.are_same([form.clone()])
            form.data.add_(1) if form.shape == shape else weight.data.add_(1)
            assert not frozen.are_same([form])
            assert frozen.changed([form]) == [0]


@needs_torch
def test_one_written_value_is_noticed_where_all_are_compared() -> None:
    weight = torch.randn(1000)
    some, every = (FrozenWeights([weight], has_all_values) for has_all_values in (False, True))
    weight.numpy()[501] += 1
    assert some.are_same([weight])  # as the guide says
    assert not every.are_same([weight])


@needs_torch
def test_weights_of_inference_mode_are_refused() -> None:
    with torch.inference_mode():
        weight = torch.randn(3)
    with pytest.raises(FrontendError, match=r"created in torch\.inference_mode"):
        FrozenWeights([weight], has_all_values=True)


@needs_torch
@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_a_tensor_that_is_no_array_in_host_memory_is_refused(device: str) -> None:
    tensor = torch.eye(2).to_sparse() if device == "cpu" else torch.eye(2, device=device)
    with pytest.raises(FrontendError, match=f"float32 on {device} is no array in host memory"):
        array_of(tensor)


@needs_torch
def test_numbers_that_dynamic_makes_inputs_leave_a_batch_norm_to_torch() -> None:
    module, x = network(), torch.randn(2, 4)
    fast = torch.compile(module, backend="heteroplace", options=OPTIONS, dynamic=True)
    with pytest.warns(UserWarning, match="PyTorch runs a graph: torch cannot export it"):
        check_equal(module, fast, x)


@needs_torch
def test_outputs_that_differ_from_those_of_torch_are_refused() -> None:
    expected = (torch.ones(3), 2, torch.arange(3))
    check_outputs((torch.ones(3) + 1e-6, 2, torch.arange(3)), expected)
    with pytest.raises(VerificationError, match=r"differ from PyTorch's by 0\.001"):
        check_outputs((torch.ones(3) + 1e-3, 2, torch.arange(3)), expected)
