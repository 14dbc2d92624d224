"""What a hold says of itself in the kernel, and who is believed."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import uuid

import pytest

from gpulaunch.gpus.discover import ProbeClient, find
from gpulaunch.gpus.inventory import inventory
from gpulaunch.gpus.lease import holders, take
from gpulaunch.gpus.socket_locks import (
    PREFIX,
    Holder,
    NamedHold,
    announce_hold,
    bind_name,
    hold_of,
    listening,
)
from tests.gpus.fake import FakeDriver

SOON = 1795674600.0


@pytest.fixture
def key() -> str:
    return f"test-{uuid.uuid4().hex[:12]}"


@pytest.mark.parametrize("name", ["lunch demo", "", "a/b: c", "für Ärzte", "x" * 60])
def test_a_lease_is_shown_with_the_name_and_the_end_of_its_hold(key: str, name: str) -> None:
    with take(key), announce_hold(NamedHold(name, SOON)):
        assert holders()[key].hold == NamedHold(name, SOON)
    assert hold_of(os.getpid()) is None


def test_a_hold_without_an_end_has_none(key: str) -> None:
    with take(key), announce_hold(NamedHold("demo")):
        assert holders()[key].hold == NamedHold("demo")
        assert str(holders()[key]).split(" (pid")[0].endswith(" for 'demo'")


def test_two_holds_of_one_process_and_name_are_two() -> None:
    with announce_hold(NamedHold("demo")), announce_hold(NamedHold("demo")):
        own = [name for name in listening("hold/") if name.startswith(f"hold/{os.getpid()}-")]
        assert len(own) == 2


def test_what_another_process_says_of_a_lease_is_not_believed(key: str) -> None:
    """The kernel says who took a name: one that has this process's number in it says nothing."""
    program = (
        "import sys; from gpulaunch.gpus.socket_locks import bind_name;"
        f" sock = bind_name('hold/{os.getpid()}-0000//forged'); print(1, flush=True);"
        " sys.stdin.read()"
    )
    with (
        take(key),
        subprocess.Popen(
            [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as other,
    ):
        assert other.stdout is not None
        other.stdout.readline()
        assert holders()[key].hold is None
        other.kill()


@pytest.mark.parametrize(
    "said", ["hold/", "hold/1", "hold/1-2/x/y", "hold/1-2/1e999/n", "hold/1-2/inf/n"]
)
def test_a_name_of_another_form_says_nothing(key: str, said: str) -> None:
    with take(key), bind_name(said):
        found = holders()[key].hold
        assert found is None or found.until is None or abs(found.until) < float("inf")
        str(holders()[key])


def test_a_name_shows_nothing_that_moves_a_cursor(key: str) -> None:
    with take(key), bind_name("hold/1-2//a\x1b[2Jb"):
        assert holders()[key].hold == NamedHold("a?[2Jb")


@pytest.mark.parametrize("name", ["x" * 61, "é" * 31, "a\nb", "a\x1b"])
def test_a_name_that_does_not_fit_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="at most 60 bytes"):
        announce_hold(NamedHold(name))


def test_the_longest_name_fits_into_the_kernels() -> None:
    with announce_hold(NamedHold("x" * 60, SOON)) as sock:
        assert isinstance(sock, socket.socket)
        assert len(sock.getsockname()) <= 108
        assert sock.getsockname().startswith(b"\0" + PREFIX.encode())


def test_a_far_end_is_told_to_the_minute() -> None:
    holder = Holder(7, 1000, "ann", hold=NamedHold("demo", time.time() // 60 * 60 + 7200 + 13))
    assert str(holder).startswith("ann for 'demo' until ")
    assert str(holder).split("until ")[1].split(" (pid")[0].count(":") == 1


def test_gpulaunch_gpus_has_the_hold_as_data(fake_driver: FakeDriver) -> None:
    fake_driver.card(0, bus="0000ffff:EE:1E.0")
    with (
        take("ffff:ee:1e.0"),
        announce_hold(NamedHold("demo", SOON)),
        ProbeClient(fake_driver.environ) as client,
    ):
        (row,) = inventory(find(fake_driver.environ, client=client), client)
    assert row["hold"] is not None
    assert row["hold"]["name"] == "demo"
    assert row["hold"]["pid"] == os.getpid()
    assert row["hold"]["until"] == "2026-11-26T06:30:00Z"
