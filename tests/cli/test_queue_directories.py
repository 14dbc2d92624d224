"""A queue goes on in its next directory once one is full: no job is lost, none runs twice.

GPULAUNCH_TEST_KILLS says how many of the steps between two directories are kills (4; all: 1000).
"""

from __future__ import annotations

import os
import signal
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from gpulaunch.core.facts import RunClosed
from gpulaunch.core.ledger import Ledger
from gpulaunch.journal.read import read, replay
from gpulaunch.journal.rundir import RunDir, queue_dirs
from tests.cli.launcher import UNTIL_GO, Launcher
from tests.helpers import wait_until

KILLS = int(os.environ.get("GPULAUNCH_TEST_KILLS", "4"))
JOBS = 3
"""Jobs after which a directory is full here."""
SMALL = f"""
import os, signal, sys
from gpulaunch.core import ledger
ledger.JOBS_PER_DIRECTORY = {JOBS}
sys.argv[0] = "gpulaunch"
"""
MAIN = "from gpulaunch.__main__ import main; sys.exit(main())"
STEPS = """
from gpulaunch.journal.append import Journal
home, die_at, log = os.environ["XDG_STATE_HOME"], int(os.environ["DIE_AT"]), os.environ["STEPS"]
steps, own = 0, os.getpid()

def step(what):
    global steps
    steps += 1
    with_fd = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(with_fd, f"{what}\\n".encode())
    os.close(with_fd)
    if steps == die_at:
        os.kill(os.getpid(), signal.SIGKILL)

turning = False

def audit(event, args):
    named = args and isinstance(args[0], (str, bytes, os.PathLike))
    touches = event.startswith("os.") or (event == "open" and args[2] & 3 != os.O_RDONLY)
    if turning and named and touches and os.fsdecode(args[0]).startswith(home):
        step(f"{event} {os.fsdecode(args[0])}")

append = Journal.append

def append_by_steps(self, facts):
    global turning
    names = [type(fact).__name__ for fact, _ in facts]
    turning = turning or "ListClosed" in names
    if turning:
        step(f"before {names}")
    done = append(self, facts)
    if turning:
        step(f"after {names}")
    return done

Journal.append = append_by_steps
sys.addaudithook(audit)
"""


class Queue(Launcher):
    """A launcher whose user has a queue of small directories, and jobs that say when they run."""

    def __init__(self, path: Path, steps: str = "", **environ: str) -> None:
        homes = {"XDG_STATE_HOME": str(path / "state"), "XDG_CONFIG_HOME": str(path / "config")}
        super().__init__(path, homes | environ, [sys.executable, "-c", SMALL + steps + MAIN])

    def start(self) -> None:
        assert self("queue", "start", "--simulate", "1", "--detach").status == 0

    def add(self, name: str, *more: str, command: str = "true") -> int:
        said = f"echo {name} >> {self.path}/done; {command}"
        return self("add", *more, "-g", "0", "--name", name, "--", "sh", "-c", said).status

    @property
    def done(self) -> Counter[str]:
        with suppress(FileNotFoundError):
            return Counter((self.path / "done").read_text().split())
        return Counter()

    @property
    def directories(self) -> list[RunDir]:
        """The newest first."""
        return queue_dirs(self.environ)

    def ledgers(self) -> dict[str, Ledger]:
        return {run.path.name: replay(run.events) for run in self.directories}

    def stop(self) -> None:
        self("queue", "stop")


@pytest.fixture
def queue(tmp_path: Path) -> Iterator[Queue]:
    queue = Queue(tmp_path)
    queue.start()
    yield queue
    queue.stop()


def begun(queue: Queue, name: str) -> None:
    wait_until(lambda: queue.directories[0].path.name == name, 60, f"{name} begun")


def test_a_full_queue_goes_on_in_the_next_directory(queue: Queue) -> None:
    for number in range(7):
        assert queue.add(f"job-{number}", "--wait") == 0
    begun(queue, "queue-3")
    ledgers = queue.ledgers()
    assert [list(ledgers[name].jobs) for name in ("queue", "queue-2", "queue-3")] == [
        ["job-0", "job-1", "job-2"],
        ["job-3", "job-4", "job-5"],
        ["job-6"],
    ]
    assert ledgers["queue"].state == "succeeded"
    assert len({ledger.opening.run for ledger in ledgers.values()}) == 3
    assert ledgers["queue"].opening.pid == ledgers["queue-3"].opening.pid
    assert all(ledger.opening.simulated for ledger in ledgers.values()), "as the queue was begun"
    assert all(run.report.exists() for run in queue.directories[1:])
    log = queue.directories[0].path / "supervisor.log"
    wait_until(log.exists, 10, "its words lie in its newest directory")
    assert set(queue.done.values()) == {1}


def test_jobs_of_older_directories_are_found_by_name(queue: Queue) -> None:
    assert queue.add("good", "--wait", command="echo I am good") == 0
    failing = f"test -e {queue.path}/repaired"
    assert queue.add("bad", "--wait", command=failing) == 1
    assert queue.add("third", "--wait") == 0
    assert queue.add("new", "--wait") == 0
    assert "good  succeeded" in queue("status", "-r", "queue", "good").out
    assert "good  succeeded" in queue("queue", "status", "good").out
    assert queue("logs", "-r", "queue", "good").out == "I am good\n"
    assert queue("results", "queue", "--only", "good", "--csv").out.count("good") >= 1
    said = queue("status", "-r", "queue", "--all")
    assert "new  succeeded" in said.out
    assert "good" not in said.out
    assert f"older jobs of the queue: gpulaunch status {queue.directories[1].path}" in said.err
    (queue.path / "repaired").touch()
    assert queue("retry", "-r", "queue", "bad").status == 0
    assert queue.ledgers()["queue"].jobs["bad"].state == "succeeded"
    assert queue.ledgers()["queue"].state == "succeeded", "it does not wait for jobs again"
    assert queue.ledgers()["queue-2"].state == "running"
    assert "no job of queue is called nobody" in queue("logs", "-r", "queue", "nobody").err


def test_a_directory_is_not_left_while_a_job_of_it_waits_or_runs(queue: Queue) -> None:
    until = f"cd {queue.path}; {UNTIL_GO}"
    assert queue.add("long", command=until) == 0
    assert queue.add("later", "--after", "long") == 0
    for number in range(JOBS + 2):
        assert queue.add(f"quick-{number}", "--wait") == 0
    assert [run.path.name for run in queue.directories] == ["queue"]
    pid = queue.ledgers()["queue"].opening.pid
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not Path(f"/proc/{pid}").exists(), 60, "killed")
    queue.start()
    wait_until(lambda: queue.done["long"] == 2, 60, "the job that ran is run again")
    assert [run.path.name for run in queue.directories] == ["queue"]
    queue.file("go", "")
    begun(queue, "queue-2")
    first = queue.ledgers()["queue"]
    assert {job.state for job in first.jobs.values()} == {"succeeded"}
    assert len(first.jobs) == JOBS + 4
    assert {name for name, count in queue.done.items() if count != 1} == {"long"}


def test_who_adds_all_the_time_notices_nothing(queue: Queue) -> None:
    names = [f"job-{number}" for number in range(4 * JOBS)]
    assert [queue.add(name) for name in names] == [0] * len(names)
    wait_until(lambda: len(queue.done) == len(names), 60, "all done")
    assert set(queue.done.values()) == {1}
    found = [name for ledger in queue.ledgers().values() for name in ledger.jobs]
    assert sorted(found) == sorted(names)


def test_a_full_queue_that_was_told_to_finish_does_not_go_on(queue: Queue) -> None:
    assert queue.add("long", command=f"cd {queue.path}; {UNTIL_GO}") == 0
    for number in range(JOBS):
        assert queue.add(f"quick-{number}", "--wait") == 0
    assert queue("finish", "-r", "queue").status == 0
    queue.file("go", "")
    closed = lambda: any(isinstance(f, RunClosed) for f, _ in read(queue.directories[0].events))  # noqa: E731
    wait_until(closed, 60, "finished")
    assert [run.path.name for run in queue.directories] == ["queue"]
    queue.start()
    begun(queue, "queue-2")


def through(path: Path, die_at: int) -> list[str]:
    """Fill a queue whose launcher is killed at a step, start it again; return its steps.

    Step 0 is none. A job is added while the queue goes over: if `add` succeeded, the job runs.
    """
    path.mkdir()
    steps = path / "steps"
    queue, again = Queue(path, STEPS, DIE_AT=str(die_at), STEPS=str(steps)), Queue(path)
    queue.start()
    pid = queue.ledgers()["queue"].opening.pid
    names = [f"job-{number}" for number in range(JOBS)]
    assert [queue.add(name) for name in names] == [0] * JOBS
    between = f"echo between >> {path}/done"
    with queue.begun("add", "-g", "0", "--name", "between", "--", between) as adding:
        if die_at:
            wait_until(lambda: not Path(f"/proc/{pid}").exists(), 60, f"killed at step {die_at}")
            again.start()
        adding.communicate(timeout=60)
    assert again.add("after", "--wait") == 0
    ledgers = again.ledgers()
    found = [name for one in ledgers.values() for name in one.jobs]
    names += ["between", "after"] if "between" in found else ["after"]
    assert "between" in found or adding.returncode
    assert sorted(found) == sorted(names)
    assert {job.state for one in ledgers.values() for job in one.jobs.values()} == {"succeeded"}
    assert queue.done == dict.fromkeys(names, 1)
    assert "after" in ledgers["queue-2"].jobs
    again.stop()
    return steps.read_text().splitlines()


def test_killed_at_any_step_between_two_directories_no_job_is_lost_or_runs_twice(
    tmp_path: Path,
) -> None:
    steps = through(tmp_path / "whole", 0)
    last = next(at for at, step in enumerate(steps, 1) if "after ['RunOpened'" in step)
    assert last > 10, steps
    count = min(KILLS, last)
    for number in sorted({round(1 + at * (last - 1) / max(1, count - 1)) for at in range(count)}):
        through(tmp_path / f"step-{number}", number)
