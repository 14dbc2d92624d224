"""The notifier on a real loop: nothing blocks, bursts fold, the end waits so long and no longer."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpulaunch.base.loop import Loop
from gpulaunch.core import facts as f
from gpulaunch.core.causes import Quoted
from gpulaunch.jobfile.notify_spec import OCCASIONS, Target
from gpulaunch.journal.codec import now
from gpulaunch.observe.notify import notifier as notifiers
from gpulaunch.observe.notify.notifier import Notifier, arguments
from tests.helpers import wait_until
from tests.notify import sinks
from tests.process.support import children_of
from tests.views.history import History

CLOSED = f.RunClosed("failed", Quoted("a did not succeed"), 1)
TELL = 'cat >> told; echo >> told; echo "$1" >> titles'


class World:
    """A run's facts, shown to a notifier."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.loop = Loop()
        self.notes: list[str] = []
        self.made: list[Notifier] = []

    @property
    def trouble(self) -> list[str]:
        """What was said of targets; on a slow machine it is also said that the end waits."""
        return [note for note in self.notes if not note.startswith("the run's end waits")]

    def tells(
        self, *targets: Target, patience: float = 15.0, environ: dict[str, str] | None = None
    ) -> tuple[Notifier, History]:
        run = History()
        notifier = Notifier(
            targets,
            run.ledger,
            self.loop,
            directory=Path("/data/run"),
            base=self.path,
            environ=environ or {},
            note=self.notes.append,
            clock=now,
            patience=patience,
        )
        self.made.append(notifier)
        run.view = notifier  # type: ignore[assignment]
        return notifier, run

    def until(self, condition: Callable[[], object]) -> None:
        self.loop.call_after("test", 30.0, lambda: pytest.fail("not within 30 s"))
        while not condition():
            self.loop.call_after("look", 0.02, lambda: None)  # files wake no loop
            self.loop.turn()
        self.loop.forget("test")

    def titles(self) -> list[str]:
        path = self.path / "titles"
        return path.read_text().splitlines() if path.exists() else []

    def close(self) -> None:
        for notifier in self.made:
            notifier.close()
        self.loop.close()


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    made.close()


def command(run: str = TELL, every: int | None = None, number: int = 0) -> Target:
    return Target(("notify", number), None, run, frozenset(OCCASIONS), every)


def address(to: str, number: int = 0) -> Target:
    return Target(("notify", number), to)


def test_a_failure_is_told_while_the_run_goes_on(world: World) -> None:
    _, run = world.tells(command())
    run.open().jobs("a", "b").start("a", 0)
    before = children_of(os.getpid())
    run.fail("a")
    assert children_of(os.getpid()) == before, "not even a process is started between two facts"
    world.until(world.titles)
    assert world.titles() == ["nanobodies: a failed: exited with an error"]
    assert world.trouble == []


def test_a_burst_is_one_message_more_with_the_newest_counts(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpulaunch.observe.notify.message.GAP", 3.0)
    names = [f"j{i}" for i in range(20)]
    _, run = world.tells(command(every=1))
    run.open().jobs(*names)
    for name in names:
        run.start(name, 0).fail(name)
        world.loop.turn(block=False)
    world.until(lambda: len(world.titles()) == 2)
    assert world.titles()[1] == "nanobodies: 20 jobs failed so far, 0 of 20 succeeded"


def test_the_end_is_told_after_what_is_under_way(world: World) -> None:
    slow = 'echo "$GPULAUNCH_EVENT" >> begun; [ "$GPULAUNCH_EVENT" = finish ] || sleep 1; ' + TELL
    notifier, run = world.tells(command(slow))
    run.open().jobs("a").start("a", 0).fail("a")
    world.until((world.path / "begun").exists)
    notifier.farewell(CLOSED, world.loop.turn)
    assert [title.split(":")[0] for title in world.titles()] == ["nanobodies", "nanobodies failed"]
    told = [json.loads(line) for line in (world.path / "told").read_text().split("\n") if line]
    assert [one["event"] for one in told] == ["first_failure", "finish"]
    assert told[1]["run"]["exit_status"] == 1


def test_the_same_end_is_told_once(world: World) -> None:
    notifier, run = world.tells(command())
    run.open().jobs("a").start("a", 0).succeed("a")
    for _ in range(2):
        notifier.farewell(f.RunClosed("succeeded"), world.loop.turn)
    assert world.titles() == ["nanobodies succeeded: 1 succeeded"]


def test_the_end_waits_for_a_silent_server_so_long_and_says_so(world: World) -> None:
    with sinks.web() as sink:
        sink.answers.clear()
        target = address(f"http://{sink.address}/s3cret")
        notifier, run = world.tells(target, patience=2.0)
        run.open().jobs("a").start("a", 0).succeed("a")
        began = time.monotonic()
        notifier.farewell(f.RunClosed("succeeded"), world.loop.turn)
        assert time.monotonic() - began > 1.5
    name = "notify[0] (http://127.0.0.1/…)"
    assert world.notes == [
        f"the run's end waits until {name} is told, 2 s at most; Ctrl-C: not at all",
        f"{name} was not told: no answer within 2 s",
    ]


def test_giving_up_ends_the_waiting_at_once(world: World) -> None:
    notifier, run = world.tells(command("sleep 1000"))
    run.open().jobs("a").start("a", 0).succeed("a")
    world.loop.call_after("ctrl-c", 0.3, lambda: notifier.give_up("Ctrl-C came first"))
    notifier.farewell(f.RunClosed("succeeded"), world.loop.turn)
    assert world.trouble == ["notify[0] (sleep) was not told: Ctrl-C came first"]


def test_a_target_that_fails_is_said_once_and_tried_again(world: World) -> None:
    notifier, run = world.tells(command("echo x >> tried; exit 7"))
    run.open().jobs("a").start("a", 0).fail("a")
    world.until(lambda: world.trouble)
    notifier.farewell(CLOSED, world.loop.turn)
    assert (world.path / "tried").read_text() == "x\nx\n"
    assert world.trouble == ["notify[0] (echo) was not told: the command exited with status 7"]


def test_an_address_of_the_environment_is_read_there(world: World) -> None:
    with sinks.web() as sink:
        environ = {"HOOK": f"http://{sink.address}/s3cret"}
        notifier, run = world.tells(address("env:HOOK"), address("env:NONE", 1), environ=environ)
        run.open().jobs("a").start("a", 0).succeed("a")
        notifier.farewell(f.RunClosed("succeeded"), world.loop.turn)
    assert [body["event"] for body in sink.bodies] == ["finish"]
    assert world.trouble == [
        "notify[1] (env:NONE) was not told: NONE is not set in this environment, or empty"
    ]


def test_processes_that_cannot_be_started_are_a_line(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.executable", "/nonexistent/python")
    notifier, run = world.tells(command())
    run.open().jobs("a").start("a", 0).succeed("a")
    notifier.farewell(f.RunClosed("succeeded"), world.loop.turn)
    assert world.trouble == [
        "notify[0] (cat) was not told: no process can be started: No such file or directory"
    ]


def test_a_mistake_of_ours_in_a_message_ends_no_run(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notifiers, "compose", lambda *_: 1 / 0)
    notifier, run = world.tells(command())
    run.open().jobs("a").start("a", 0).succeed("a")
    notifier.farewell(f.RunClosed("succeeded"), world.loop.turn)
    assert "please report it" in world.trouble[0]


def test_closing_ends_what_is_under_way(world: World) -> None:
    notifier, run = world.tells(command("echo $$ > pid; sleep 1000"))
    run.open().jobs("a").start("a", 0).fail("a")
    pid = world.path / "pid"
    world.until(lambda: pid.exists() and pid.read_text())
    notifier.close()
    left = Path("/proc", pid.read_text().strip())
    wait_until(lambda: not left.exists())


def test_a_string_is_bashs_and_a_list_is_executed() -> None:
    assert arguments("x", "t") == ["bash", "-eo", "pipefail", "-c", "x", "gpulaunch", "t"]
    assert arguments(("a", "b c"), "t") == ["a", "b c", "t"]
