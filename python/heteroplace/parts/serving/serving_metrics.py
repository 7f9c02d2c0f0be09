"""Counts and times of requests -> a page in the text format of Prometheus."""

from __future__ import annotations

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    PlatformCollector,
    ProcessCollector,
    generate_latest,
)

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_BUCKETS_S = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
_UNKNOWN = ""
"""The label of requests for models that do not exist: clients do not choose labels."""


class ServingMetrics:
    """The metrics of one server, in a registry of its own. Any thread may call it."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        PlatformCollector(registry=self._registry)
        self._requests = Counter(
            "heteroplace_requests",
            "Inference requests that were answered, by model and HTTP status.",
            ("model", "status"),
            registry=self._registry,
        )
        self._pending = Gauge(
            "heteroplace_requests_pending",
            "Inference requests that arrive, wait or run.",
            ("model",),
            registry=self._registry,
        )
        self._seconds, self._waited, self._run = (
            Histogram(name, text, ("model",), registry=self._registry, buckets=_BUCKETS_S)
            for name, text in (
                ("heteroplace_request_seconds", "Time from the headers to the answer."),
                ("heteroplace_wait_seconds", "Time that a request waited for others."),
                ("heteroplace_run_seconds", "Time that the network ran."),
            )
        )

        self._serial = Gauge(
            "heteroplace_runs_serial",
            "Runs that one thread did alone so far, because that was faster.",
            ("model",),
            registry=self._registry,
        )

    def of_model(self, model: str) -> ModelMetrics:
        """Return the metrics of one model."""
        return ModelMetrics(
            model,
            self._requests,
            self._pending.labels(model),
            self._seconds.labels(model),
            self._waited.labels(model),
            self._run.labels(model),
            self._serial.labels(model),
        )

    def count_unknown(self, status: int) -> None:
        """Count a request for a model that does not exist."""
        self._requests.labels(_UNKNOWN, str(status)).inc()

    def page(self) -> bytes:
        """Return all metrics as text."""
        return generate_latest(self._registry)


class ModelMetrics:
    """The metrics of one model."""

    def __init__(
        self,
        model: str,
        requests: Counter,
        pending: Gauge,
        seconds: Histogram,
        waited: Histogram,
        run: Histogram,
        serial: Gauge,
    ) -> None:
        self._model = model
        self._requests = requests
        self._by_status: dict[int, Counter] = {}
        self.pending = pending
        self._seconds = seconds
        self._waited = waited
        self._run = run
        self.serial = serial

    def count(self, status: int, seconds: float) -> None:
        """Count a request that is answered, and its time."""
        counter = self._by_status.get(status)
        if counter is None:
            counter = self._by_status[status] = self._requests.labels(self._model, str(status))
        counter.inc()
        self._seconds.observe(seconds)

    def count_run(self, waited_s: float, run_s: float) -> None:
        """Count a run of the network."""
        self._waited.observe(waited_s)
        self._run.observe(run_s)
