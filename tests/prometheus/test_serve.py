"""What clients get, and that none keeps the others from getting it."""

from __future__ import annotations

import errno
import gzip
import os
import socket
import sqlite3
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from gpulaunch.core.model import Instant
from gpulaunch.journal.read import Follower
from gpulaunch.observe.metrics.model import CardSample
from gpulaunch.observe.prometheus import families as sources
from gpulaunch.observe.prometheus.families import RunCollector
from gpulaunch.observe.prometheus.serve import serve
from tests.helpers import open_files, wait_until
from tests.prometheus.support import OPENMETRICS, asked, record, scrape
from tests.views.history import History


class Store:
    """A metrics store whose reader does as it is told."""

    def __init__(self, there: bool) -> None:
        self.samples: dict[str, CardSample] = {}
        self.energy: float | None = None
        self.error: Exception | None = None
        self.there = there
        self.opened = self.closed = 0

    def open(self) -> Store | None:
        self.opened += self.there
        return self if self.there else None

    def latest(self) -> dict[str, CardSample]:
        if self.error:
            raise self.error
        return self.samples

    def totals(self) -> tuple[float | None, bool]:
        return self.energy, False

    def close(self) -> None:
        self.closed += 1


@dataclass
class Served:
    """A journal that is served."""

    history: History
    journal: Path
    store: Store
    address: str
    port: int
    thread: threading.Thread

    def add(self, facts: int) -> None:
        """Record the newest facts of the history."""
        first = len(self.history.facts) - facts
        record(self.journal, self.history.facts[first:], first + 1)

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=60)


@contextmanager
def served(path: Path, stored: bool = True) -> Iterator[Served]:
    history = History(16).open().jobs(*"abcde").start("a", 0).pass_(5).succeed("a")
    store = Store(stored)
    journal = record(path / "events.jsonl", history.facts)
    listener = socket.create_server(("127.0.0.1", 0), backlog=64)
    port = listener.getsockname()[1]
    read, write = os.pipe()

    begun = threading.Event()

    def clock() -> Instant:
        return history.now

    def work() -> None:
        source = RunCollector(journal, store.open, clock=clock)
        source.collect()
        begun.set()
        serve(listener, read, source)

    thread = threading.Thread(target=work)
    thread.start()
    assert begun.wait(20)
    try:
        address = f"http://127.0.0.1:{port}/metrics"
        yield Served(history, journal, store, address, port, thread)
    finally:
        os.close(write)
        thread.join(20)
        os.close(read)
        assert not thread.is_alive()


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every scrape looks anew."""
    monkeypatch.setattr(sources, "GAP", 0.0)


def connections() -> int:
    return sum(thread.name.endswith("(process_request_thread)") for thread in threading.enumerate())


# ── Formats ─────────────────────────────────────────────────────────────────────────────────────


def test_openmetrics_for_who_asks_for_it_and_plain_text_for_others(tmp_path: Path) -> None:
    with served(tmp_path) as run:
        with asked(run.address, Accept=f"{OPENMETRICS},text/plain;version=0.0.4;q=0.3") as got:
            assert got.headers["Content-Type"].startswith(OPENMETRICS)
            assert got.read().endswith(b"# EOF\n")
        with asked(run.address) as got:
            assert got.headers["Content-Type"].startswith("text/plain; version=0.0.4")
            families = list(text_string_to_metric_families(got.read().decode()))
        assert "gpulaunch_jobs" in {family.name for family in families}


def test_compressed_for_who_can_read_that(tmp_path: Path) -> None:
    with served(tmp_path) as run:
        with asked(run.address, Accept=OPENMETRICS, Accept_Encoding="gzip") as got:
            assert got.headers["Content-Encoding"] == "gzip"
            assert gzip.decompress(got.read()).endswith(b"# EOF\n")
        with asked(run.address, Accept=OPENMETRICS) as got:
            assert got.headers["Content-Encoding"] is None


def test_single_metrics_can_be_picked(tmp_path: Path) -> None:
    with served(tmp_path) as run:
        page = scrape(f"{run.address}?name[]=gpulaunch_retries_total&name[]=gpulaunch_jobs")
        assert set(page.families) == {"gpulaunch_retries", "gpulaunch_jobs"}


@pytest.mark.parametrize(
    "accept", ["application/openmetrics-text; version=x", "\x80;;=,", "a" * 999]
)
def test_an_accept_header_of_any_kind_is_answered(tmp_path: Path, accept: str) -> None:
    with served(tmp_path) as run:
        with asked(run.address, Accept=accept) as got:
            assert got.status in (200, 500)
        assert scrape(run.address).value("gpulaunch_jobs", state="succeeded") == 1


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "HEAD", "BREW"])
def test_nothing_can_be_changed(tmp_path: Path, method: str) -> None:
    with served(tmp_path) as run, run.connect() as client:
        client.sendall(f"{method} /metrics HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        assert client.recv(100).startswith(b"HTTP/1.0 405")


# ── What is told ────────────────────────────────────────────────────────────────────────────────


def test_a_scrape_sees_what_was_recorded_since(tmp_path: Path, at_once: None) -> None:
    with served(tmp_path) as run:
        assert scrape(run.address).value("gpulaunch_attempts_running") == 0
        run.history.start("b", 3)
        run.add(2)
        page = scrape(run.address)
        assert page.value("gpulaunch_attempts_running") == 1
        assert page.value("gpulaunch_gpu_attempts_running", gpu="3", uuid="GPU-3") == 1


def test_the_journal_is_looked_at_once_a_second_at_most(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "GAP", 1000.0)
    with served(tmp_path) as run:
        run.history.start("b", 3)
        run.add(2)
        assert scrape(run.address).value("gpulaunch_attempts_running") == 0


def test_a_line_half_written_waits_for_its_other_half(tmp_path: Path, at_once: None) -> None:
    with served(tmp_path) as run:
        run.history.start("b", 3)
        run.add(2)
        whole = run.journal.read_bytes()
        run.journal.write_bytes(whole[:-20])
        assert scrape(run.address).value("gpulaunch_attempts_running") == 1
        run.journal.write_bytes(whole)
        assert scrape(run.address).value("gpulaunch_attempts_running") == 1


def test_a_damaged_line_costs_no_more_than_itself(tmp_path: Path, at_once: None) -> None:
    with served(tmp_path) as run:
        with run.journal.open("ab") as file:
            file.write(b"not a fact\nnor this\n")
        run.history.start("b", 3)
        run.add(2)
        assert scrape(run.address).value("gpulaunch_attempts_running") == 1


def test_a_journal_that_cannot_be_read_any_more_is_an_error(
    tmp_path: Path, at_once: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    with served(tmp_path) as run:
        monkeypatch.setattr(Follower, "read", failing)
        with asked(run.address) as got:
            assert got.status == 500


def failing(follower: Follower) -> None:
    raise OSError(errno.EIO, os.strerror(errno.EIO))


def test_samples_come_from_the_store_as_soon_as_there_is_one(tmp_path: Path, at_once: None) -> None:
    with served(tmp_path, stored=False) as run:
        run.store.samples = {"GPU-1": CardSample("GPU-1", run.history.now.utc, 70)}
        name, card = "gpulaunch_gpu_utilization_ratio", {"gpu": "1", "uuid": "GPU-1"}
        assert name not in scrape(run.address).families
        run.store.there = True
        assert scrape(run.address).value(name, **card) == 0.7
        assert run.store.closed == run.store.opened


def test_a_store_that_cannot_be_read_takes_the_cards_gauges_and_nothing_else(
    tmp_path: Path, at_once: None
) -> None:
    with served(tmp_path) as run:
        run.store.samples = {"GPU-1": CardSample("GPU-1", run.history.now.utc, 70)}
        run.store.error = sqlite3.DatabaseError("file is not a database")
        page = scrape(run.address)
        assert "gpulaunch_gpu_utilization_ratio" not in page.families
        assert page.value("gpulaunch_jobs", state="succeeded") == 1
        run.store.error = None
        assert "gpulaunch_gpu_utilization_ratio" in scrape(run.address).families


# ── Clients that are slow, many or gone ─────────────────────────────────────────────────────────


@pytest.mark.parametrize("said", [b"", b"GET /metrics HTTP/1.1\r\nX: "], ids=["nothing", "half"])
def test_clients_that_say_too_little_keep_nobody_waiting(tmp_path: Path, said: bytes) -> None:
    with served(tmp_path) as run, ExitStack() as stack:
        for _ in range(40):
            stack.enter_context(run.connect()).sendall(said)
        wait_until(lambda: connections() == 40)
        assert scrape(run.address).value("gpulaunch_jobs", state="succeeded") == 1
    wait_until(lambda: connections() == 0)


def test_many_scrape_at_once(tmp_path: Path, at_once: None) -> None:
    with served(tmp_path) as run, ThreadPoolExecutor(20) as threads:
        pages = list(threads.map(lambda _: scrape(run.address), range(100)))
    assert {page.value("gpulaunch_jobs", state="succeeded") for page in pages} == {1.0}


@pytest.mark.parametrize(
    "said",
    [
        b"GET /" + b"x" * 1_000_000 + b" HTTP/1.1\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: 1000000\r\n\r\n" + b"z" * 1_000_000,
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\n",
        b"\x00" * 10_000 + b"\n",
    ],
    ids=["line", "body", "tls", "zeros"],
)
def test_a_request_of_any_size_and_kind_ends(tmp_path: Path, said: bytes) -> None:
    with served(tmp_path) as run:
        # It may be answered, and its connection reset, before all of it was said.
        with run.connect() as client, suppress(OSError):
            client.sendall(said)
            client.shutdown(socket.SHUT_WR)
            while client.recv(65536):
                pass
        wait_until(lambda: connections() == 0)
        assert scrape(run.address).value("gpulaunch_jobs", state="succeeded") == 1


def test_clients_that_hang_up_leave_nothing_behind(tmp_path: Path) -> None:
    with served(tmp_path) as run:
        scrape(run.address)
        wait_until(lambda: connections() == 0)
        before = open_files()
        for number in range(200):
            with run.connect() as client:
                client.sendall(b"GET / HTTP/1.0\r\n\r\n"[: number % 19])
            if number % 10 == 0:
                scrape(run.address)
        wait_until(lambda: connections() == 0)
        wait_until(lambda: not open_files() - before)


def test_a_run_that_no_longer_has_a_journal_is_served_as_it_was(
    tmp_path: Path, at_once: None
) -> None:
    with served(tmp_path) as run:
        run.journal.unlink()
        assert scrape(run.address).value("gpulaunch_jobs", state="succeeded") == 1
