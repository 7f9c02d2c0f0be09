"""Schedules that were quick alone -> those that are quicker than ours in a run of the network.

The network runs with our kernels and with the tuned ones in turns, in the same rounds, and the
calls of each kernel are added up. What is faster on some number of cores by more than noise is
kept. If that leaves some out, the rest is measured once more: neighbours changed, and figures that
chose are too good.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from msgspec import structs

from heteroplace.costs.measurement import Measurement
from heteroplace.costs.store import CostStore
from heteroplace.costs.tunings import TunedPlace, find_tunings, keep_schedule
from heteroplace.files.measurements import KernelKey
from heteroplace.lower.compile import CompiledNetwork
from heteroplace.machine.fingerprint import device_fingerprint
from heteroplace.measure.kernel_variants import with_implementations
from heteroplace.measure.measure_options import ProfileOptions
from heteroplace.measure.profile import profile_network, with_workspaces
from heteroplace.model.cluster import Cluster
from heteroplace.model.implementations import makers_of
from heteroplace.parts.kernels.tuned.tuned_kernels import tuning_digest
from heteroplace.relay.tasks.network import Network

MIN_GAIN = 0.03
"""Of a kernel's time, by which a tuned one must be shorter; kernels that are alike differ by up to
this from one measurement to the next."""
_ROUNDS = 14

SumsNs = tuple[int, int]
"""Of all calls of a kernel in a run: ours, and the tuned one's."""


@dataclass(frozen=True)
class Judged:
    """What was measured in place."""

    sums_ns: Mapping[str, Mapping[int, SumsNs]]
    """By digest and number of cores."""
    kept: tuple[str, ...]
    """Digests of what is used from now on."""


def judge(
    network: Network,
    cluster: Cluster,
    candidates: Mapping[str, str],
    store: CostStore,
    place: TunedPlace,
    say: Callable[[str], None] = lambda line: None,
) -> Judged:
    """Measure traces in place, and keep those that are faster than our kernels.

    Parameters
    ----------
    cluster
        Of CPUs with one target, all in this machine, without twins.
    candidates
        Traces by digest; what the store keeps of other functions stays.

    Raises
    ------
    LoweringError, ExecutionError, InfeasibleError, CostStoreError
        See `profile_network`.
    """
    sums: dict[str, dict[int, SumsNs]] = {}
    left = dict(candidates)
    for _ in range(2):
        if not left:
            break
        say(f"Measuring {len(left)} tuned kernels in place")
        measured, in_turns = _measure(network, cluster, left)
        sums.update(measured)
        faster = [digest for digest in left if is_faster(sums.get(digest, {}))]
        is_settled = len(faster) == len(left)
        left = {digest: left[digest] for digest in faster}
        if is_settled:
            # What the next placement asks for: both sides as they were in the same minutes.
            store.add_many(in_turns.items())
            break
    stored = find_tunings(store, place)
    for digest, trace in candidates.items():
        own_ns, tuned_ns = widest(sums.get(digest, {}))
        # One that was kept before stays, unless it is the one that is not faster now.
        if digest in left or stored[digest].kept in ("", trace):
            keep_schedule(store, place, digest, left.get(digest, ""), own_ns, tuned_ns)
    return Judged(sums, tuple(left))


def is_faster(sums: Mapping[int, SumsNs]) -> bool:
    """Say whether a kernel is faster by more than noise on some number of cores."""
    return any(tuned_ns < (1 - MIN_GAIN) * own_ns for own_ns, tuned_ns in sums.values())


def widest(sums: Mapping[int, SumsNs]) -> SumsNs:
    """Return the times on most cores; (0, 0): it was not measured."""
    return sums[max(sums)] if sums else (0, 0)


def _measure(
    network: Network, cluster: Cluster, traces: Mapping[str, str]
) -> tuple[dict[str, dict[int, SumsNs]], dict[KernelKey, Measurement]]:
    """Times by digest and number of cores, and all measurements with their keys in a store."""
    tuned, both = with_implementations(
        replace(network, tunings=dict(traces)), cluster, makers=("tuned",)
    )
    if not makers_of(both.devices):
        return {}, {}
    compiled = with_workspaces(CompiledNetwork.of(tuned), both)
    options = ProfileOptions(least_rounds=_ROUNDS)
    profile = profile_network(compiled, both, options)
    lowered = compiled.calls(both, [0] * len(tuned.graph.tasks))
    targets = {device.target for device in both.devices[len(cluster.devices) :]}
    sums: dict[str, dict[int, list[int]]] = defaultdict(lambda: defaultdict(lambda: [0, 0]))
    judged = _tuned_sites(profile.measurements, targets)
    for key, measurement in profile.measurements.items():
        function = lowered.kernels[lowered.calls[key.site].kernel].function
        digest = "" if function is None else tuning_digest(function)
        if digest in traces and (key.threads, key.site) in judged:
            sums[digest][key.threads][key.target in targets] += measurement.wall_ns
    fingerprints = {device.name: device_fingerprint(device) for device in both.devices}
    stored = {
        structs.replace(key, device=fingerprints[key.device]): measurement
        for key, measurement in profile.measurements.items()
    }
    pairs = {
        digest: {threads: (own, other) for threads, (own, other) in by_threads.items()}
        for digest, by_threads in sums.items()
    }
    return pairs, stored


def _tuned_sites(
    measurements: Mapping[KernelKey, Measurement], targets: set[str]
) -> set[tuple[int, int]]:
    """(cores, call) of what was measured on twins; its like elsewhere is what it is held against"""
    return {(key.threads, key.site) for key in measurements if key.target in targets}
