"""The engine of one machine: its cards, and what its attempts do with them."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpulaunch.agent.proc import stat_fields, state_of
from gpulaunch.agent.wire import END_SIZE
from gpulaunch.core.causes import Because
from gpulaunch.core.events import (
    Acquire,
    Drain,
    Drained,
    Elsewhere,
    Ended,
    Freed,
    Granted,
    Refused,
    Release,
    Sick,
    StopAttempt,
    Unending,
    WantCards,
    Wanted,
)
from gpulaunch.core.facts import AttemptStarted
from gpulaunch.core.model import AttemptId, Exited, Interrupted, Lost, NotStarted
from gpulaunch.engines import client, programs
from gpulaunch.engines.local import attempts
from gpulaunch.gpus import lease, socket_locks
from gpulaunch.gpus.machine import CardReading
from gpulaunch.journal.ends import EndRecord, Ends, end_from
from tests.engines.bench import Bench, Make, fresh_pool, run_directory, sh
from tests.helpers import wait_until


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    """Benches in one run directory's parent, which share their cards."""
    made: list[Bench] = []
    shared = fresh_pool()

    def build(name: str = "run") -> Bench:
        made.append(Bench(run_directory(tmp_path / name), shared))
        return made[-1]

    yield build
    for bench in made:
        bench.close()


@pytest.fixture
def bench(make: Make) -> Bench:
    return make()


def test_an_attempt_that_found_the_disk_full_goes_again_whatever_the_words(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends = iter(("no_space", None))

    def end_of_a_full_disk(record: dict[str, Any]) -> EndRecord:
        kind = next(ends)
        error = "Kein Platz mehr" if kind else "cannot lay out a.1: No space left on device"
        return end_from(record | {"status": None, "error": error, "kind": kind})

    monkeypatch.setattr(client, "end_from", end_of_a_full_disk)
    attempt = bench.launch(sh("true"))
    ended = bench.expect(Ended)
    assert ended.end.outcome == NotStarted("cannot lay out a.1: No space left on device")
    assert ended.attempt == attempt
    assert bench.warned == [f"is tried again until it can start: {os.strerror(errno.ENOSPC)}"]


def test_a_slot_is_used_again_once_its_end_is_on_disk(bench: Bench) -> None:
    def size() -> int:
        (slots,) = bench.run.ends.iterdir()
        return slots.stat().st_size // END_SIZE

    def end(name: str) -> AttemptId:
        bench.launch(sh("true", name=name))
        return bench.expect(Ended).attempt

    first, second = end("a"), end("b")
    assert size() == 2
    bench.engine.recorded([first])
    end("c")
    assert (size(), Ends(bench.run.ends).of(str(second)) is not None) == (2, True)
    assert Ends(bench.run.ends).of(str(first)) is None
    end("d")
    assert size() == 3


# ── Cards ───────────────────────────────────────────────────────────────────────────────────────


def test_a_free_card_is_granted_with_its_memory(bench: Bench) -> None:
    bench.engine.carry_out(Acquire(bench.gpus[0].uuid))
    granted = bench.expect(Granted)
    assert granted.gpu == bench.gpus[0].uuid
    assert granted.memory_free == bench.gpus[0].memory


def test_a_card_that_another_holds_is_refused_and_its_return_announced(make: Make) -> None:
    one, other = make("one"), make("other")
    gpu = one.gpus[0]
    one.hold(gpu)
    other.engine.carry_out(Acquire(gpu.uuid))
    refused = other.expect(Refused)
    assert isinstance(refused.why, Elsewhere)
    assert str(os.getpid()) in refused.why.holder
    assert one.expect(Wanted) == Wanted(gpu.uuid, True)
    one.engine.carry_out(Release(gpu.uuid))
    assert other.expect(Freed) == Freed(gpu.uuid)
    other.engine.carry_out(Acquire(gpu.uuid))
    assert other.expect(Granted).gpu == gpu.uuid


def test_a_launcher_asks_a_holder_for_its_card_only_while_it_wants_cards(make: Make) -> None:
    one, other = make("one"), make("other")
    gpu = one.gpus[0]
    one.hold(gpu)
    other.engine.carry_out(Acquire(gpu.uuid))
    assert one.expect(Wanted) == Wanted(gpu.uuid, True)
    other.engine.carry_out(WantCards(False))
    assert one.expect(Wanted, 10) == Wanted(gpu.uuid, False)
    other.engine.carry_out(WantCards(True))
    assert one.expect(Wanted, 10) == Wanted(gpu.uuid, True)


def test_a_card_is_handed_to_a_launcher_that_wants_cards_though_another_waited_first(
    make: Make,
) -> None:
    one, idle, wants = make("one"), make("idle"), make("wants")
    gpu = one.gpus[0]
    one.hold(gpu)
    idle.engine.carry_out(WantCards(False))
    idle.engine.carry_out(Acquire(gpu.uuid))
    idle.expect(Refused)
    wants.engine.carry_out(Acquire(gpu.uuid))
    wants.expect(Refused)
    assert one.expect(Wanted) == Wanted(gpu.uuid, True)
    one.engine.carry_out(Release(gpu.uuid))
    wants.expect(Freed)
    wants.engine.carry_out(Acquire(gpu.uuid))
    assert isinstance(wants.expect((Granted, Refused)), Granted)


def test_a_card_held_in_another_container_is_no_news_until_it_is_free(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPULAUNCH_LEASE_DIR", str(tmp_path))
    monkeypatch.setattr(lease, "POLL", 0.01)
    tries: list[str] = []

    def counted(key: str, scope: str) -> lease.Lease:
        tries.append(key)
        return take(key, scope)

    take = lease.take
    monkeypatch.setattr(lease, "take", counted)
    bench = make()
    gpu = bench.gpus[0]
    # As from there: the file is locked, and the name is free.
    held = socket_locks.lock(str(tmp_path), gpu.key)
    assert held is not None
    bench.engine.carry_out(Acquire(gpu.uuid))
    assert isinstance(bench.expect(Refused).why, Elsewhere)
    while len(tries) < 10:
        bench.loop.turn()
        assert bench.events == []
    os.close(held)
    assert bench.expect(Freed) == Freed(gpu.uuid)
    bench.engine.carry_out(Acquire(gpu.uuid))
    assert bench.expect(Granted).gpu == gpu.uuid


def test_a_card_handed_over_and_not_wanted_any_more_goes_on(make: Make) -> None:
    one, other, third = make("one"), make("other"), make("third")
    gpu = one.gpus[0]
    one.hold(gpu)
    other.engine.carry_out(Acquire(gpu.uuid))
    other.expect(Refused)
    one.expect(Wanted)
    one.engine.carry_out(Release(gpu.uuid))
    other.expect(Freed)
    other.loop.turn()
    third.engine.carry_out(Acquire(gpu.uuid))
    while isinstance(third.expect((Granted, Refused)), Refused):  # some copy of it is on its way
        third.expect(Freed)
        third.engine.carry_out(Acquire(gpu.uuid))


def test_a_drained_card_says_its_memory(bench: Bench) -> None:
    gpu = bench.gpus[0]
    bench.hold(gpu)
    bench.engine.carry_out(Drain(gpu.uuid))
    assert bench.expect(Drained) == Drained(gpu.uuid, gpu.memory)


# ── Attempts on cards ───────────────────────────────────────────────────────────────────────────


def test_attempts_on_the_same_card_follow_each_other(bench: Bench) -> None:
    bench.hold(bench.gpus[0])
    for number in range(1, 6):
        bench.launch(sh(f"exit {number}"), bench.gpus[0], number=number)
        assert bench.expect(Ended).end.outcome == Exited(number)


def test_two_attempts_may_share_a_card(bench: Bench) -> None:
    bench.hold(bench.gpus[0])
    for name in ("a", "b"):
        bench.launch(sh("exec sleep 0.3", name), bench.gpus[0])
    assert {bench.expect(Ended).attempt.job for _ in range(2)} == {"a", "b"}


def test_the_lease_outlives_the_engine_as_long_as_the_job_lives(make: Make) -> None:
    one, other = make("one"), make("other")
    gpu = one.gpus[0]
    one.hold(gpu)
    attempt = one.launch(sh("trap '' TERM; echo deaf; sleep 100", grace=2.0), gpu)
    one.expect(AttemptStarted)
    wait_until(Path(one.run.log_file(attempt)).read_text)
    other.engine.carry_out(Acquire(gpu.uuid))
    other.expect(Refused)
    one.engine.close()
    other.engine.carry_out(Acquire(gpu.uuid))
    other.expect(Refused)
    other.expect(Freed)
    other.hold(gpu)


# ── Attempts of an earlier supervisor ───────────────────────────────────────────────────────────


def test_an_attempt_that_ended_unseen_is_adopted_with_its_end(make: Make) -> None:
    first = make("run")
    attempt = first.launch(sh("exec sleep 100", grace=0.2))
    first.expect(AttemptStarted)
    first.engine.close()
    second = make("run")
    second.engine.adopt([attempt])
    ended = second.expect(Ended)
    assert ended.attempt == attempt
    assert isinstance(ended.end.outcome, Interrupted)


def test_what_outlived_its_keepers_is_killed_before_the_attempt_is_called_lost(
    bench: Bench,
) -> None:
    environ = {**os.environ, "GPULAUNCH_RUN_ID": bench.run_id, "GPULAUNCH_ATTEMPT": "1"}
    sleep = ["sleep", "1000"]
    with (
        subprocess.Popen(sleep, env={**environ, "GPULAUNCH_JOB": "orphaned"}) as straggler,
        subprocess.Popen(sleep, env={**environ, "GPULAUNCH_JOB": "other"}) as bystander,
    ):
        bench.engine.adopt([AttemptId("orphaned", 1)])
        assert isinstance(bench.expect(Ended).end.outcome, Lost)
        assert straggler.wait(60) == -9
        assert bystander.poll() is None, "another attempt of the run is alive and well"
        bystander.kill()


def test_what_is_lost_is_said_while_new_attempts_run_and_rest(bench: Bench) -> None:
    bench.launch(sh("true", "new"))
    bench.expect(Ended)
    bench.engine.adopt([AttemptId("old", 1)])
    assert bench.expect(Ended).attempt == AttemptId("old", 1)


def test_a_card_that_falls_ill_after_a_job_is_given_back_whole(make: Make) -> None:
    one, other = make("one"), make("other")
    gpu = one.gpus[0]
    one.hold(gpu)
    one.launch(sh("true"), gpu)
    one.expect(Ended)
    cards = one.engine._cards  # type: ignore[attr-defined]
    cards._probe.look = lambda gpu, then: then(CardReading(gpu.uuid, sick="lost"))
    one.engine.carry_out(Drain(gpu.uuid))
    assert one.expect(Refused).why == Sick("lost")
    other.engine.carry_out(Acquire(gpu.uuid))
    if not isinstance(other.expect((Granted, Refused)), Granted):
        other.expect(Freed)
        other.hold(gpu)


def test_a_release_that_crosses_the_cards_refusal_is_no_trouble(bench: Bench) -> None:
    gpu = bench.gpus[0]
    bench.hold(gpu)
    cards = bench.engine._cards  # type: ignore[attr-defined]
    look = cards._probe.look
    cards._probe.look = lambda gpu, then: then(CardReading(gpu.uuid, sick="lost"))
    bench.engine.carry_out(Drain(gpu.uuid))
    bench.engine.carry_out(Release(gpu.uuid))
    cards._probe.look = look
    bench.hold(gpu)


def test_an_attempt_that_keepers_never_read_starts_on_others(bench: Bench) -> None:
    """What kills all keepers at once costs a job one attempt, and not two."""
    monitor = idle_monitor(bench, "first")
    kill(monitor)
    attempt = bench.launch(sh("true", "second"))
    assert bench.expect(AttemptStarted).attempt == attempt
    assert bench.expect(Ended).end.outcome == Exited(0)


def test_a_stop_that_frozen_keepers_do_not_hear_is_told(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attempts, "ANSWER_TIMEOUT", 0.0)
    attempt = bench.launch(sh("echo $PPID; exec sleep 1000"))
    bench.expect(AttemptStarted)
    log = Path(bench.run.log(attempt))
    wait_until(lambda: log.read_text().endswith("\n"))
    monitor = int(log.read_text())
    guardian = int(stat_fields(monitor)[1])
    keepers = [int(stat_fields(guardian)[1]), guardian, monitor]  # nobody is left to wake others
    for pid in keepers:
        os.kill(pid, signal.SIGSTOP)
        wait_until(lambda pid=pid: state_of(pid) == "T")
    try:
        bench.engine.carry_out(StopAttempt(attempt, "cancelled", now=True, by=Because("cancelled")))
        assert bench.expect(Unending) == Unending(attempt)
    finally:
        for pid in keepers:
            os.kill(pid, signal.SIGCONT)
    assert bench.expect(Ended).attempt == attempt


NO_KEEPERS = f"""#!{sys.executable}
import os, socket, sys
if sys.argv[1] == "--self-test":
    sys.exit(0)
with socket.socket(fileno=int(sys.argv[1])) as link:
    while (asked := socket.recv_fds(link, 1 << 16, 253))[0]:
        for fd in asked[1]:
            os.close(fd)
"""


def test_keepers_that_never_read_are_not_started_for_ever(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "keeper"
    program.write_text(NO_KEEPERS)
    program.chmod(0o755)
    monkeypatch.setattr(programs, "PROGRAM", program)
    attempt = bench.launch(sh("true"))
    ended = bench.expect(Ended)
    assert ended.attempt == attempt
    assert isinstance(ended.end.outcome, Lost)


def idle_monitor(bench: Bench, job: str) -> int:
    """Run a job, and return the monitor of the pair that is idle then."""
    attempt = bench.launch(sh("echo $PPID", job))
    bench.expect(Ended)
    return int(Path(bench.run.log(attempt)).read_text())


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: state_of(pid) in ("", "Z"))


def test_an_attempt_of_which_nothing_is_left_is_lost(bench: Bench) -> None:
    attempt = AttemptId("never", 1)
    bench.engine.adopt([attempt])
    ended = bench.expect(Ended)
    assert ended.attempt == attempt
    assert isinstance(ended.end.outcome, Lost)
