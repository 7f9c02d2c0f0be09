"""One of two ranks: the first one sends something large, and its core goes on meanwhile.

Prints what went over the links and when, as JSON.
"""

from __future__ import annotations

import json

from benchmarks.ranks.shaped import sent_bytes
from heteroplace.lower.program import Program
from heteroplace.measure.transfers.copy_writer import REST_BYTES, CopyWriter
from heteroplace.model.cluster import Cluster
from heteroplace.parts.hosts.machines import hosts_of_cores
from heteroplace.parts.hosts.message_programs import load_on_ranks
from heteroplace.parts.hosts.mpi import MPI

NUM_BYTES = 2 << 20
NUM_COPIES = 20


def program(cluster: Cluster) -> Program:
    writer = CopyWriter(cluster, [2 * NUM_BYTES + 2 * REST_BYTES] * 2)
    writer.produce(0, NUM_BYTES, NUM_BYTES)
    writer.carry(0, 1, (NUM_BYTES, 0), NUM_BYTES)
    writer.produce(1, 4, NUM_BYTES)
    ends = [writer.tensor(0, 2 * NUM_BYTES + place, REST_BYTES) for place in (0, REST_BYTES)]
    for _ in range(NUM_COPIES):
        writer.copy(0, (ends[0], ends[1]), ())
    return writer.finish()


def main() -> None:
    ranks = MPI.launched_ranks()
    cluster = hosts_of_cores(["a", "b"])
    executor = load_on_ranks(program(cluster), cluster, ranks)
    executor.run()
    before = sum(ranks.gather(sent_bytes()))
    executor.start_trace()
    executor.run()
    events = executor.stop_trace().events
    after = sum(ranks.gather(sent_bytes()))
    spans: dict[str, list[tuple[int, int]]] = {}
    for event in events:
        span = int(event["start_ns"]), int(event["finish_ns"])
        spans.setdefault(executor.queues[event["queue"]], []).append(span)
    if ranks.rank == 0:
        print(json.dumps({"sent_bytes": after - before, "spans": spans}))


if __name__ == "__main__":
    main()
