"""A user's queue: begun once, filled from anywhere, gone on with after a stop, a crash, a boot."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpulaunch.run.settings import ended_at_logout
from gpulaunch.run.user_queue import unit_text
from tests.cli.launcher import UNTIL_GO, Launcher
from tests.cli.test_completion import found
from tests.helpers import wait_until


class Queue(Launcher):
    """A launcher whose user has a state directory of its own."""

    def __init__(self, path: Path) -> None:
        homes = {"XDG_STATE_HOME": str(path / "state"), "XDG_CONFIG_HOME": str(path / "config")}
        super().__init__(path, homes)

    @property
    def run(self) -> Path:
        return self.path / "state" / "gpulaunch" / "queue"

    @property
    def pid(self) -> int:
        return int(self.events("run_opened")[-1]["pid"])


@pytest.fixture
def queue(tmp_path: Path) -> Iterator[Queue]:
    """A queue on two pretend cards, alive and empty."""
    queue = Queue(tmp_path)
    assert queue("queue", "start", "--simulate", "2", "--detach").status == 0
    yield queue
    queue("queue", "stop")


def started(queue: Queue) -> None:
    assert queue("queue", "start", "--detach").status == 0


def settled(queue: Queue, job: str, state: str = "succeeded") -> None:
    wait_until(lambda: queue.states().get(job) == state, 60, f"{job} {state}")


def test_a_queue_takes_jobs_from_any_directory_and_stays_when_it_is_empty(queue: Queue) -> None:
    elsewhere = Queue(queue.path)
    elsewhere.path = queue.path / "elsewhere"
    elsewhere.path.mkdir()
    result = elsewhere("add", "--wait", "-g", "0", "--", "sh", "-c", "pwd; exit 3")
    assert result.status == 3
    assert "added to your queue" in result.err
    assert queue.log("pwd-1").strip() == str(elsewhere.path)
    assert queue.status()["run"]["state"] == "running"
    assert queue("add", "--wait", "--", "true").status == 0
    assert "1 succeeded, 1 failed" in queue("queue").out
    assert '"state": "running"' in queue("queue", "status", "--json").out


def test_a_live_run_here_is_nearer_than_the_queue(queue: Queue) -> None:
    queue.file("jobs.yaml", f"jobs: [{{name: long, run: '{UNTIL_GO}', gpus: 0}}]")
    with queue.begun("run", "jobs.yaml", "--simulate", "1") as process:
        here = Launcher(queue.path)
        here.wait_for("attempt_started")
        assert queue("add", "-g", "0", "--name", "mine", "--", "true").err == ""
        assert "mine" in here.states()
        queue.file("go", "")
        process.communicate(timeout=60)
    assert "mine" not in queue.states()


def test_the_name_queue_means_what_is_nearest_and_no_run_of_another_directory(
    queue: Queue,
) -> None:
    elsewhere, third = (Launcher(queue.path / name, queue.environ) for name in ("other", "third"))
    third.path.mkdir()
    elsewhere.file("queue.yaml", f"jobs: [{{name: long, run: '{UNTIL_GO}', gpus: 0}}]")

    def meant(launcher: Launcher) -> str:
        return str(json.loads(launcher("status", "-r", "queue", "--json").out)["run"]["dir"])

    def named() -> set[str]:
        return set(third("cancel", "--all").err.strip().partition("with -r): ")[2].split(", "))

    queue("add", "-g", "0", "--name", "added", "--", "true")
    with elsewhere.begun("run", "queue.yaml", "--simulate", "1") as process:
        elsewhere.wait_for("attempt_started")
        assert meant(third) == str(queue.run)
        assert meant(elsewhere) == str(elsewhere.run)
        assert {"queue", str(elsewhere.run)} <= named()
        (third.path / "queue").mkdir()
        assert meant(third) == str(queue.run), "a directory without a run is none"
        third.file("queue.yaml", "jobs: [{name: a, run: 'true', gpus: 0}]")
        assert third("run", "queue.yaml", "--simulate", "1", "--quiet").status == 0
        assert meant(third) == str(third.run)
        assert named() >= {str(queue.run)}, "by what reaches it"
        assert "queue" not in named()
        elsewhere.file("go", "")
        process.communicate(timeout=60)
    settled(queue, "added")
    (third.path / "queue").rmdir()
    shutil.rmtree(third.path / "gpulaunch-runs")
    assert found(third, "logs", "-r", "queue", "") == ["added"]


def test_a_second_queue_is_refused(queue: Queue) -> None:
    result = queue("queue", "start", "--detach")
    assert result.status == 5
    assert "the queue is alive" in result.err


def test_after_a_stop_it_goes_on_with_what_waited_and_not_with_what_failed(queue: Queue) -> None:
    assert queue("add", "--wait", "--name", "bad", "--", "false").status == 1
    queue("add", "--name", "long", "--", "sh", "-c", f"cd {queue.path}; {UNTIL_GO}")
    queue.wait_for("attempt_started", 2)
    queue("add", "--name", "later", "--after", "long", "--", "true")
    assert queue("queue", "stop").status == 0
    assert queue.states() == {"bad": "failed", "long": "waiting", "later": "waiting"}
    queue.file("go", "")
    started(queue)
    settled(queue, "later")
    assert len(queue.jobs()["bad"]["attempts"]) == 1
    assert queue("retry", "-r", str(queue.run), "bad").status == 0
    wait_until(lambda: len(queue.jobs()["bad"]["attempts"]) == 2, 60)


def test_after_a_kill_nothing_is_lost_and_nothing_runs_twice(queue: Queue) -> None:
    for number in range(5):
        queue("add", "-g", "0", "--name", f"quick-{number}", "--", "true")
    for number in range(5):
        settled(queue, f"quick-{number}")
    queue("add", "--name", "long", "--", "sh", "-c", f"cd {queue.path}; {UNTIL_GO}")
    queue.wait_for("attempt_started", 6)
    os.kill(queue.pid, signal.SIGKILL)
    wait_until(lambda: queue.status()["run"]["state"] == "interrupted", 60)
    result = queue("add", "--", "true")
    assert result.status == 2
    assert "nor is your queue, which gpulaunch queue start --detach begins" in result.err
    queue.file("go", "")
    started(queue)
    settled(queue, "long")
    attempts = {name: len(job["attempts"]) for name, job in queue.jobs().items()}
    assert attempts == {**{f"quick-{number}": 1 for number in range(5)}, "long": 2}


def test_finish_ends_a_queue_and_the_next_start_opens_it_again(queue: Queue) -> None:
    assert queue("finish", "-r", str(queue.run)).status == 0
    assert queue("wait", str(queue.run)).status == 0
    started(queue)
    assert queue("add", "--wait", "--", "true").status == 0


def test_numbers_go_on_after_a_stop(queue: Queue) -> None:
    assert queue("add", "--", "true").out == "true-1\n"
    queue("queue", "stop")
    started(queue)
    assert queue("add", "--", "true").out == "true-2\n"


def test_without_a_queue_the_line_says_how_one_is_begun(tmp_path: Path) -> None:
    queue = Queue(tmp_path)
    for words in (["queue"], ["queue", "status"], ["add", "--", "true"]):
        result = queue(*words)
        assert result.status == 2
        assert "gpulaunch queue start --detach begins" in result.err
    assert "is not alive" in queue("queue", "stop").err


@pytest.mark.parametrize(
    ("word", "ours"),
    [
        ("ls", "gpulaunch queue shows its jobs"),
        ("add", "gpulaunch add -- CMD adds to it"),
        ("log", "gpulaunch logs -r queue JOB"),
        ("clear", "gpulaunch cancel -r queue JOB"),
        ("sing", "it has start, stop, status, install"),
    ],
)
def test_a_word_of_habit_behind_queue_is_answered_with_ours(
    tmp_path: Path, word: str, ours: str
) -> None:
    result = Queue(tmp_path)("queue", word)
    assert result.status == 2
    assert f"queue has no command '{word}': {ours}" in result.err


def test_the_unit_starts_the_queue_as_it_was_installed(tmp_path: Path) -> None:
    queue = Queue(tmp_path)
    result = queue("queue", "install", "--gpus", "0,1")
    assert result.status == 0, result.err
    assert "systemctl --user enable --now gpulaunch-queue.service" in result.err
    unit = (tmp_path / "config/systemd/user/gpulaunch-queue.service").read_text()
    assert " queue start --quiet --no-progress --gpus 0,1" in unit
    assert "KillMode=mixed" in unit


def test_a_units_line_survives_its_two_readers() -> None:
    """systemd reads quotes, percent signs and dollars, and then the shell does."""
    text = unit_text("'/a b/100%/$x/gpulaunch'", "")
    assert """-lc "exec '/a b/100%%/$$x/gpulaunch' queue start""" in text


@pytest.mark.parametrize(
    ("place", "lingers", "kills", "ends"),
    [
        ("0::/user.slice/user-1000.slice/session-4.scope", False, True, True),
        ("0::/user.slice/user-1000.slice/session-4.scope", False, False, False),
        ("0::/user.slice/user-0.slice/user@0.service/app.slice/x.scope", False, False, True),
        ("0::/user.slice/user-0.slice/user@0.service/app.slice/x.scope", True, False, False),
        ("0::/", False, True, False),
        (
            "12:cpu:/x\n1:name=systemd:/user.slice/user-1000.slice/session-4.scope",
            False,
            True,
            True,
        ),
    ],
)
def test_what_a_logout_ends_is_known(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    place: str,
    lingers: bool,
    kills: bool,
    ends: bool,
) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    monkeypatch.setattr("gpulaunch.run.settings._user", lambda: "ann")
    (tmp_path / "cgroup").write_text(place + "\n")
    if lingers:
        (tmp_path / "ann").write_text("")
    assert bool(ended_at_logout(tmp_path / "cgroup", tmp_path, lambda: kills)) == ends


def test_an_added_jobs_command_is_told(queue: Queue) -> None:
    queue("add", "--wait", "-g", "0", "--name", "said", "--", "echo", "some words")
    assert "echo 'some words'" in queue("status", "-r", "queue", "said").out
