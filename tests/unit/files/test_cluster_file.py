"""Cluster files: what is read, what is refused (with JSON paths), and that the schema agrees."""

import json
import re
from dataclasses import replace
from importlib import resources

import pytest
from jsonschema import Draft202012Validator

from heteroplace.errors import ClusterError
from heteroplace.files.cluster_file import (
    cluster_from_json,
    cluster_to_json,
    load_cluster,
    ready_made_clusters,
)
from heteroplace.files.faults import path_text
from heteroplace.model.cluster import (
    Link,
    Memory,
)
from tests.unit.files.cluster_files import VALIDATOR, small, small_with


def test_units_memories_and_links_are_read():
    cluster = cluster_from_json(small())
    assert cluster.memories == (Memory("ram", 8 * 2**30), Memory("gpu0", 16 * 2**30))
    assert cluster.host == 0
    cpu, gpu = cluster.devices
    assert (cpu.kind, cpu.index, cpu.memory, cpu.cores) == ("cpu", 0, 0, (0, 1))
    assert (gpu.kind, gpu.index, gpu.memory, gpu.target) == ("cuda", 1, 1, "cuda -arch=sm_75")
    assert cluster.links == (
        Link("cpu->gpu0", 0, 1, 5_500_000_000, 5_000, "cpu->gpu0"),
        Link("gpu0->cpu", 1, 0, 5_500_000_000, 5_000, "gpu0->cpu"),
    )


def test_named_channel_is_shared_by_both_directions():
    cluster = cluster_from_json(small_with("links", 0, channel="pcie", name="slot0"))
    assert [(link.name, link.channel) for link in cluster.links] == [
        ("slot0", "pcie"),
        ("slot0.reverse", "pcie"),
    ]


def test_reserve_is_taken_off_every_memory():
    cluster = cluster_from_json(small(defaults={"memory_reserve": "1 GiB"}))
    assert [memory.bytes for memory in cluster.memories] == [7 * 2**30, 15 * 2**30]


def test_reserve_must_leave_something():
    with pytest.raises(ClusterError, match=r"\$\.memories\[0\]\.size: memory 'ram' has"):
        cluster_from_json(small(defaults={"memory_reserve": "8 GiB"}))


def test_target_dict_becomes_text_with_sorted_keys():
    target = {"kind": "llvm", "mcpu": "skylake", "mattr": ["+avx2", "+fma"], "fast-math": True}
    cluster = cluster_from_json(small_with("devices", 0, target=target))
    assert cluster.devices[0].target == "llvm -fast-math=1 -mattr=+avx2,+fma -mcpu=skylake"


def test_congestion_engines_and_batch_sizes_are_read():
    cluster = cluster_from_json(small())
    assert cluster.congestion == "channel"
    assert [(device.copy_engines, device.batch_sizes) for device in cluster.devices] == [
        (None, (1,)),
        (None, (1,)),
    ]
    value = small_with("devices", 1, copy_engines=2, batch_sizes=[4, 1])
    cluster = cluster_from_json({**value, "congestion": "port"})
    assert cluster.congestion == "port"
    assert (cluster.devices[1].copy_engines, cluster.devices[1].batch_sizes) == (2, (1, 4))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"congestion": "ports"}, r"\$\.congestion: expected one of none, channel, port, bus, got"),
        ({"congestion": ["bus"]}, r"\$\.congestion: expected one of none, channel, port, bus, got"),
        ({"copy_engines": 3}, r"\$\.devices\[0\]\.copy_engines: expected 0, 1 or 2, got 3"),
        ({"copy_engines": None}, r"copy_engines: expected 0, 1 or 2, got null"),
        ({"copy_engines": True}, r"copy_engines: expected 0, 1 or 2, got true"),
        ({"batch_sizes": []}, r"batch_sizes: expected a list of different numbers >= 1 such as"),
        ({"batch_sizes": [0, 1]}, r"batch_sizes\[0\]: expected a whole number >= 1, got 0"),
        ({"batch_sizes": [2, 2]}, "batch_sizes: expected a list of different numbers >= 1"),
        ({"batch_sizes": 4}, "batch_sizes: expected a list of different numbers >= 1"),
    ],
)
def test_wrong_congestion_engines_or_batch_sizes_are_faults(changes, message):
    value = small()
    (value if "congestion" in changes else value["devices"][0]).update(changes)
    with pytest.raises(ClusterError, match=message):
        cluster_from_json(value)
    assert not VALIDATOR.is_valid(value)


def test_measured_transfers_are_read_in_both_directions_and_change_the_digest():
    value = small_with("links", 0, measured=[["2 MiB", "90 us"], [4, "1 ns"]])
    cluster = cluster_from_json(value)
    assert VALIDATOR.is_valid(value)
    assert [link.measured for link in cluster.links] == [((4, 1), (2**21, 90_000))] * 2
    assert cluster_from_json(cluster_to_json(cluster)) == cluster
    assert cluster.digest() != cluster_from_json(small()).digest()
    route = cluster.route(0, 1)
    assert cluster.transfer_ns(route, 2**21) == 5_000 + 90_000


def test_transfer_times_are_whole_and_older_files_give_the_same_cluster():
    whole = small_with("links", 0, transfer_times=[["2 MiB", "95 us"], [4, "5001 ns"]])
    older = small_with("links", 0, measured=[["2 MiB", "90 us"], [4, "1 ns"]])
    cluster = cluster_from_json(whole)
    assert (VALIDATOR.is_valid(whole), cluster) == (True, cluster_from_json(older))
    assert cluster.transfer_ns(cluster.route(0, 1), 2**21) == 95_000
    written = cluster_to_json(cluster)["links"][0]
    assert (written["transfer_times"][1], "measured" in written) == ([2**21, "95000 ns"], False)


def test_transfer_times_below_the_latency_and_times_of_both_forms_are_faults():
    short = small_with("links", 0, transfer_times=[[4, "1 ns"]])
    with pytest.raises(ClusterError, match=r"transfer_times: 4 B take 1 ns, less than .* 5000 ns"):
        cluster_from_json(short)
    both = small_with("links", 0, transfer_times=[[4, "9 us"]], measured=[[4, "1 ns"]])
    with pytest.raises(ClusterError, match=r"measured: the times are in 'transfer_times' already"):
        cluster_from_json(both)


@pytest.mark.parametrize(
    ("measured", "place"),
    [(4, ""), ([[4]], "[0]"), ([[4, "1 ns"], [4, "2 ns"]], ""), ([[0, "1 ns"]], "[0][0]")],
)
def test_measured_transfers_that_are_no_sizes_with_durations_are_faults(measured, place):
    with pytest.raises(ClusterError, match=re.escape(f"$.links[0].measured{place}: expected")):
        cluster_from_json(small_with("links", 0, measured=measured))


def test_measured_sizes_of_a_link_must_rise():
    link = cluster_from_json(small()).links[0]
    cluster = cluster_from_json(small())
    with pytest.raises(ClusterError, match="measured sizes must be > 0 and ascending"):
        replace(cluster, links=(replace(link, measured=((4, 1), (4, 2))), *cluster.links[1:]))


def test_what_a_cluster_leaves_at_its_default_is_not_written():
    text = json.dumps(cluster_to_json(cluster_from_json(small())))
    defaults = ("congestion", "copy_engines", "batch_sizes", "transfer_times", "part")
    assert not [key for key in defaults if key in text]


def test_rules_of_copies_and_batches_change_the_digest():
    cluster = cluster_from_json(small())
    device = cluster.devices[0]
    changed = [
        replace(cluster, congestion="bus"),
        replace(cluster, devices=(replace(device, copy_engines=0), cluster.devices[1])),
        replace(cluster, devices=(replace(device, batch_sizes=(1, 2)), cluster.devices[1])),
        replace(cluster, devices=(cluster.devices[0], replace(cluster.devices[1], part=1))),
    ]
    assert len({cluster.digest(), *(other.digest() for other in changed)}) == 5


def test_all_faults_are_reported_at_once_with_paths():
    value = small()
    value["nam"] = value.pop("name")
    value["devices"][1]["core"] = [1]
    value["links"][0].update(bandwidth=5, latency="5")
    with pytest.raises(ClusterError) as fault:
        cluster_from_json(value, source="box.json")
    assert str(fault.value).splitlines() == [
        "box.json: 5 faults",
        '  $.devices[1]: unknown key "core"; did you mean "cores"?',
        '  $.links[0].bandwidth: expected a bandwidth > 0 with its unit, such as "44.26 Gbit/s" or '
        '"5.5 GB/s", got 5',
        "  $.links[0].latency: expected a duration with its unit (ns, us, ms, s), such as "
        '"5 us", got "5"',
        '  $: the key "name" is missing',
        '  $: unknown key "nam"; did you mean "name"?',
    ]


def test_all_faults_across_records_are_reported_at_once():
    value = small()
    value["devices"][1]["memory"] = "16 GB/s"
    value["links"][0].update(dst="gpu1", bandwidth="0.1 B/s", latency="99999999999999 s")
    with pytest.raises(ClusterError) as fault:
        cluster_from_json(value, source="box.json")
    assert str(fault.value).splitlines() == [
        "box.json: 4 faults",
        "  $.devices[1].memory: no memory is called '16 GB/s', and a size looks like \"16 GiB\"",
        '  $.links[0].dst: no memory or device is called "gpu1"; did you mean "gpu0"?',
        '  $.links[0].bandwidth: expected more than 0, got "0.1 B/s"',
        "  $.links[0].latency: expected a duration with its unit (ns, us, ms, s), such as "
        '"5 us" that 63 bits hold, got "99999999999999 s"',
    ]


@pytest.mark.parametrize(
    "path",
    [
        ("host",),
        ("devices", 0, "flops_per_second"),
        ("devices", 0, "memory_bandwidth"),
        ("links", 0, "name"),
        ("links", 0, "channel"),
    ],
)
def test_a_key_may_be_absent_but_not_null(path):
    value = small()
    record = value
    for step in path[:-1]:
        record = record[step]
    record[path[-1]] = None
    with pytest.raises(ClusterError, match=re.escape(path_text(path)) + ": expected .*, got null$"):
        cluster_from_json(value)
    assert not VALIDATOR.is_valid(value)


# Faults of form, which the schema must refuse too.
FORM_FAULTS = {
    "not an object": ([], r"\$: expected an object, got \[\]"),
    "no devices": (small(devices=[]), r"\$\.devices: expected a list of at least one device"),
    "other version": (small(schema_version=2), r"\$\.schema_version: this file is of version 2"),
    "name empty": (small(name=""), r"\$\.name: expected a name"),
    "link list": (small(links={}), r"\$\.links: expected a list"),
    "defaults unknown": (small(defaults={"copy_engines": 1}), 'unknown key "copy_engines"'),
    "memory zero": (small_with("memories", 0, size=0), r"size: expected a size > 0 such as"),
    "memory size name": (small_with("memories", 0, name="1 GB"), "a name that is not also a size"),
    "memory no unit": (small_with("memories", 0, size="16"), r"\[0\]\.size: expected a size"),
    "memory wrong case": (small_with("memories", 0, size="16 gib"), "expected a size > 0 such"),
    "own memory zero": (small_with("devices", 1, memory="0.0 GiB"), r"memory: expected the name"),
    "device missing": (small_with("devices", 0, device=None), 'the key "device" is missing'),
    "target without kind": (small_with("devices", 0, target={"arch": "x"}), "expected a TVM"),
    "target with space": (small_with("devices", 0, target={"kind": "c", "a": "x y"}), "a TVM"),
    "cores repeat": (small_with("devices", 0, cores=[1, 1]), r"cores: expected a list of diff"),
    "cores negative": (small_with("devices", 0, cores=[-1]), r"cores\[0\]: expected a whole"),
    "flops": (small_with("devices", 0, flops_per_second="9 TFLOPS"), 'such as "14.1 TFLOP/s"'),
    "bandwidth unit": (small_with("links", 0, bandwidth="5 GB"), "a bandwidth > 0 with its unit"),
    "bandwidth zero": (small_with("links", 0, bandwidth="0 GB/s"), "expected a bandwidth > 0"),
    "latency missing": (small_with("links", 0, latency=None), 'the key "latency" is missing'),
    "bidirectional": (small_with("links", 0, bidirectional="yes"), "expected true or false"),
}

# Faults of meaning, beyond a schema.
MEANING_FAULTS = {
    "unknown host": (small(host="rom"), r"\$\.host: no memory is called 'rom'; did you mean"),
    "no way there": (
        small(links=[]),
        r"\$\.devices\[1\]: device 'gpu0' cannot be reached from host memory 'ram'; add a link",
    ),
    "no way back": (
        small_with("links", 0, bidirectional=False),
        r"\$\.devices\[1\]: host memory 'ram' cannot be reached from device 'gpu0'",
    ),
    "link to itself": (small_with("links", 0, dst="ram"), r"'cpu' and 'ram' are one memory"),
    "cores of a gpu": (small_with("devices", 1, cores=[0]), "only cpu devices have cores"),
    "cpu without cores": (
        small(devices=[*small()["devices"], {**small()["devices"][0], "name": "c", "cores": [0]}]),
        None,
    ),
    "memory twice": (
        small(memories=[{"name": "ram", "size": 1}, {"name": "ram", "size": 1}]),
        r"\$\.memories\[1\]\.size: a memory called 'ram' exists already",
    ),
    "links alike": (small(links=small()["links"] * 2), r"\$\.links: 2 links are called"),
    "host of a memory without devices": (
        small_with("memories", 0, host="b"),
        r"\$\.memories\[0\]\.host: no device is on host 'b', so nothing could run there",
    ),
    "host of a memory, misspelt": (
        small(
            memories=[{"name": "ram", "size": 9, "host": "node-2"}],
            devices=[{**small()["devices"][0], "host": "node-1"}, small()["devices"][1]],
        ),
        r"\$\.memories\[0\]\.host: no device is on host 'node-2'; did you mean \"node-1\"",
    ),
    "devices of a memory on two hosts": (
        small(
            devices=[
                {**small()["devices"][0], "host": "a"},
                {**small()["devices"][0], "name": "far", "host": "b"},
                small()["devices"][1],
            ]
        ),
        r"\$\.devices\[1\]\.host: device 'far' is on host 'b', and its memory 'ram' is on host 'a'",
    ),
    "device without the host of its memory": (
        small(
            memories=[{"name": "ram", "size": 9, "host": "b"}],
            devices=[small()["devices"][0], {**small()["devices"][1], "host": "b"}],
        ),
        r"\$\.devices\[0\]\.host: device 'cpu' is on host '', and its memory 'ram' is on host 'b'",
    ),
    "device twice": (small(devices=[*small()["devices"], small()["devices"][0]]), "used 2 times"),
}
MEANING_FAULTS["cpu without cores"][0]["devices"][0].pop("cores")
MEANING_FAULTS["cpu without cores"] = (
    MEANING_FAULTS["cpu without cores"][0],
    r'\$\.devices\[0\]: the key "cores" is missing, which other cpu devices',
)


@pytest.mark.parametrize("case", FORM_FAULTS)
def test_reader_and_schema_refuse_the_same_forms(case):
    value, message = FORM_FAULTS[case]
    with pytest.raises(ClusterError, match=message):
        cluster_from_json(value)
    assert not VALIDATOR.is_valid(value)


@pytest.mark.parametrize("case", MEANING_FAULTS)
def test_faults_of_meaning_are_refused(case):
    value, message = MEANING_FAULTS[case]
    with pytest.raises(ClusterError, match=message):
        cluster_from_json(value)
    VALIDATOR.validate(value)


@pytest.mark.parametrize("name", ready_made_clusters())
def test_ready_made_clusters_load_and_fit_the_schema(name):
    cluster = load_cluster(name)
    assert cluster.name == name
    folder = resources.files("heteroplace") / "clusters"
    value = json.loads((folder / f"{name.replace('-', '_')}.json").read_text("utf-8"))
    VALIDATOR.validate(value)


def test_moirai_bandwidths_are_exact():
    cluster = load_cluster("moirai-inter-server")
    route = cluster.route(cluster.device_id("A"), cluster.device_id("B"))
    assert [cluster.links[link].bytes_per_second for link in route] == [5_532_500_000]
    assert cluster.memories[0].bytes == 11 * 2**30 - 512 * 2**20


def test_unknown_ready_made_name_is_named_with_a_suggestion():
    with pytest.raises(ClusterError, match='did you mean "cpu-one-gpu"\\? There are: cpu-one-gpu,'):
        load_cluster("cpu-one-gpus")


def test_this_machine_is_no_ready_made_cluster_but_said_how_to_get():
    with pytest.raises(ClusterError, match=r"call heteroplace\.local_cluster\(\) for it"):
        load_cluster("local")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not valid JSON: .* line 1 column 2"),
        ('{"name": 1, "name": 2}', 'the key "name" occurs twice in one object'),
        ('{"schema_version": NaN}', "NaN is not a JSON number"),
        ("[" * 100_000, "not valid JSON"),
    ],
)
def test_broken_json_is_a_cluster_error(tmp_path, text, message):
    path = tmp_path / "box.json"
    path.write_text(text)
    with pytest.raises(ClusterError, match=message):
        load_cluster(path)


def test_missing_file_is_a_cluster_error(tmp_path):
    with pytest.raises(ClusterError, match=r"none\.json: cannot be read: No such file"):
        load_cluster(tmp_path / "none.json")


def test_schema_is_valid():
    assert Draft202012Validator(Draft202012Validator.META_SCHEMA).is_valid(VALIDATOR.schema)
