"""The command line, run in this process: output, files, exit codes."""

import json
import re

import pytest

from heteroplace.cli.main import main, make_parser
from heteroplace.cli.place import RENAMED
from heteroplace.files.cluster_file import load_cluster
from heteroplace.files.costs_file import save_costs
from heteroplace.files.fields.given_times import costs_from_times
from heteroplace.files.graph_file import load_graph
from heteroplace.files.plan_file import load_plan
from heteroplace.model.check import check_plan
from heteroplace.options import from_arguments
from heteroplace.solve import SolveOptions

CLUSTER = {
    "schema_version": 1,
    "name": "two-cores",
    "host": "ram",
    "memories": [{"name": "ram", "size": "1 GiB"}],
    "devices": [
        {"name": f"cpu.{i}", "target": "llvm", "device": "cpu:0", "memory": "ram", "cores": [i]}
        for i in range(2)
    ],
}
TIMES = {"cpu.0": 100_000, "cpu.1": 100_000}
GRAPH = {
    "schema_version": 1,
    "name": "fork",
    "tasks": [{"name": name, "op": "nn.dense", "times_ns": TIMES} for name in "abcd"],
    "tensors": [
        {"producer": "a", "consumers": ["b", "c"], "bytes": 1000},
        {"producer": "b", "consumers": ["d"], "bytes": 1000},
        {"producer": "c", "consumers": ["d"], "bytes": 1000},
        {"producer": "d", "bytes": 1000},
    ],
    "outputs": ["d.0"],
}


@pytest.fixture
def files(tmp_path, monkeypatch):
    """A folder with cluster.json and graph.json, made the current one."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "cluster.json").write_text(json.dumps(CLUSTER))
    (tmp_path / "graph.json").write_text(json.dumps(GRAPH))
    return tmp_path


PLACE = ["place", "--graph", "graph.json", "--cluster", "cluster.json", "--iterations", "2000"]


def test_place_prints_tables_and_a_headline(files, capsys):
    assert main(PLACE) == 0
    text = capsys.readouterr().out
    assert text.startswith("note: Times came with the graph file; they were not measured here.\n")
    assert "\n\ntask  op        device" in text
    assert (
        "predicted 1.33x as fast as the best single device: 300 us on cpu.0+cpu.1, "
        "400 us on cpu.0 (no plan is faster)" in text
    )


def test_place_json_is_one_object(files, capsys):
    assert main([*PLACE, "--json", "--solver", "heft"]) == 0
    value = json.loads(capsys.readouterr().out)
    assert (value["objective_ns"], value["objective_bound_ns"], value["gap"]) == (
        300_000,
        300_000,
        0,
    )
    assert (value["status"], value["solver"]) == ("optimal", "heft")
    assert value["placement"].keys() == set("abcd")
    assert value["placement"]["b"] != value["placement"]["c"]
    assert all(len(devices) == 1 for devices in value["placement"].values())
    assert value["reasons"].keys() == set("abcd")
    assert value["simulated_ns"] == value["expected_ns"] == 300_000
    assert value["objective_singles_ns"]["cpu.0"] == 400_000


def test_place_writes_a_valid_plan_and_a_trace(files, capsys):
    assert main([*PLACE, "--plan", "plan.json", "--trace", "trace.json"]) == 0
    read, cluster = load_graph("graph.json"), load_cluster("cluster.json")
    plan = load_plan("plan.json", read.graph, cluster)
    check_plan(read.graph, cluster, costs_from_times(read.graph, cluster, read.times), plan)
    events = json.loads((files / "trace.json").read_text())["traceEvents"]
    assert sorted(event["name"] for event in events if event["ph"] == "X") == list("abcd")
    capsys.readouterr()
    check = ["check", "plan.json", "--graph", "graph.json", "--cluster", "cluster.json"]
    assert main(check) == 0
    assert "plan.json: plan of 4 steps for graph 'fork'" in capsys.readouterr().out


def test_place_says_when_one_device_is_best(files, capsys):
    chain = {**GRAPH, "tensors": [
        {"producer": a, "consumers": [b] if b else [], "bytes": 1}
        for a, b in zip("abcd", ["b", "c", "d", None], strict=True)
    ]}  # fmt: skip
    (files / "graph.json").write_text(json.dumps(chain))
    assert main(PLACE) == 0
    text = capsys.readouterr().out
    assert "one device is best: everything runs on cpu.0, predicted 400 us" in text


def test_costs_come_from_a_file_if_given(files, capsys):
    read, cluster = load_graph("graph.json"), load_cluster("cluster.json")
    slow = {task.name: dict.fromkeys(TIMES, 1_000_000) for task in read.graph.tasks}
    save_costs(costs_from_times(read.graph, cluster, slow), read.graph, cluster, "costs.json")
    assert main([*PLACE, "--costs", "costs.json"]) == 0
    assert "single device: 3.00 ms on" in capsys.readouterr().out
    check = ["check", "costs.json", "--graph", "graph.json", "--cluster", "cluster.json"]
    assert main(check) == 0
    assert "costs of graph 'fork' on cluster 'two-cores': no faults" in capsys.readouterr().out


def test_costs_that_a_file_does_not_know_are_named(files, capsys):
    read, cluster = load_graph("graph.json"), load_cluster("cluster.json")
    slow = {task.name: dict.fromkeys(TIMES, 1_000_000) for task in read.graph.tasks}
    save_costs(costs_from_times(read.graph, cluster, slow), read.graph, cluster, "costs.json")
    more = {"name": "new", "target": "npu", "device": "npu:0", "memory": "ram"}
    value = {**CLUSTER, "devices": [*CLUSTER["devices"], more]}
    (files / "cluster.json").write_text(json.dumps(value))
    check = ["check", "costs.json", "--graph", "graph.json", "--cluster", "cluster.json"]
    for command in ([*PLACE, "--costs", "costs.json"], check):
        assert main(command) == 4
        text = capsys.readouterr().err
        assert "the cost table does not know: task 'a' on 'new', task 'b' on 'new'" in text
    assert main([*PLACE, "--costs", "costs.json", "--exclude", "new"]) == 0
    assert "single device: 3.00 ms on" in capsys.readouterr().out


def test_graph_without_times_is_a_user_error(files, capsys):
    tasks = [{"name": name} for name in "abcd"]
    (files / "graph.json").write_text(json.dumps({**GRAPH, "tasks": tasks}))
    assert main(PLACE) == 4
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error: the file of graph 'fork' gives no times; add times_ns")
    assert "Traceback" not in captured.err


def test_verbose_shows_the_traceback(files, capsys):
    (files / "graph.json").write_text("{")
    assert main(["-v", *PLACE]) == 4
    text = capsys.readouterr().err
    assert text.startswith("Traceback")
    assert "error: graph.json: not valid JSON: " in text


def test_infeasible_has_its_own_code(files, capsys):
    tasks = [{**task, "weight_bytes": "9 GiB"} for task in GRAPH["tasks"]]
    (files / "graph.json").write_text(json.dumps({**GRAPH, "tasks": tasks}))
    assert main(PLACE) == 3
    assert "no allowed device has it: cpu.0 has 1.0 GiB" in capsys.readouterr().err


def test_no_plan_within_the_budget_has_its_own_code(files, capsys):
    """Three tasks of 600 KiB and two memories of 1 MiB: there is room, but not in one piece."""
    tasks = [
        {"name": name, "weight_bytes": "600 KiB", "times_ns": {"a": 5, "b": 5}} for name in "xyz"
    ]
    graph = {**GRAPH, "tasks": tasks, "tensors": [], "outputs": []}
    devices = [
        {"name": name, "target": "llvm", "device": "cpu:0", "memory": "1 MiB"} for name in "ab"
    ]
    cluster = {"schema_version": 1, "name": "two", "devices": devices}
    (files / "graph.json").write_text(json.dumps(graph))
    (files / "cluster.json").write_text(json.dumps(cluster))
    assert main([*PLACE, "--solver", "heft"]) == 6
    text = capsys.readouterr().err
    assert "no placement that fits was found" in text
    assert "lacks 176.0 KiB" in text
    assert "or more time." in text
    assert main(PLACE) == 3  # cpsat proves it
    assert "no placement fits" in capsys.readouterr().err


def test_too_little_memory_in_all_is_proven(files, capsys):
    tasks = [{**task, "weight_bytes": "600 MiB"} for task in GRAPH["tasks"]]
    (files / "graph.json").write_text(json.dumps({**GRAPH, "tasks": tasks}))
    assert main([*PLACE, "--solver", "heft"]) == 3
    assert "all memories together lack 1.3 GiB" in capsys.readouterr().err


def test_progress_lines_go_to_stderr(files, capsys):
    assert main([*PLACE, "-v", "--json"]) == 0
    captured = capsys.readouterr()
    assert re.match(r"Placing\n\d+\.\d s  heft: best 300 us\n", captured.err)
    json.loads(captured.out)
    assert main([*PLACE, "-v", "-q", "--json"]) == 0
    quiet = capsys.readouterr()
    assert quiet.err == ""
    assert json.loads(quiet.out)["placement"] == json.loads(captured.out)["placement"]


def test_the_budget_may_be_called_time_limit_as_everywhere_else():
    parser = make_parser("place")
    budget, limit = (
        parser.parse_args([*PLACE, flag, "7"]) for flag in ("--budget", "--time-limit")
    )
    assert vars(budget) == vars(limit)
    assert from_arguments(SolveOptions, limit, RENAMED).time_limit_s == 7


@pytest.mark.parametrize(("text", "seconds"), [("2.5", 2.5), ("30s", 30), ("10m", 600)])
def test_a_budget_may_have_a_unit(text: str, seconds: float):
    given = make_parser("place").parse_args([*PLACE, "--budget", text])
    assert from_arguments(SolveOptions, given, RENAMED).time_limit_s == seconds


def test_missing_folder_of_the_output_is_a_user_error(files, capsys):
    assert main([*PLACE, "-o", "no/plan.json"]) == 4
    assert "no/plan.json: folder 'no' does not exist; make it first" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["place"],
        ["check"],
        [*PLACE, "--solver", "magic"],
        [*PLACE, "--seed", "x"],
        [*PLACE, "--budget", "0"],
        [*PLACE, "--budget", "nan"],
        [*PLACE, "--budget", "soon"],
        [*PLACE, "--objective", "energy"],
        ["run", "m.onnx", "--input-seed", "-1"],
        ["profile", "m.onnx", "--cluster", "c.json", "--store", "off"],
    ],
)
def test_wrong_usage_is_code_2(files, arguments):
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    assert stop.value.code == 2


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["check", "cluster.json", "--cluster", "no.json"], "--cluster would be ignored"),
        (["check", "graph.json", "--graph", "graph.json"], "this is a graph file"),
        (["show", "graph.json", "--cluster", "no.json"], "--cluster would be ignored"),
        ([*PLACE, "--max-memory", "gpu0=1", "--max-memory", "gpu0=2"], "'gpu0' is given twice"),
    ],
)
def test_options_that_would_be_passed_over_are_refused(files, capsys, arguments, words):
    assert main(arguments) == 4
    assert words in capsys.readouterr().err


def test_option_out_of_range_is_a_user_error(files, capsys):
    assert main([*PLACE, "--threads", "0"]) == 4
    assert "threads must be in 1..4096, got 0" in capsys.readouterr().err


def test_an_objective_that_a_solver_does_not_offer_is_a_user_error(files, capsys):
    assert main([*PLACE, "--solver", "heft", "--objective", "throughput"]) == 4
    text = capsys.readouterr().err
    assert text.startswith("error: solver 'heft' does not offer objective 'throughput'; offered by")


def test_version(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("heteroplace ")


def test_clusters_lists_the_ready_made_ones(capsys):
    assert main(["clusters"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["cluster", "devices", "memory", "links", "use"]
    assert lines[3].startswith("moirai-inter-server  A, B, C, D")
    assert lines[3].endswith("plan only")


def test_check_describes_good_files(files, capsys):
    assert main(["check", "cluster.json"]) == 0
    assert main(["check", "graph.json"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "cluster.json: cluster 'two-cores' of 2 devices, 1 memories and 0 links: no faults",
        "graph.json: graph 'fork' of 4 tasks and 4 tensors: no faults",
    ]


def test_check_warns_of_what_a_plan_wastes(files, capsys):
    graph = {**GRAPH, "tensors": [*GRAPH["tensors"], {"producer": "a", "bytes": 8}]}
    (files / "graph.json").write_text(json.dumps(graph))
    assert main([*PLACE, "--plan", "plan.json"]) == 0
    capsys.readouterr()
    command = ["check", "plan.json", "--graph", "graph.json", "--cluster", "cluster.json"]
    assert main(command) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].endswith(": no faults")
    assert lines[1].startswith("plan.json: warning: step 0: run a @ ")
    assert lines[1].endswith(": nothing reads tensor 'a.1' after it")


def test_check_names_all_faults(files, capsys):
    (files / "cluster.json").write_text(json.dumps({**CLUSTER, "host": "", "hosts": 1}))
    assert main(["check", "cluster.json"]) == 4
    assert capsys.readouterr().err.splitlines() == [
        "error: cluster.json: 2 faults",
        '  $.host: expected a name (text that is not empty), got ""',
        '  $: unknown key "hosts"; known keys: $schema, schema_version, name, description, '
        "defaults, memories, devices, links, host, congestion [HP101]",
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "[]",
            "cannot tell what it is; expected a compiled model, or an object with one of",
        ),
        ('{"tasks": [], "devices": []}', "cannot tell what it is"),
        ('{"steps": []}', "a plan file can be checked only with --graph and --cluster"),
        ("{", "not valid JSON"),
    ],
)
def test_check_refuses_what_it_cannot_check(files, capsys, text, message):
    (files / "what.json").write_text(text)
    assert main(["check", "what.json"]) == 4
    assert message in capsys.readouterr().err


@pytest.mark.parts
def test_place_for_throughput_speaks_of_times_per_item(files, capsys):
    command = [*PLACE, "--objective", "throughput", "-v"]
    assert main(command) == 0
    captured = capsys.readouterr()
    assert (
        "predicted 2.00x as fast as the best single device: one item every 200 us on "
        "cpu.0+cpu.1, one item every 400 us on cpu.0 (a run of one item takes 300 us; "
        "no plan is faster)"
    ) in captured.out
    assert "best 200 us per item" in captured.err
    assert main([*command, "--json"]) == 0
    value = json.loads(capsys.readouterr().out)
    assert (value["objective"], value["objective_ns"]) == ("throughput", 200_000)


@pytest.mark.parts
@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["compile", "m.onnx", "--runs", "3"], "--runs is an option of `heteroplace run`"),
        (["--runs", "3", "run", "m.onnx"], "--runs is an option of `heteroplace run`"),
        (["run", "m.onnx", "--degrees", "3"], "--degrees is an option of `heteroplace shard`"),
        (["costs", "--op", "x", "list"], "--op is an option of `heteroplace costs list`"),
        (["run", "m.onnx", "--", "--runs", "3"], 'after "--" it is no option: write it before'),
        (["run", "m.onnx", "--runs 3"], "write --runs and its value as two words, or --runs=3"),
        (["run", "m.onnx", "--runs"], "argument --runs: expected one argument"),
        (["run", "m.onnx", "--inputs", "x.npz"], "arrays are given by --input NAME=FILE.npy"),
        (["run", "m.onnx", "--input", "five"], "expected NAME=FILE.npy or sizes"),
        (["run", "m.onnx", "--input-shapes", "x:[1]"], "by --input NAME=1,3,224,224"),
        (["run", "m.onnx", "--measure-inputs", "x.npz"], "by --input NAME=FILE.npy"),
        (["place", "m.onnx", "--solution", "s.json"], "-o FILE writes the solution"),
        (["compile", "m.onnx", "--progress"], "-q hides it, and -v shows details"),
        (["run", "m.onnx", "--bach", "3"], 'did you mean "--batch"?'),
    ],
)
def test_an_option_in_a_wrong_place_is_told_where_it_belongs(words, says, capsys):
    with pytest.raises(SystemExit) as stop:
        main(words)
    assert stop.value.code == 2
    said = capsys.readouterr().err
    assert says in said and 'did you mean "--runs"' not in said
