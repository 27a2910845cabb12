"""What Prometheus collects: requests by route and status, how long they took, how long the model did."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest

_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)


class Measures:
    """A registry of its own, so that two apps in one process do not count each other's requests."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "hdccf_requests", "Requests answered.", ["method", "route", "status"], registry=self.registry
        )
        self.seconds = Histogram(
            "hdccf_request_seconds",
            "From the arrival of a request to the end of its answer.",
            ["route"],
            buckets=_SECONDS,
            registry=self.registry,
        )
        self.scoring = Histogram(
            "hdccf_scoring_seconds", "What of it the model took.", buckets=_SECONDS, registry=self.registry
        )
        self.under_way = Gauge("hdccf_requests_under_way", "Requests being answered.", registry=self.registry)
        self.reloads = Counter(
            "hdccf_reloads", "Attempts to take a new model.", ["outcome"], registry=self.registry
        )
        self.model = Gauge(
            "hdccf_model", "1 for the model that answers.", ["version"], registry=self.registry
        )
        ProcessCollector(registry=self.registry)

    def now_answers(self, version: str) -> None:
        self.model.clear()
        self.model.labels(version).set(1)

    def text(self) -> bytes:
        return generate_latest(self.registry)
