"""The options of `heteroplace place` beside solver and budget, end to end."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from heteroplace.cli.main import main

DEVICES = ("gpu0", "gpu1")
CLUSTER = {
    "schema_version": 1,
    "name": "two-gpus",
    "host": "ram",
    "memories": [{"name": "ram", "size": "1 GiB"}],
    "devices": [
        {"name": name, "target": "cuda", "device": f"cuda:{index}", "memory": "8 MiB"}
        for index, name in enumerate(DEVICES)
    ],
    "links": [
        {"src": src, "dst": dst, "bandwidth": "1 TB/s", "latency": "0 us", "bidirectional": True}
        for src, dst in (("ram", "gpu0"), ("ram", "gpu1"), ("gpu0", "gpu1"))
    ],
}


def graph(names: str = "abcd") -> dict[str, object]:
    """Two chains, a -> b and c -> d, of 100 us a task; a task has 1 MiB of weights."""
    times = dict.fromkeys(DEVICES, 100_000)
    return {
        "schema_version": 1,
        "name": "chains",
        "tasks": [
            {"name": name, "op": op, "weight_bytes": "1 MiB", "times_ns": times}
            for name, op in zip(names, ("conv", "bn") * 2, strict=True)
        ],
        "tensors": [
            {"producer": names[0], "consumers": [names[1]], "bytes": 8},
            {"producer": names[1], "bytes": 8},
            {"producer": names[2], "consumers": [names[3]], "bytes": 8},
            {"producer": names[3], "bytes": 8},
        ],
        "outputs": [f"{names[1]}.0", f"{names[3]}.0"],
    }


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with cluster.json and graph.json, made the current one."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "cluster.json").write_text(json.dumps(CLUSTER))
    (tmp_path / "graph.json").write_text(json.dumps(graph()))
    return tmp_path


PLACE = ["place", "--graph", "graph.json", "--cluster", "cluster.json", "--iterations", "500"]


def placed(capsys: pytest.CaptureFixture[str], *options: str) -> dict[str, object]:
    """What `place --json` prints, with the devices of each task as one word."""
    assert main([*PLACE, "--json", *options]) == 0, capsys.readouterr().err
    value = json.loads(capsys.readouterr().out)
    device_of = {task: "+".join(devices) for task, devices in value["placement"].items()}
    return value | {"placement": device_of}


def refused(capsys: pytest.CaptureFixture[str], *options: str, code: int = 4) -> str:
    """What `place` says of options that it refuses."""
    assert main([*PLACE, *options]) == code
    return capsys.readouterr().err


def test_tasks_stay_where_they_are_pinned(files, capsys):
    found = placed(capsys, "--pin", "a=gpu1", "--pin", "bn=gpu0")
    assert found["placement"]["a"] == "gpu1"
    assert (found["placement"]["b"], found["placement"]["d"]) == ("gpu0", "gpu0")


def test_an_excluded_device_is_not_used(files, capsys):
    assert set(placed(capsys, "--exclude", "gpu0")["placement"].values()) == {"gpu1"}


def test_a_list_scheduler_is_made_of_the_parts_that_are_given(files, capsys):
    parts = "topological,finish,end"
    found = placed(capsys, "--solver", "list", "--list-parts", parts)
    assert found["placement"] == placed(capsys, "--solver", "mct")["placement"]


def test_what_must_not_be_split_stays_together(files, capsys):
    apart = placed(capsys)["placement"]
    assert apart["a"] != apart["c"]
    together = placed(capsys, "--no-split", "conv")["placement"]
    assert together["a"] == together["c"]
    # Groups with a task in common are one.
    joined = placed(capsys, "--no-split", "conv", "--no-split", "[ab]", "--no-split", "[cd]")
    assert len(set(joined["placement"].values())) == 1


def test_no_more_memory_is_used_than_is_allowed(files, capsys):
    found = placed(capsys, "--max-memory", "gpu1=1200KiB", "--pin", "a=gpu1")["placement"]
    assert [name for name, device in found.items() if device == "gpu1"] == ["a"]
    text = refused(capsys, "--max-memory", "gpu0=1MiB", "--max-memory", "gpu1=1MiB", code=3)
    assert "no allowed device has it: gpu0 has 1.0 MiB" in text


def test_a_saved_plan_is_replayed_without_solving(files, capsys):
    first = placed(capsys, "--solver", "heft", "--plan", "plan.json")
    again = placed(capsys, "--plan-in", "plan.json", "--plan", "again.json")
    assert (again["solver"], again["objective_ns"]) == ("plan_in", first["objective_ns"])
    assert again["placement"] == first["placement"]
    one, two = (json.loads(Path(name).read_text()) for name in ("plan.json", "again.json"))
    assert one["steps"] == two["steps"]


def test_a_plan_is_replayed_under_other_pins_and_limits_as_long_as_it_keeps_them(files, capsys):
    placement = placed(capsys, "--plan", "plan.json")["placement"]
    kept = ["--pin", f"a={placement['a']}", "--max-memory", "gpu0=4MiB"]
    assert placed(capsys, "--plan-in", "plan.json", *kept)["placement"] == placement
    other = next(name for name in DEVICES if name != placement["a"])
    text = refused(capsys, "--plan-in", "plan.json", "--pin", f"a={other}")
    assert f"run a @ {placement['a']}: the task is allowed on {other} only" in text


@pytest.mark.parts
def test_a_replayed_plan_is_judged_by_the_objective(files, capsys):
    placed(capsys, "--pin", "*=gpu0", "--plan", "plan.json")
    found = placed(capsys, "--plan-in", "plan.json", "--objective", "throughput")
    assert (found["objective"], found["objective_ns"], found["objective_bound_ns"]) == (
        "throughput",
        400_000,
        200_000,
    )


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ("abce", "names task 'd', which graph 'chains' does not have"),
        ("abcd", "of the same task names with other ops, sizes or reads"),
    ],
)
def test_the_plan_of_another_graph_is_refused_by_its_first_difference(
    files, capsys, names, message
):
    placed(capsys, "--plan", "plan.json")
    other = graph(names)
    other["tasks"][0]["weight_bytes"] = "2 MiB"
    Path("graph.json").write_text(json.dumps(other))
    assert message in refused(capsys, "--plan-in", "plan.json")


def test_coarsening_places_groups_and_plans_tasks(files, capsys):
    found = placed(capsys, "--coarsening", "moirai", "--solver", "heft")["placement"]
    assert (found["a"], found["c"]) == (found["b"], found["d"])
    assert found["a"] != found["c"]


@pytest.mark.parts
def test_several_items_are_compared_with_several_on_one_device(files, capsys):
    assert main([*PLACE, "--items", "2", "--solver", "bheft"]) == 0
    text = capsys.readouterr().out
    assert "400 us for 2 items on gpu0+gpu1, 800 us for 2 items on gpu0 (" in text


@pytest.mark.parts
def test_a_plan_of_several_items_is_not_judged_as_a_steady_state_of_one(files, capsys):
    # Loads of single runs would be its number, and prices of single runs its bound.
    placed(capsys, "--items", "2", "--solver", "bheft", "--plan", "plan.json")
    text = refused(capsys, "--plan-in", "plan.json", "--objective", "throughput")
    assert "the plan is for 2 items: no solver chooses batches for a steady state" in text


@pytest.mark.parametrize("engine", ["highs", "cpsat"])
def test_an_engine_is_chosen_by_name(files, capsys, engine):
    found = placed(capsys, "--solver", "moirai", "--engine", engine)
    assert (found["objective_ns"], found["status"]) == (200_001, "optimal")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--pin", "x*=gpu0"], "pin: no task matches x*; tasks are called like: a, b, c, d"),
        (["--pin", "a=gpu9"], "has no device 'gpu9'"),
        (["--no-split", "x*"], "no_split: no task matches x*"),
        (
            ["--no-split", "conv", "--pin", "a=gpu0", "--pin", "c=gpu1"],
            "must share a device, and none is allowed for all of them (a on gpu0, c on gpu1)",
        ),
        (["--max-memory", "gpu9=1GiB"], "has no device or memory 'gpu9'"),
        (["--plan-in", "cluster.json"], "expected a plan, a solution or a compiled model"),
        (["--plan-in", "nothing.json"], "nothing.json: cannot be read"),
        (["--plan-in", "plan.json", "--solver", "heft"], "solves nothing; leave out solver"),
        (["--plan-in", "plan.json", "--coarsening", "auto"], "leave out coarsening"),
        (["--plan-in", "plan.json", "--list-parts", "rank,run,end"], "leave out list_parts"),
        (["--list-parts", "rank,run,end"], "solver 'auto' is not made of parts"),
        (["--plan-in", "plan.json", "--items", "2"], "is for 1 items, and items is 2"),
        (["--solver", "heft", "--engine", "highs"], "solver 'heft' solves no programme by engine"),
        (
            ["--engine", "gurobi"],
            "solver 'auto' solves no programme by engine 'gurobi' for latency",
        ),
        (["--min-gain-ratio", "0.1"], "none of these is measured (they are given)"),
        (["--items", "2", "--solver", "heft"], "'heft' makes plans for one item, not for 2"),
        (["--items", "2", "--objective", "throughput"], "plan is for 2 items: no solver chooses"),
    ],
)
def test_what_cannot_be_done_is_refused_with_the_reason(files, capsys, options, message):
    if "plan.json" in options:
        placed(capsys, "--plan", "plan.json")
    assert message in refused(capsys, *options)


@pytest.mark.parametrize(
    "options",
    [
        ["--max-memory", "gpu0"],
        ["--max-memory", "gpu0=much"],
        ["--max-memory", "gpu0=0"],
        ["--pin", "a"],
        ["--coarsening", "all"],
        ["--engine", "cplex"],
        ["--threads", "two"],
    ],
)
def test_wrong_values_are_wrong_usage(files, capsys, options):
    with pytest.raises(SystemExit) as stop:
        main([*PLACE, *options])
    assert stop.value.code == 2
    assert options[0] in capsys.readouterr().err


def without_times_of_gpu1() -> None:
    """Take them from graph.json, and say how fast both devices are at best."""
    lacking = graph()
    for task in lacking["tasks"]:
        task["times_ns"] = {"gpu0": 100_000}
    Path("graph.json").write_text(json.dumps(lacking))
    devices = [
        device | {"flops_per_second": 10**12, "memory_bandwidth": "1 GB/s"}
        for device in CLUSTER["devices"]
    ]
    Path("cluster.json").write_text(json.dumps(CLUSTER | {"devices": devices}))


@pytest.mark.parametrize("missing", ["predict", "estimate"])
def test_times_that_the_graph_lacks_are_filled_in_if_asked(files, capsys, missing):
    without_times_of_gpu1()
    assert "gives no time for task 'a' on 'gpu1'" in refused(capsys)
    assert placed(capsys, "--missing", missing)["placement"]["a"] in DEVICES


def test_times_that_no_file_gives_are_estimated_if_asked(files, capsys):
    without_times_of_gpu1()
    bare = graph()
    for task in bare["tasks"]:
        del task["times_ns"]
    Path("graph.json").write_text(json.dumps(bare))
    assert placed(capsys, "--missing", "estimate")["status"] in ("optimal", "feasible")


def test_a_task_graph_has_no_kernels_to_measure(files, capsys):
    text = refused(capsys, "--missing", "measure")
    assert "graph.json is a task graph, which has none; give --missing predict or estimate" in text
