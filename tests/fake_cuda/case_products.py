"""Products by cuBLASLt on the fake: what is refused."""

from __future__ import annotations

import pytest
from library_programs import algorithms
from product_programs import ProductProgram

from heteroplace.errors import ArtifactError, ExecutionError
from heteroplace.parts.kernels.nvidia.cublas_products import Product
from tests.fake_cuda.control import FakeCuda

pytestmark = pytest.mark.timeout(300)

DENSE = Product(1, 5, 7, 9, False, True, False, False, 0, 1, 2, None, "relu")


def test_an_algorithm_of_another_product_is_refused_when_it_is_loaded(fake: FakeCuda) -> None:
    other = Product(1, 5, 7, 8, False, True, False, False, 0, 1, 2, None, "relu")
    tail = algorithms(other)[0].rpartition(":")[2]
    head = algorithms(DENSE)[0].rpartition(":")[0]
    before = fake.live()
    with pytest.raises(ExecutionError, match=r"on cuda:0 .*place the model again.*NOT_SUPPORTED"):
        ProductProgram(DENSE, [f"{head}:{tail}"]).executor()
    assert fake.live() == before


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (":float32:", ":float64:", "has the precision 'float64'"),
        (":relu:", ":selu:", "has the activation 'selu'"),
        ("1x5x7x9", "1x5x7", "has the extents '1x5x7'"),
        ("1x5x7x9", "1x0x7x9", "has '0' as an extent"),
        ("1x5x7x9", "1x5x7x-9", "has '-9' as an extent"),
        ("1x5x7x9", "2000000000x2000000000x7x9", "is too large"),
        ("1x5x7x9", "1x5x7x8", "the left of the float32 product of .* expected float32 of 160"),
        (":ntss:", ":nt:", "has 'nt' as layouts"),
        (":ntss:", ":nxss:", "has the layout 'x'"),
        (":0,1,2,-:", ":0,1,2:", "has the operands '0,1,2'"),
        (":0,1,2,-:", ":0,-,2,-:", "has '-' as an operand"),
        (":0,1,2,-:", ":0,1,9,-:", "has argument 9 as its bias"),
        (":0,1,2,-:", ":0,1,3,-:", "has argument 3 as its bias"),
        (":0,1,2,-:", ":1,0,2,-:", "the left of the float32 product"),
        (":120903:", ":x:", "has 'x' as the version"),
        (":0:", ":-1:", "has '-1' as its scratch memory"),
    ],
)
def test_damaged_products_are_refused_by_the_program(old: str, new: str, message: str) -> None:
    symbol = algorithms(DENSE)[0]
    assert old in symbol
    program = ProductProgram(DENSE, [symbol])
    with pytest.raises(ArtifactError, match=rf"line \d+: .*{message}"):
        program.executor_of(program.text().replace(symbol, symbol.replace(old, new)))


def test_a_short_algorithm_is_refused_by_the_program() -> None:
    with pytest.raises(ArtifactError, match="the algorithm of a product has 126 digits"):
        ProductProgram(DENSE, [algorithms(DENSE)[0][:-2]]).executor()


def test_a_product_on_a_core_is_refused_by_the_program() -> None:
    program = ProductProgram(DENSE, algorithms(DENSE)[:1])
    text = program.text().replace("space 0 gpu 2 0 64", "space 0 ram 1 0 64")
    text = text.replace("queue 0 gpu cuda 2 0 0 -", "queue 0 core cpu 1 0 0 0")
    with pytest.raises(ArtifactError, match="is of no GPU, and kernel 0 is a product of cuBLASLt"):
        program.executor_of(text)
