"""The CUDA paths without a GPU: the GPU tests and more, in a process with a fake CUDA.

The fake stands in for NVIDIA's libraries, which a process can load only once; so these tests run in
one of their own. `python -m tests.fake_cuda PYTEST-ARGUMENTS` runs them by hand.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fake_cuda.__main__ import CASES, GPU_TESTS, run_pytest

pytestmark = [pytest.mark.relay, pytest.mark.timeout(900)]


def check(arguments: list[str]) -> None:
    """Run tests in the other process; fail with what it says."""
    done = run_pytest(arguments)
    if done.returncode != 0:
        pytest.fail(done.stdout[-12_000:] + done.stderr[-2000:], pytrace=False)


@pytest.mark.costly(60)
@pytest.mark.parametrize("path", [*CASES, *GPU_TESTS], ids=lambda path: Path(path).stem)
def test_cuda_paths(path: str) -> None:
    check(["-m", "not slow", path])


@pytest.mark.slow
def test_cuda_paths_with_every_call_failing_and_whole_networks() -> None:
    check(["-m", "slow", *CASES])
    check(["-m", "", "tests/gpu/test_end_to_end.py"])
