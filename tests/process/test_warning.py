"""A job's warning before it is ended: who gets it, when, and what an end after it counts as."""

from __future__ import annotations

import signal
import sys

import pytest

from gpulaunch.core.causes import Quoted
from gpulaunch.core.model import (
    Cancelled,
    Exited,
    Interrupted,
    MissingOutput,
    SentWarning,
    Signaled,
    TimedOut,
    WarnPolicy,
)
from gpulaunch.engines.client import AttemptOver, ProgramWarned
from tests.helpers import wait_until
from tests.process.support import Slot, until

USR2 = int(signal.SIGUSR2)
LATER = WarnPolicy(USR2, 600.0)
SOON = WarnPolicy(USR2, 57.0)
"""Sent three seconds after the start, with a timeout of a minute."""

TRAINER = """
import os, signal, sys, time
def save(number, frame):
    os.write(1, b"saved\\n")  # whole, also where others write
    {then}
signal.signal(signal.SIGUSR2, save)
{more}
open(sys.argv[1], "w").close()
while True:
    time.sleep(0.05)  # a signal that comes right before a sleep is handled after it
"""


def trainer(slot: Slot, then: str = "sys.exit(3)", more: str = "", ready: str = "ready") -> str:
    """A program, in a shell's words, that says `saved` when it is warned, and then does that."""
    path = slot.folder / "train.py"
    path.write_text(TRAINER.format(then=then, more=more))
    return f"{sys.executable} {path} {slot.folder / ready}"


def bash(slot: Slot, script: str, **limits: object) -> None:
    slot.launch("bash", "-eo", "pipefail", "-c", script, **limits)


def begun(slot: Slot, *names: str) -> None:
    for name in names or ("ready",):
        wait_until((slot.folder / name).exists, 60, "the program's handler")


def stop_gently(slot: Slot) -> None:
    slot.pair.stop("interrupted", by="someone", gently=True)


def warning(slot: Slot) -> SentWarning:
    return slot.expect(ProgramWarned).warning


def said(slot: Slot) -> list[str]:
    return slot.log.read_text().split()


# ── Who gets it ─────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "around",
    [
        pytest.param("{}", id="one command, which the shell becomes"),
        pytest.param("{}; echo after", id="a shell that waits for it"),
        pytest.param("trap 'echo ends' EXIT; {}; true", id="a shell that handles all signals"),
        pytest.param("env sh -ec '{}; true'", id="a shell below a shell"),
        pytest.param("{} | cat", id="a pipeline"),
    ],
)
def test_the_warning_reaches_the_program_whatever_shell_is_around_it(
    slot: Slot, around: str
) -> None:
    bash(slot, around.format(trainer(slot)), warn=LATER)
    begun(slot)
    stop_gently(slot)
    found = warning(slot)
    assert (found.signal, found.processes, found.why) == (USR2, 1, "stop")
    end = slot.expect(AttemptOver).end
    assert isinstance(end.outcome, Interrupted)
    assert "saved" in said(slot)


def test_a_shells_own_trap_gets_it_and_nobody_below(slot: Slot) -> None:
    script = f"trap 'echo trapped; exit 4' USR2; {trainer(slot)} & wait"
    bash(slot, script, warn=LATER)
    begun(slot)
    stop_gently(slot)
    assert warning(slot).processes == 1
    end = slot.expect(AttemptOver).end
    assert end.outcome == Interrupted(Quoted("someone"), Exited(4))
    assert said(slot) == ["trapped"]


def test_each_rank_gets_it_and_no_helper_that_inherited_its_handler(slot: Slot) -> None:
    forks = "import os\nif os.fork() == 0: time.sleep(600)"
    one, two = (trainer(slot, more=forks, ready=name) for name in ("one", "two"))
    bash(slot, f"{one} & {two} & wait; wait", warn=LATER)
    begun(slot, "one", "two")
    stop_gently(slot)
    assert warning(slot).processes == 2
    wait_until(lambda: len(said(slot)) >= 2, 60, "both ranks' handlers")
    slot.pair.stop("cancelled")
    slot.expect(AttemptOver)
    assert said(slot) == ["saved", "saved"]


def test_a_program_that_waits_for_the_signal_gets_it(slot: Slot) -> None:
    program = slot.folder / "waits.py"
    program.write_text(
        "import signal, sys, threading\n"
        "signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR2})\n"
        "open(sys.argv[1], 'w').close()\n"
        "one = threading.Thread(target=lambda: signal.sigwait({signal.SIGUSR2}))\n"
        "one.start()\none.join()\nprint('saved')\n"
    )
    bash(slot, f"{sys.executable} {program} {slot.folder / 'ready'}; true", warn=LATER)
    begun(slot)
    stop_gently(slot)
    assert slot.expect(AttemptOver).end.outcome == Exited(0)
    assert said(slot) == ["saved"]


# ── Before a timeout ────────────────────────────────────────────────────────────────────────────


def test_what_takes_no_such_signal_is_left_alone_and_that_is_told(slot: Slot) -> None:
    go = slot.folder / "go"
    bash(slot, f"{until(go)}; exit 7", timeout=60.0, warn=WarnPolicy(USR2, 59.9))
    found = warning(slot)
    assert (found.processes, found.why) == (0, "timeout")
    go.touch()
    assert slot.expect(AttemptOver).end.outcome == Exited(7), "a failure of its own"


@pytest.mark.parametrize(
    ("then", "outputs", "outcome"),
    [
        ("exit 3", (), TimedOut("timeout", 60.0, Exited(3))),
        ("exit 0", (), Exited(0)),
        ("exit 0", ("/no/such/file",), TimedOut("timeout", 60.0, Exited(0))),
    ],
)
def test_an_end_after_the_warning_that_is_no_success_is_the_timeouts(
    slot: Slot, then: str, outputs: tuple[str, ...], outcome: object
) -> None:
    script = f"trap 'echo saved; {then}' USR2; sleep 600 & wait"
    bash(slot, script, timeout=60.0, warn=SOON, outputs=outputs)
    end = slot.expect(AttemptOver).end
    assert end.outcome == outcome
    assert said(slot) == ["saved"]
    assert end.warned is not None
    assert (end.warned.processes, end.warned.why) == (1, "timeout")


def test_a_missing_output_without_a_warning_stays_one(slot: Slot) -> None:
    bash(slot, "true", timeout=60.0, warn=WarnPolicy(USR2, 1.0), outputs=("/no/such/file",))
    assert isinstance(slot.expect(AttemptOver).end.outcome, MissingOutput)


def test_who_goes_on_after_the_warning_meets_the_timeout(slot: Slot) -> None:
    script = "trap 'echo saved' USR2; while true; do sleep 600 & wait || true; done"
    bash(slot, script, timeout=3.5, warn=WarnPolicy(USR2, 0.5))
    end = slot.expect(AttemptOver).end
    assert end.outcome == TimedOut("timeout", 3.5, Signaled(15))
    assert said(slot) == ["saved"]


# ── Stops that are announced ────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("then", "before", "outcome"),
    [
        ("sys.exit(3)", 600.0, Interrupted(Quoted("someone"), Exited(3))),
        ("sys.exit(0)", 600.0, Exited(0)),
        ("pass", 0.3, Interrupted(Quoted("someone"), Signaled(15))),
    ],
)
def test_an_announced_stop_lets_the_program_end_by_itself(
    slot: Slot, then: str, before: float, outcome: object
) -> None:
    bash(slot, trainer(slot, then), warn=WarnPolicy(USR2, before))
    begun(slot)
    stop_gently(slot)
    assert slot.expect(AttemptOver).end.outcome == outcome


def test_it_is_warned_once_however_often_it_is_asked(slot: Slot) -> None:
    bash(slot, trainer(slot, "pass"), warn=WarnPolicy(USR2, 0.3))
    begun(slot)
    stop_gently(slot)
    stop_gently(slot)
    assert slot.expect(AttemptOver).end.outcome == Interrupted(Quoted("someone"), Signaled(15))
    assert said(slot) == ["saved"]


def test_a_cancel_does_not_wait_for_what_was_announced(slot: Slot) -> None:
    bash(slot, trainer(slot, "pass"), warn=LATER)
    begun(slot)
    stop_gently(slot)
    warning(slot)
    slot.pair.stop("cancelled")
    assert slot.expect(AttemptOver).end.outcome == Cancelled(Signaled(15))


@pytest.mark.parametrize(
    "warn", [None, WarnPolicy(int(signal.SIGUSR1), 600.0)], ids=["none", "other"]
)
def test_a_program_that_takes_no_warning_is_stopped_at_once(
    slot: Slot, warn: WarnPolicy | None
) -> None:
    bash(slot, trainer(slot), warn=warn)
    begun(slot)
    stop_gently(slot)
    assert slot.expect(AttemptOver).end.outcome == Interrupted(Quoted("someone"), Signaled(15))
    assert said(slot) == []


def test_the_end_on_file_tells_of_the_warning(slot: Slot) -> None:
    bash(slot, trainer(slot), warn=LATER)
    begun(slot)
    stop_gently(slot)
    over, record = slot.expect(AttemptOver), slot.end()
    assert record is not None
    assert record.end.warned is not None
    assert record.end.warned == over.end.warned
