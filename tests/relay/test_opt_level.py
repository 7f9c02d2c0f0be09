"""The level at which networks are optimised: 3, or that of a PassContext that the caller opened."""

from __future__ import annotations

from contextlib import ExitStack, nullcontext
from threading import Thread

import pytest
import tvm
from relay_models import cpu_cluster, random_costs, two_branches
from tvm import relay
from tvm.ir.transform import PassContext

import heteroplace
from heteroplace.errors import PlanError
from heteroplace.parts.parallel.sharding import shard_api
from heteroplace.relay.opt_level import default_opt_level, has_opened_context

FAST = {"costs": random_costs, "solver": "heft"}


def test_a_context_is_opened_only_by_the_caller() -> None:
    assert not has_opened_context()
    with PassContext() as context:
        assert has_opened_context()
        assert PassContext.current().same_as(context)  # it was left and entered again
        with PassContext(opt_level=3):
            assert has_opened_context()
        assert PassContext.current().same_as(context)
    assert not has_opened_context()
    assert PassContext.current().opt_level == 2


def test_a_context_in_another_thread_is_none_of_this_one() -> None:
    seen = []
    with PassContext():
        thread = Thread(target=lambda: seen.append(has_opened_context()))
        thread.start()
        thread.join()
    assert seen == [False]


def test_instruments_of_a_context_are_not_called_to_look_at_it() -> None:
    entered = []

    @tvm.instrument.pass_instrument
    class Counter:
        def enter_pass_ctx(self) -> None:
            entered.append("enter")

        def exit_pass_ctx(self) -> None:
            entered.append("exit")

    with PassContext(instruments=[Counter()]):
        assert has_opened_context()
        assert entered == ["enter"]


@pytest.mark.parametrize(("opened", "level"), [(None, 3), (0, 0), (2, 2), (3, 3)])
def test_the_level_is_that_of_an_opened_context_or_3(opened: int | None, level: int) -> None:
    with ExitStack() as stack:
        if opened is not None:
            stack.enter_context(PassContext(opt_level=opened))
        with default_opt_level():
            assert PassContext.current().opt_level == level


@pytest.mark.costly
@pytest.mark.parametrize(("opened", "level"), [(None, 3), (0, 0), (2, 2)])
def test_build_and_the_pass_compile_at_that_level(opened: int | None, level: int) -> None:
    context = nullcontext() if opened is None else PassContext(opt_level=opened)
    with context:
        executable = heteroplace.build(two_branches(), cpu_cluster(), **FAST)
        placed = relay.transform.HeteroPlace(cpu_cluster(), **FAST)(two_branches())
        from_placed = heteroplace.build(placed)
    assert executable.source.opt_level == from_placed.source.opt_level == level


@pytest.mark.parametrize(("opened", "count"), [(None, 0), (0, 0), (2, 1), (3, 0)])
def test_a_context_of_tvms_default_level_is_warned_of(
    opened: int | None, count: int, caplog: pytest.LogCaptureFixture
) -> None:
    context = nullcontext() if opened is None else PassContext(opt_level=opened)
    with context:
        relay.transform.HeteroPlace(cpu_cluster(), **FAST)(two_branches())
    warnings = [record.message for record in caplog.records if "opt_level" in record.message]
    assert len(warnings) == count
    assert all("tvm.transform.PassContext(opt_level=3)" in message for message in warnings)


@pytest.mark.parametrize("opened", [None, 0])
def test_shard_is_done_at_that_level(opened: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    levels = []

    def note(*_: object) -> None:
        levels.append(PassContext.current().opt_level)
        raise PlanError("enough")

    monkeypatch.setattr(shard_api, "shard_model", note)
    with ExitStack() as stack:
        if opened is not None:
            stack.enter_context(PassContext(opt_level=opened))
        for share in (
            lambda: heteroplace.shard(two_branches(), cpu_cluster(), batch=2),
            lambda: heteroplace.Shard(cpu_cluster(), batch=2)(two_branches()),
        ):
            with pytest.raises((PlanError, tvm.TVMError), match="enough"):
                share()
    assert levels == [3 if opened is None else opened] * 2
