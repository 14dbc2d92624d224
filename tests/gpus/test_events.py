"""The client and its helper process, against the pretend driver."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from gpulaunch.agent.proc import state_of
from gpulaunch.base import helper_process
from gpulaunch.base.helper_process import command
from gpulaunch.core.events import GpuEvent
from gpulaunch.core.model import Gpu
from gpulaunch.gpus import listen
from gpulaunch.gpus.discover import find, simulated
from gpulaunch.gpus.xid import hearing
from tests.gpus.fake import FakeDriver
from tests.gpus.listening import Client
from tests.helpers import descriptors_left, wait_until

DOUBLE_BIT, UNAVAILABLE, RECOVERY = 0x2, 0x4000, 0x8000
LOST, NOT_SUPPORTED, NO_PERMISSION, UNKNOWN = 15, 3, 4, 999

Listen = Callable[..., Client]


@pytest.fixture
def listen_to(fake_driver: FakeDriver) -> Iterator[Listen]:
    """Clients for the cards that the pretend driver has at the time."""
    with ExitStack() as stack:

        def build(period: float = 60.0) -> Client:
            client = Client(find(fake_driver.environ).gpus, fake_driver.environ, period)
            stack.callback(client.close)
            return client

        yield build


def hear(client: Client, until: Callable[[], object], seconds: float = 15.0) -> list[GpuEvent]:
    """Turn until the condition holds; what is reported meanwhile."""
    end = time.monotonic() + seconds
    while not until():
        rest = end - time.monotonic()
        assert rest > 0, f"not within {seconds} s; announced: {client.coverage}"
        client.turn(rest)
    return client.taken()


def ready(client: Client, cards: int = 1) -> Client:
    hear(client, lambda: len(client.coverage) == cards)
    return client


def heard(client: Client, count: int = 1) -> list[GpuEvent]:
    """The next events, at least `count` of them."""
    return hear(client, lambda: len(client.events) >= count)


def is_quiet(client: Client, seconds: float = 0.3) -> bool:
    """Whether the client has no use for the loop in that time."""
    began = time.monotonic()
    client.turn(seconds)
    return not client.events and time.monotonic() - began >= seconds


# ── What happens to a card ──────────────────────────────────────────────────────────────────────


def test_an_xid_comes_with_its_card_its_number_and_its_meaning(
    fake_driver: FakeDriver, listen_to: Listen
) -> None:
    uuids = [fake_driver.card(n) for n in range(2)]
    client = ready(listen_to(), cards=2)
    fake_driver.event(1, 79)
    (event,) = heard(client)
    assert (event.gpu, event.code, event.verdict, event.stops) == (uuids[1], 79, "lost", True)
    assert "fallen off the bus" in event.text


def test_a_program_s_own_fault_is_told_apart(fake_driver: FakeDriver, listen_to: Listen) -> None:
    fake_driver.card(0)
    client = ready(listen_to())
    fake_driver.event(0, 31)
    (event,) = heard(client)
    assert (event.code, event.verdict, event.stops) == (31, "app", False)


def test_what_happened_before_is_not_told(fake_driver: FakeDriver, listen_to: Listen) -> None:
    fake_driver.card(0)
    fake_driver.event(0, 79)
    client = ready(listen_to())
    fake_driver.event(0, 13)
    assert [event.code for event in heard(client)] == [13]


def test_one_fault_reported_many_times_is_told_once(
    fake_driver: FakeDriver, listen_to: Listen
) -> None:
    fake_driver.card(0)
    client = ready(listen_to())
    for _ in range(20):
        fake_driver.event(0, 13)
    fake_driver.event(0, 43)
    assert [event.code for event in heard(client, 2)] == [13, 43]
    assert is_quiet(client)


def test_events_that_are_no_xids_are_told_too(fake_driver: FakeDriver, listen_to: Listen) -> None:
    fake_driver.card(0)
    client = ready(listen_to())
    fake_driver.event(0, 0, kind=DOUBLE_BIT)
    fake_driver.event(0, 0, kind=UNAVAILABLE)
    memory, gone = heard(client, 2)
    assert (memory.code, memory.verdict) == (None, "note")
    assert (gone.code, gone.verdict, gone.stops) == (None, "lost", True)


@pytest.mark.parametrize(("action", "verdict"), [(0, "note"), (1, "lost"), (2, "lost")])
def test_a_changed_recovery_action_is_looked_up(
    fake_driver: FakeDriver, listen_to: Listen, action: int, verdict: str
) -> None:
    fake_driver.card(0)
    client = ready(listen_to())
    fake_driver.card(0, recovery=action)
    fake_driver.event(0, 154)
    fake_driver.event(0, action, kind=RECOVERY)
    by_xid, by_event = heard(client, 2)
    assert [by_xid.verdict, by_event.verdict] == [verdict, verdict]
    assert by_xid.code == 154
    assert by_xid.text.startswith("Xid 154, ")


def test_a_recovery_action_that_the_driver_does_not_tell_is_a_note(
    fake_driver: FakeDriver, listen_to: Listen
) -> None:
    fake_driver.card(0, error_recovery=LOST)
    client = ready(listen_to())
    fake_driver.event(0, 154)
    fake_driver.event(0, 1, kind=RECOVERY)
    assert [event.verdict for event in heard(client, 2)] == ["note", "note"]


def test_eight_cards_are_told_apart(fake_driver: FakeDriver, listen_to: Listen) -> None:
    uuids = [fake_driver.card(n) for n in range(8)]
    client = ready(listen_to(), cards=8)
    for n in range(8):
        fake_driver.event(n, 31)
        fake_driver.event(n, 43)
    found = heard(client, 16)
    assert [(event.gpu, event.code) for event in found] == [
        (uuid, code) for uuid in uuids for code in (31, 43)
    ]


# ── MIG ─────────────────────────────────────────────────────────────────────────────────────────


def test_an_event_of_an_instance_concerns_that_instance_alone(
    fake_driver: FakeDriver, listen_to: Listen
) -> None:
    instances = [fake_driver.mig(0, n) for n in range(3)]
    client = ready(listen_to(), cards=3)
    fake_driver.event(0, 31, gi=2, ci=0)
    (event,) = heard(client)
    assert event.gpu == instances[1]
    fake_driver.event(0, 31, gi=7, ci=0)  # somebody else's
    fake_driver.event(0, 43, gi=3)
    assert [event.gpu for event in heard(client)] == [instances[2]]


def test_an_event_of_the_whole_card_concerns_every_instance(
    fake_driver: FakeDriver, listen_to: Listen
) -> None:
    instances = [fake_driver.mig(0, n) for n in range(3)]
    client = ready(listen_to(), cards=3)
    fake_driver.event(0, 79)
    assert [event.gpu for event in heard(client, 3)] == instances


def test_where_an_event_of_a_place_belongs() -> None:
    there = {"card": None, "MIG-1": (1, 0), "MIG-2": (1, 1), "MIG-3": (2, 0)}
    everything = list(there)
    assert listen.concerned(there, (listen.ANY, listen.ANY)) == everything
    assert listen.concerned(there, (1, listen.ANY)) == ["card", "MIG-1", "MIG-2"]
    assert listen.concerned(there, (1, 1)) == ["card", "MIG-2"]
    assert listen.concerned(there, (9, 0)) == ["card"]


# ── No events ───────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "card",
    [
        {"events": 0},
        {"events": DOUBLE_BIT},
        {"error_events": NOT_SUPPORTED},
        {"error_events": NO_PERMISSION},
        {"error_register": NOT_SUPPORTED},
    ],
    ids=str,
)
def test_a_card_without_events_is_no_error_and_is_not_asked_again(
    fake_driver: FakeDriver, listen_to: Listen, card: dict[str, int]
) -> None:
    uuid = fake_driver.card(0, **card)
    client = listen_to()
    hear(client, lambda: client.pid is None)
    assert client.ended
    assert isinstance(client.coverage[uuid], str)
    assert is_quiet(client)


def test_a_driver_that_cannot_tell_of_events_is_left_alone(
    fake_driver: FakeDriver, listen_to: Listen
) -> None:
    uuid = fake_driver.card(0)
    client = listen_to()
    hear(client, lambda: client.coverage)
    assert client.coverage[uuid] == ("double_bit_ecc", "xid", "unavailable", "recovery")
    client.close()
    fake_driver.driver(error_event_set=NO_PERMISSION)
    client = listen_to()
    hear(client, lambda: client.pid is None)
    assert client.ended


def test_a_driver_of_before_mig_is_left_alone(tmp_path: Path) -> None:
    driver = FakeDriver(tmp_path, old=True)
    uuid = driver.card(0)
    with Client(find(driver.environ).gpus, driver.environ) as client:
        hear(client, lambda: client.pid is None)
        assert client.ended
        assert isinstance(client.coverage[uuid], str)


def test_a_driver_that_takes_the_older_types_alone_is_given_those(
    fake_driver: FakeDriver, listen_to: Listen
) -> None:
    uuid = fake_driver.card(0, registers=0xF)
    client = ready(listen_to())
    assert client.coverage[uuid] == ("double_bit_ecc", "xid")
    fake_driver.event(0, 48)
    assert heard(client)[0].code == 48


def test_the_cards_that_have_events_are_heard_beside_those_that_have_none(
    fake_driver: FakeDriver, listen_to: Listen
) -> None:
    deaf, uuid = fake_driver.card(0, events=0), fake_driver.card(1)
    client = ready(listen_to(), cards=2)
    assert isinstance(client.coverage[deaf], str)
    fake_driver.event(0, 79)
    fake_driver.event(1, 31)
    assert [(event.gpu, event.code) for event in heard(client)] == [(uuid, 31)]


def test_pretend_cards_start_no_process() -> None:
    with Client(simulated(2, "run"), {}) as client:
        assert client.pid is None
        assert client.ended
        assert is_quiet(client)


# ── A sick card ─────────────────────────────────────────────────────────────────────────────────


def test_a_card_that_is_lost_when_it_is_asked_about_is_an_event_and_the_others_go_on(
    fake_driver: FakeDriver, listen_to: Listen
) -> None:
    lost, well = fake_driver.card(0), fake_driver.card(1)
    gpus = find(fake_driver.environ).gpus
    fake_driver.card(0, error_open=LOST)
    with Client(gpus, fake_driver.environ) as client:
        (event,) = heard(client)
        assert (event.gpu, event.code, event.verdict, event.stops) == (lost, None, "lost", True)
        hear(client, lambda: len(client.coverage) == 2)
        fake_driver.event(1, 13)
        assert [event.gpu for event in heard(client)] == [well]


def test_a_card_that_is_lost_while_it_is_listened_to_is_told_once(
    fake_driver: FakeDriver, listen_to: Listen, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(helper_process, "FIRST_PAUSE", 0.01)
    monkeypatch.setattr(helper_process, "MAX_RESTARTS", 3)
    uuid = fake_driver.card(0)
    fake_driver.card(1)
    client = ready(listen_to(), cards=2)
    fake_driver.card(0, error_open=LOST)
    fake_driver.driver(error_wait=LOST)
    (event,) = heard(client)
    assert (event.gpu, event.verdict) == (uuid, "lost")
    assert hear(client, lambda: client.ended) == []


def test_a_card_whose_registration_kills_the_helper_is_left_out_and_the_others_are_heard(
    fake_driver: FakeDriver, listen_to: Listen
) -> None:
    bad, well = fake_driver.card(0, crash="register"), fake_driver.card(1)
    client = listen_to()
    (event,) = heard(client)
    assert (event.gpu, event.verdict, event.stops) == (bad, "note", False)
    hear(client, lambda: well in client.coverage)
    fake_driver.event(1, 31)
    assert [event.gpu for event in heard(client)] == [well]


def test_a_wait_that_outlasts_its_time_is_ended_by_the_kernel_and_begun_again(
    fake_driver: FakeDriver, listen_to: Listen
) -> None:
    """The helper's own limits, made short: nobody outside of it wakes up for them."""
    uuid = fake_driver.card(0)
    code = (
        "import sys, json; sys.path = json.loads(sys.argv[1]); from gpulaunch.gpus import listen; "
        "listen.RECHECK_INTERVAL = 0.2; listen.main()"
    )
    fake_driver.driver(hang="wait")
    arguments = [json.dumps(sys.path), str(os.getpid()), "0.2", json.dumps([[0, uuid]])]
    done = subprocess.run(
        [sys.executable, "-I", "-c", code, *arguments],
        env=fake_driver.environ,
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == -signal.SIGALRM
    assert [json.loads(line)["said"] for line in done.stdout.splitlines()] == ["asking", "hears"]


def test_a_wait_whose_time_is_over_goes_on(fake_driver: FakeDriver, listen_to: Listen) -> None:
    fake_driver.card(0)
    client = ready(listen_to(period=0.05))
    pid = client.pid
    assert is_quiet(client)
    fake_driver.event(0, 31)
    assert [event.code for event in heard(client)] == [31]
    assert client.pid == pid


# ── The helper process ──────────────────────────────────────────────────────────────────────────


def test_a_helper_that_is_killed_is_replaced(fake_driver: FakeDriver, listen_to: Listen) -> None:
    fake_driver.card(0)
    client = ready(listen_to())
    pid = client.pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    client.coverage.clear()
    hear(client, lambda: client.coverage)
    assert client.pid not in (None, pid)
    fake_driver.event(0, 31)
    assert [event.code for event in heard(client)] == [31]


def test_a_helper_that_dies_again_and_again_is_given_up(
    fake_driver: FakeDriver, listen_to: Listen, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(helper_process, "FIRST_PAUSE", 0.001)
    monkeypatch.setattr(helper_process, "LONGEST_PAUSE", 0.001)
    monkeypatch.setattr(helper_process, "MAX_RESTARTS", 2)
    uuid = fake_driver.card(0)
    fake_driver.driver(crash="wait")
    client = listen_to()
    hear(client, lambda: client.ended)
    assert "again and again" in client.coverage[uuid]
    assert client.pid is None
    assert is_quiet(client)


def test_the_client_is_silent_while_nothing_happens(
    fake_driver: FakeDriver, listen_to: Listen
) -> None:
    fake_driver.card(0)
    client = ready(listen_to(period=0.05))
    assert is_quiet(client, 0.5)


def test_closing_leaves_no_process_and_no_descriptor(fake_driver: FakeDriver) -> None:
    for n in range(8):
        fake_driver.card(n)
    gpus = find(fake_driver.environ).gpus
    before = sorted(os.listdir("/proc/self/fd"))
    client = ready(Client(gpus, fake_driver.environ), cards=8)
    pid = client.pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    hear(client, lambda: client.pid not in (pid, None))
    later = client.pid
    client.close()
    client.close()
    assert sorted(os.listdir("/proc/self/fd")) == before
    assert not any(os.path.exists(f"/proc/{each}") for each in (pid, later))


def test_a_helper_that_hangs_in_the_driver_is_ended_by_closing(fake_driver: FakeDriver) -> None:
    fake_driver.card(0)
    gpus = find(fake_driver.environ).gpus
    fake_driver.card(0, hang="register")
    with Client(gpus, fake_driver.environ) as client:
        pid = client.pid
    assert not os.path.exists(f"/proc/{pid}")


def test_without_descriptors_the_helper_is_put_off_and_comes_later(
    fake_driver: FakeDriver, listen_to: Listen
) -> None:
    fake_driver.card(0)
    gpus = find(fake_driver.environ).gpus
    with descriptors_left(2):
        client = Client(gpus, fake_driver.environ)
    with client:
        assert client.pid is None
        ready(client)


OWNER = """
import os
from gpulaunch.gpus.discover import find
from gpulaunch.gpus.xid import EventsClient
from gpulaunch.base.loop import Loop
loop = Loop()
client = EventsClient(find(os.environ).gpus, loop, print, period=PERIOD)
while len(client.coverage) < CARDS:
    loop.turn()
print(client.pid, flush=True)
input()
"""


@pytest.mark.parametrize("hang", [None, "wait"])
def test_a_helper_does_not_outlive_a_killed_launcher(
    fake_driver: FakeDriver, hang: str | None
) -> None:
    fake_driver.card(0)
    with subprocess.Popen(
        [sys.executable, "-c", OWNER.replace("PERIOD", "60").replace("CARDS", "1")],
        cwd=Path(__file__).parents[2],
        env=fake_driver.environ,
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as owner:
        assert owner.stdout is not None
        helper = int(owner.stdout.readline())
        fake_driver.driver(hang=hang)
        assert state_of(helper) not in ("", "Z")
        owner.kill()
    wait_until(lambda: state_of(helper) in ("", "Z"))


@pytest.mark.parametrize("module", ["probe", "listen"])
def test_a_helper_whose_launcher_died_before_it_came_up_does_nothing(
    fake_driver: FakeDriver, module: str
) -> None:
    """Its parent is another process than the one that it was started for."""
    line = command(f"gpulaunch.gpus.{module}", "60", "[]")
    line[line.index(str(os.getpid()))] = "1"  # a PID that is not our own
    done = subprocess.run(
        line, env=fake_driver.environ, input=b"", capture_output=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout) == (1, b"")


# ── Asked once ──────────────────────────────────────────────────────────────────────────────────


def test_hearing_says_for_each_card_what_is_heard(fake_driver: FakeDriver) -> None:
    uuid, deaf = fake_driver.card(0), fake_driver.card(1, events=0)
    told = hearing(find(fake_driver.environ).gpus, fake_driver.environ)
    assert told[uuid] == ("double_bit_ecc", "xid", "unavailable", "recovery")
    assert isinstance(told[deaf], str)


def test_hearing_does_not_wait_for_a_card_that_hangs(fake_driver: FakeDriver) -> None:
    well = fake_driver.card(0)
    bad = fake_driver.card(1)
    gpus = find(fake_driver.environ).gpus
    fake_driver.card(1, hang="register")
    told = hearing(gpus, fake_driver.environ, timeout=1.0)
    assert well in told
    assert bad not in told


def test_cards_whose_numbers_changed_meanwhile_are_found_by_uuid(fake_driver: FakeDriver) -> None:
    uuids = [fake_driver.card(n) for n in range(2)]
    gpus = find(fake_driver.environ).gpus
    fake_driver.swap(0, 1)
    with Client(gpus, fake_driver.environ) as client:
        ready(client, cards=2)
        fake_driver.event(0, 31)
        assert [event.gpu for event in heard(client)] == [uuids[1]]


def test_a_card_beyond_the_last_one_is_found_by_uuid(fake_driver: FakeDriver) -> None:
    uuid = fake_driver.card(0)
    moved = Gpu(uuid, 3, "0000:04:00.0", "A", 1)
    assert isinstance(hearing([moved], fake_driver.environ)[uuid], tuple)


def test_a_card_that_is_gone_is_not_taken_for_the_one_in_its_place(
    fake_driver: FakeDriver,
) -> None:
    fake_driver.card(0)
    stale = Gpu("GPU-gone", 0, "0000:01:00.0", "A", 1)
    told = hearing([stale], fake_driver.environ)
    assert "not there any more" in told["GPU-gone"]
