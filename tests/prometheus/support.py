"""Recorded journals, scraped pages and the values on them."""

from __future__ import annotations

import http.client
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.openmetrics.exposition import generate_latest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from gpulaunch.core.facts import Fact
from gpulaunch.core.model import Instant
from gpulaunch.journal import codec
from gpulaunch.observe.metrics.model import CardSample
from gpulaunch.observe.prometheus.families import Tally, families

OPENMETRICS = "application/openmetrics-text; version=1.0.0"


class Page:
    """What a scrape told, by the client library's own strict parser."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.families = {family.name: family for family in text_string_to_metric_families(text)}
        self._values = {
            (sample.name, frozenset(sample.labels.items())): sample.value
            for family in self.families.values()
            for sample in family.samples
        }

    def value(self, name: str, /, **labels: str) -> float:
        return float(self._values[name, frozenset(labels.items())])

    def by(self, name: str, label: str) -> dict[str, float]:
        """The values of one metric that are not 0, by one of its labels."""
        return {
            dict(labels)[label]: value
            for (found, labels), value in self._values.items()
            if found == name and value
        }

    def labels(self, name: str) -> list[dict[str, str]]:
        return [dict(labels) for found, labels in self._values if found == name]

    @property
    def series(self) -> int:
        return len(self._values)


def tallied(facts: Sequence[tuple[Fact, Instant]]) -> Tally:
    tally = Tally()
    for fact, at in facts:
        tally.see(fact, at)
    return tally


def page(
    tally: Tally,
    now: Instant,
    samples: Mapping[str, CardSample] | None = None,
    energy: float | None = None,
) -> Page:
    class Collector:
        def collect(self) -> Iterator[Metric]:
            yield from families(tally, samples or {}, now, energy)

    registry = CollectorRegistry()
    registry.register(Collector())
    return Page(generate_latest(registry).decode())


def record(path: Path, facts: Sequence[tuple[Fact, Instant]], first: int = 1) -> Path:
    """A journal of these facts; added to where there is one."""
    with path.open("ab") as file:
        for number, (fact, at) in enumerate(facts, first):
            file.write(codec.encode(number, fact, at))
    return path


@contextmanager
def asked(address: str, **headers: str) -> Iterator[http.client.HTTPResponse]:
    at = urlsplit(address)
    connection = http.client.HTTPConnection(at.hostname or "", at.port, timeout=60)
    try:
        query = f"?{at.query}" if at.query else ""
        headers = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request("GET", at.path + query, headers=headers)
        with connection.getresponse() as response:
            yield response
    finally:
        connection.close()


def scrape(address: str) -> Page:
    with asked(address, Accept=OPENMETRICS) as response:
        text = response.read().decode()
        assert response.status == 200, text
    if not text.endswith("# EOF\n"):
        raise ConnectionAbortedError("the answer was cut off")
    return Page(text)
