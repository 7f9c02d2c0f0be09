"""A loaded program with routers -> predictions of branches, and what calls have done of each."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING

from heteroplace.entries import load_entry
from heteroplace.files.manifest import Manifest
from heteroplace.native.execute import PredictionCounts
from heteroplace.registry import load_plugin
from heteroplace.run.loaded_program import LoadedProgram
from heteroplace.run.recording import Recording

if TYPE_CHECKING:
    from heteroplace.model.routed.route_profile import Profile, RouteRecord
    from heteroplace.model.solution import Solution

_COPY = "heteroplace.model.plan:Copy"
"""Loaded when somebody asks what was copied."""


class RoutedProgram(LoadedProgram):
    """A program with its plan. Without routers most of these methods are refused."""

    _manifest: Manifest

    @property
    def solution(self) -> Solution:
        """The plan that is run, and all it refers to."""
        return self._manifest.solution

    @property
    def manifest(self) -> Manifest:
        """What its file says about itself."""
        return self._manifest

    def predict(self, routes: Mapping[str, Collection[int]]) -> None:
        """Predict which branches of routers are active, in calls that begin from now on.

        What the plan does of a prediction is done before the router has decided, and again only
        where it was wrong: outputs are the same whatever is predicted. Calls at work keep what was
        predicted when they began. Before the first prediction it is what the plan was made for. A
        router is predicted no longer when so few of the last 100 calls were right that it does not
        pay by what the plan takes; `prediction_counts` tells, and another prediction begins anew.

        Parameters
        ----------
        routes
            The branches of each router, by its name, that will be active, and no others of it;
            none: nothing is predicted. Routers that are not named keep what was predicted.

        Raises
        ------
        ExecutionError
            There is no such router or branch; nothing is changed.
        """
        self._native.predict_routes([(name, [*each]) for name, each in routes.items()])

    def prediction_counts(self) -> dict[str, PredictionCounts]:
        """Return how predictions of each router came out, in calls that succeeded so far.

        Raises
        ------
        ExecutionError
            The network has no routers.
        """
        return self._native.prediction_counts()

    def copied_bytes(self) -> dict[tuple[str, str], int]:
        """Return what all calls so far have copied between memories, also failed ones.

        Of a branch that is only the rows that its cells had. By the names of the memories (source,
        destination); pairs between which nothing is planned are left out. Weights that are loaded
        in a run, and messages between hosts, are not counted.
        """
        plan, cluster, copy_type = self.solution.plan, self.solution.cluster, load_entry(_COPY)
        num_bytes: dict[tuple[str, str], int] = {}
        for index, size in self._native.copied_bytes():
            step = plan.steps[index]
            if isinstance(step, copy_type):
                way = cluster.memories[step.src].name, cluster.memories[step.dst].name
                num_bytes[way] = num_bytes.get(way, 0) + size
        return num_bytes

    def routing_text(self, profile: Profile | None = None) -> str:
        """Return loads, padding and memories of branches, and what was counted so far, as text.

        Parameters
        ----------
        profile
            As of `Executable.summary`.

        Raises
        ------
        ExecutionError
            The network has no routers.
        RoutingError
            The profile is of another model, or its file is wrong.
        """
        counts = self.prediction_counts()
        hits = {name: (each.num_exact, each.num_calls) for name, each in counts.items()}
        digest, write = self._manifest.model_digest, load_plugin("routers", "run-text")
        text: str = write(self.solution, profile, digest, self.copied_bytes(), hits)
        return text

    def record(
        self,
        path: str | os.PathLike[str],
        level: int = 1,
        observe: Callable[[RouteRecord], None] | None = None,
    ) -> Recording:
        """Record the route decisions of all calls that end from now on; return what closes it.

        A thread writes them to a file (`files/routes_file.py`), from which `heteroplace.build` can
        make a plan that fits them.

        Parameters
        ----------
        path
            The file; what is there is replaced.
        level
            1: loads of branches; 2: also where each cell goes.
        observe
            Called with each record by the thread that writes it, such as a monitor of drift.

        Raises
        ------
        ExecutionError
            The network has no routers, is recorded already, or `level` is another number.
        OSError
            The file cannot be written.
        """
        digest, record = self._manifest.model_digest, load_plugin("routers", "recording")
        recording: Recording = record(self._native, digest, path, level, observe)
        return recording
