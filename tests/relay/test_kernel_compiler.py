"""Kernels that are compiled while others are lowered: the same code, and no process is left."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest
import tvm
from relay_models import compiled_of, conv, cpu_cluster, extraction_of, module
from tvm import relay

from heteroplace.errors import LoweringError
from heteroplace.lower import library as library_module
from heteroplace.lower.compile import CompiledNetwork
from heteroplace.lower.kernels import Kernel
from heteroplace.lower.library import KernelCompiler, compile_kernels
from tests.programs import child_processes


@pytest.fixture(autouse=True)
def level() -> Iterator[None]:
    """The usual level of optimisation; no process is left behind."""
    before = child_processes()
    with tvm.transform.PassContext(opt_level=3):
        yield
    assert child_processes() == before


def network() -> CompiledNetwork:
    x = relay.var("x", shape=(1, 8, 16, 16))
    body = relay.nn.relu(conv(x, 16, 8))
    body = relay.nn.softmax(relay.nn.max_pool2d(body, (2, 2)))
    return compiled_of(extraction_of(module([x], body)))


def placement(compiled: CompiledNetwork) -> list[int]:
    return [0] * len(compiled.graph.tasks)


def kernels_of(compiled: CompiledNetwork) -> Sequence[Kernel]:
    return list(compiled.calls(cpu_cluster(), placement(compiled)).kernels.values())


def test_kernels_that_are_added_early_have_the_same_code() -> None:
    kernels = kernels_of(network())
    assert len(kernels) >= 3
    compiler = KernelCompiler()
    for kernel in kernels[:-1]:
        compiler.add(kernel)
    compiler.pause()
    counts: list[tuple[int, int]] = []
    library = compiler.library(kernels, lambda done, total: counts.append((done, total)))
    assert library.files() == compile_kernels(kernels).files()
    assert counts == sorted(counts)
    assert {total for _, total in counts} == {len(kernels)}


def test_a_network_is_compiled_while_it_is_lowered(monkeypatch: pytest.MonkeyPatch) -> None:
    added: list[str] = []
    add = KernelCompiler.add

    def note(self: KernelCompiler, kernel: Kernel) -> None:
        added.append(kernel.symbol)
        add(self, kernel)

    monkeypatch.setattr(KernelCompiler, "add", note)
    compiled = network()
    calls = compiled.calls(cpu_cluster(), placement(compiled), compiles=True)
    assert added == list(calls.kernels)
    compiled.pause()
    kernels = compiled.kernels(cpu_cluster(), placement(compiled))
    assert kernels.calls is calls
    assert added == list(calls.kernels)
    assert kernels.library.files() == compile_kernels(list(calls.kernels.values())).files()


def test_what_is_only_lowered_is_not_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(KernelCompiler, "add", lambda *_: pytest.fail("it is compiled"))
    compiled = network()
    compiled.calls(cpu_cluster(), placement(compiled))


def test_a_fault_of_the_code_generator_is_a_lowering_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kernels = kernels_of(network())

    def fail(*_: object) -> None:
        raise ValueError("Check failed: no such intrinsic")

    monkeypatch.setattr(library_module.tvm, "build", fail)
    with pytest.raises(LoweringError, match=r"cannot generate code .*no such intrinsic"):
        compile_kernels(kernels)


def test_a_network_that_cannot_be_lowered_leaves_no_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compiled = network()
    add = KernelCompiler.add
    num_added = 0

    def fail_at_the_second(self: KernelCompiler, kernel: Kernel) -> None:
        nonlocal num_added
        num_added += 1
        if num_added == 2:
            raise LoweringError("no kernel")
        add(self, kernel)

    monkeypatch.setattr(KernelCompiler, "add", fail_at_the_second)
    with pytest.raises(LoweringError, match="no kernel"):
        compiled.kernels(cpu_cluster(), placement(compiled))
    monkeypatch.setattr(KernelCompiler, "add", add)
    compiled.calls(cpu_cluster(), placement(compiled))  # nothing of the first time is linked twice
    assert compiled.kernels(cpu_cluster(), placement(compiled)).library.image
