"""Kernels that are lowered and compiled by forks: the same code, and no process is left."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import tvm
from kernels_alone import with_check
from own_kernels import lowered_for_avx2
from relay_models import compiled_of, conv, cpu_cluster, extraction_of, module
from tvm import relay
from tvm.ir.instrument import PassTimingInstrument

from heteroplace.errors import LoweringError
from heteroplace.lower import library as library_module
from heteroplace.lower.compile import CompiledNetwork
from heteroplace.lower.kernels import Kernel
from heteroplace.lower.library import KEPT_KERNELS, compile_kernels
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


def test_what_is_made_in_forks_is_what_is_made_here() -> None:
    forked, here = network(), network()
    compiled = forked.calls(cpu_cluster(), placement(forked), compiles=True)
    lowered = here.calls(cpu_cluster(), placement(here))
    assert compiled.calls == lowered.calls
    assert list(compiled.kernels) == list(lowered.kernels)
    assert len(compiled.kernels) >= 3
    for symbol, kernel in compiled.kernels.items():
        assert kernel.functions is None
        here_too = lowered.kernels[symbol]
        assert str(kernel.target) == str(here_too.target)
        assert kernel == replace(here_too, functions=None, target=kernel.target)
        assert kernel.hashes == here_too.hashes
    files = forked.kernels(cpu_cluster(), placement(forked)).library.files()
    assert files == compile_kernels(kernels_of(here)).files()


def test_kernels_are_counted() -> None:
    compiled, counts = network(), list[tuple[int, int]]()
    compiled.calls(
        cpu_cluster(), placement(compiled), lambda *count: counts.append(count), compiles=True
    )
    assert counts == sorted(counts)
    assert {total for _, total in counts} == {len(kernels_of(compiled))}


def test_equal_kernels_have_equal_symbols_in_any_network() -> None:
    x = relay.var("x", shape=(1, 16, 16, 16))
    other = compiled_of(extraction_of(module([x], relay.nn.softmax(relay.sqrt(x)))))
    again = compiled_of(extraction_of(module([x], relay.nn.softmax(relay.exp(x)))))
    kernels = [{each.op: each for each in kernels_of(one)} for one in (other, again)]
    assert kernels[0]["nn.softmax"].symbol == kernels[1]["nn.softmax"].symbol
    assert kernels[0]["sqrt"].symbol != kernels[1]["exp"].symbol


@pytest.mark.parametrize("first, second", [(2.0, 3.0), (2.0, 2.0 + 2**-22), (2.0, -2.0)])
def test_kernels_of_other_numbers_have_other_symbols(first: float, second: float) -> None:
    x = relay.var("x", shape=(1, 8))
    symbols = [
        kernel.symbol
        for number in (first, second)
        for kernel in kernels_of(compiled_of(extraction_of(module([x], x + relay.const(number)))))
    ]
    assert len(set(symbols)) == 2


def test_what_is_only_lowered_is_not_compiled() -> None:
    assert all(kernel.code is None for kernel in kernels_of(network()))


def test_a_fault_of_the_code_generator_is_a_lowering_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kernels = kernels_of(network())

    def fail(*_: object) -> None:
        raise ValueError("Check failed: no such intrinsic")

    monkeypatch.setattr(library_module.tvm, "get_global_func", lambda _: fail)
    with pytest.raises(LoweringError, match=r"cannot generate code .*no such intrinsic"):
        compile_kernels(kernels)


def test_a_kernel_that_cannot_be_lowered_is_an_error_of_the_network(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compiled = network()
    lower = library_module.lower_kernel

    def fail_at_softmax(symbol: str, *rest: Any) -> Kernel:
        if symbol.startswith("nn_softmax"):
            raise LoweringError("no kernel")
        return lower(symbol, *rest)

    monkeypatch.setattr(library_module, "lower_kernel", fail_at_softmax)
    with pytest.raises(LoweringError, match="no kernel"):
        compiled.kernels(cpu_cluster(), placement(compiled))
    monkeypatch.setattr(library_module, "lower_kernel", lower)
    assert compiled.kernels(cpu_cluster(), placement(compiled)).library.image


def checks_in_each_call(kernel: Kernel) -> bool:
    return "Assert fail" in library_module.generate_code([kernel]).get_source("ll")


def test_a_kernel_says_what_it_takes_and_does_not_check_it() -> None:
    x, y = relay.var("x", shape=(1, 8)), relay.var("y", shape=(), dtype="float32")
    compiled = compiled_of(extraction_of(module([x, y], relay.greater(x, y))))
    (kernel,) = kernels_of(compiled)
    assert kernel.arguments == "cpu; float32 (1, 8); float32 (); bool (1, 8)"
    assert not checks_in_each_call(kernel)
    kernels = compiled_kernels(compiled)
    assert kernels[kernel.symbol].arguments == kernel.arguments
    assert f"{kernel.symbol}; {kernel.arguments}\n".encode() in compile_kernels([kernel]).image


def test_a_kernel_with_a_check_of_its_own_checks_its_arguments_too() -> None:
    x = relay.var("x", shape=(1, 8))
    (kernel,) = kernels_of(compiled_of(extraction_of(module([x], relay.sqrt(x)))))
    assert kernel.functions is not None
    own = replace(kernel, functions=with_check(kernel.functions, True, "own"))
    assert own.arguments == ""
    assert checks_in_each_call(own)


def test_checks_stay_where_the_pass_context_asks_for_them() -> None:
    x = relay.var("x", shape=(1, 8))
    (kernel,) = kernels_of(compiled_of(extraction_of(module([x], relay.sqrt(x)))))
    with tvm.transform.PassContext(opt_level=3, config={"tir.disable_assert": False}):
        assert checks_in_each_call(kernel)
    with tvm.transform.PassContext(opt_level=3, instruments=[PassTimingInstrument()]):
        assert checks_in_each_call(kernel)


def code_with(
    option: str, kernels: Sequence[Kernel], monkeypatch: pytest.MonkeyPatch
) -> Mapping[str, bytes]:
    monkeypatch.setattr(library_module, "_FEWER_PROMOTIONS", option)
    return compile_kernels([replace(each, code=None) for each in kernels]).objects


def test_sums_of_products_and_convolutions_stay_in_registers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    used, all_promotions, none = (
        library_module._FEWER_PROMOTIONS,
        "-licm-mssa-max-acc-promotion:uint=250",
        "-disable-licm-promotion:bool=true",
    )
    x = relay.var("x", shape=(1, 24, 56, 56))
    kernels = lowered_for_avx2(relay.nn.relu(conv(x, 72, 24, kernel=1)), x)
    pooling = lowered_for_avx2(relay.nn.avg_pool2d(x, (8, 8), (8, 8)), x)
    x = relay.var("x", shape=(7, 256))
    weight = relay.const(np.ones((128, 256), "float32"))
    kernels = [*kernels, *lowered_for_avx2(relay.nn.dense(x, weight), x)]
    code = code_with(used, kernels, monkeypatch)
    assert code == code_with(all_promotions, kernels, monkeypatch)
    # Tiles are unrolled, so that their sums need no promotion. Those of a pooling do.
    assert code == code_with(none, kernels, monkeypatch)
    assert code_with(used, pooling, monkeypatch) != code_with(none, pooling, monkeypatch)


class Kept(dict[tuple[str, str], bytes]):
    """Kernels that are kept in memory."""

    def find(self, symbols: Collection[str], options: str) -> dict[str, bytes]:
        return {each: self[each, options] for each in symbols if (each, options) in self}

    def add(self, kernels: Mapping[str, bytes], options: str) -> None:
        added = {(symbol, options): content for symbol, content in kernels.items()}
        assert not self.keys() & added.keys()
        self.update(added)


@pytest.fixture
def kept() -> Iterator[Kept]:
    token = KEPT_KERNELS.set(Kept())
    yield KEPT_KERNELS.get()
    KEPT_KERNELS.reset(token)


def compiled_kernels(compiled: CompiledNetwork) -> Mapping[str, Kernel]:
    return compiled.calls(cpu_cluster(), placement(compiled), compiles=True).kernels


def test_kept_kernels_are_not_made_again(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    first = compiled_kernels(network())
    assert len(kept) == len(first)
    monkeypatch.setattr(library_module, "lower_kernel", lambda *_: pytest.fail("it is lowered"))
    second = compiled_kernels(network())
    assert list(second) == list(first)
    for symbol, kernel in second.items():
        assert kernel == replace(first[symbol], target=kernel.target)
        assert kernel.code == first[symbol].code


def test_another_network_makes_only_what_is_new(kept: Kept) -> None:
    compiled_kernels(network())
    num_kept = len(kept)
    x = relay.var("x", shape=(1, 8, 16, 16))
    body = relay.nn.max_pool2d(relay.nn.relu(conv(x, 16, 8)), (2, 2))
    compiled_kernels(compiled_of(extraction_of(module([x], relay.exp(body)))))
    assert len(kept) == num_kept + 1


def test_kernels_of_other_options_are_others(kept: Kept) -> None:
    num_kernels = len(compiled_kernels(network()))
    with tvm.transform.PassContext(opt_level=3, config={"tir.disable_vectorize": True}):
        compiled_kernels(network())
    with tvm.transform.PassContext(opt_level=3, disabled_pass=["tir.RemoveNoOp"]):
        compiled_kernels(network())
    assert len(kept) == 3 * num_kernels
