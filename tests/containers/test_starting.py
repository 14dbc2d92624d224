"""A carrier whose client does as it likes: without an engine."""

from __future__ import annotations

import errno
import os
import pty
import pwd
import signal
import socket
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from gpulaunch.agent.container.children import spawn
from gpulaunch.agent.container.engine import EngineClient
from gpulaunch.agent.container.proxy import heard
from gpulaunch.agent.container.starting import Start
from gpulaunch.agent.proc import is_stopped
from tests.containers.carried import Bench, Carried, Contained, Limit
from tests.containers.daemons import PATIENCE
from tests.containers.test_carrier import FOREVER, shells, started
from tests.helpers import wait_until
from tests.process.pythons import VERSIONS, python
from tests.process.support import children_of

AT_ONCE = Limit("children.LONGEST_PAUSE", 0.0)
QUICK = [Limit("engine.ABANDON_TIMEOUT", 0.1), Limit("engine.REMOVE_TIMEOUT", 0.1)]


def with_client(bench: Bench, script: str, **more: Any) -> Carried:
    """A job whose client is a script."""
    return bench.job("sh", "-c", "echo begun; exit 3", start=["sh", "-c", script], **more)


def test_a_client_that_fails_is_told_with_its_status(bare_bench: Bench) -> None:
    job = with_client(bare_bench, "echo no such image; exit 5")
    words = "gpulaunch: bare could not start the container (status 5)"
    assert (job.wait(), job.text()) == (125, f"no such image\n{words}\n")
    assert job.cleared()


def test_a_client_that_was_killed_may_have_left_a_container(bare_bench: Bench) -> None:
    job = with_client(bare_bench, "kill -9 $$")
    words = "gpulaunch: bare could not start the container (status 137)"
    assert (job.wait(), job.lines()) == (125, [words])
    assert (job.folder / "record.json").exists()


def test_a_client_that_is_not_there_is_told(bare_bench: Bench) -> None:
    job = bare_bench.run("true", start=["/no/docker"])
    said = ["/no/docker: No such file or directory"]
    said += ["bare could not start the container (status 127)"]
    assert (job.wait(), job.lines()) == (125, [f"gpulaunch: {words}" for words in said])


def test_a_fork_is_tried_again_while_processes_are_scarce(monkeypatch: pytest.MonkeyPatch) -> None:
    errors = [errno.EAGAIN, errno.ENOMEM]
    pauses: list[float] = []

    def fork() -> int:
        if errors:
            raise OSError(errors.pop(0), "scarce")
        return 7

    monkeypatch.setattr("gpulaunch.agent.container.children.os.fork", fork)
    monkeypatch.setattr("gpulaunch.agent.container.children.time.sleep", pauses.append)
    assert spawn(["true"], {}, [], words=2).pid == 7
    assert pauses == [0.01, 0.02]
    errors += [errno.EAGAIN] * 99
    with pytest.raises(OSError, match="scarce"):
        spawn(["true"], {}, [], words=2)
    assert sum(pauses[2:]) == pytest.approx(1.27)


def test_where_no_process_can_be_had_nothing_is_started(bare_bench: Bench) -> None:
    job = bare_bench.run("true", limits=[Limit("forks", 0), AT_ONCE])
    words = "gpulaunch: bare cannot be started: Resource temporarily unavailable"
    assert (job.wait(), job.text()) == (125, f"{words}\n")
    assert job.cleared()


def test_where_no_process_can_be_had_the_engine_is_asked_later(bare_bench: Bench) -> None:
    script = "until [ -e $0-work/refused ]; do sleep 0.02; done"
    script += f"; exec {bare_bench.keeper} inside $0/socket"
    limits = [Limit("forks", 1), AT_ONCE, Limit("starting.FIRST_LOOK", 0.0)]
    limits += [Limit("starting.ANSWER_TIMEOUT", 0.0)]
    job = with_client(bare_bench, script, limits=limits)
    assert (job.wait(), job.text()) == (3, "begun\n")


def test_where_no_process_can_be_had_for_the_removal_the_status_stands(bare_bench: Bench) -> None:
    script = f"{bare_bench.keeper} inside $0/socket; exit 1"
    job = with_client(bare_bench, script, limits=[Limit("forks", 1), AT_ONCE])
    assert job.wait() == 3
    why = "(Resource temporarily unavailable); its processes are gone"
    assert job.lines() == [f"gpulaunch: bare did not remove the container {job.name} {why}"]
    assert (job.folder / "record.json").exists()


def test_a_term_before_the_start_ends_the_client(bare_bench: Bench) -> None:
    job = with_client(bare_bench, "trap '' TERM; sleep 999; true", limits=QUICK)
    wait_until(lambda: children_of(job.process.pid), PATIENCE)
    job.kill(signal.SIGTERM)
    words = "gpulaunch: bare does not answer; the container was not started"
    assert (job.wait(), job.lines()) == (-signal.SIGTERM, [words])
    assert not job.alive()


def test_signals_that_come_while_inside_is_let_in_are_for_the_program() -> None:
    """The question whether the engine answers is given up then, and its end awaited."""
    ours, inside = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    came = iter([[signal.SIGUSR1], [signal.SIGUSR2, signal.SIGCONT, signal.SIGTERM]])
    ends = iter([False, True])
    engine: Any = EngineClient.__new__(EngineClient)
    engine.signals = SimpleNamespace(wait=lambda *_: [7], take=lambda: next(came), asked=False)
    engine.record = SimpleNamespace(anyone=False)
    engine.unheard = []
    door: Any = SimpleNamespace(fileno=lambda: 7, accept=lambda: ours, close=lambda: None)
    start = Start(door, engine)
    asking: Any = SimpleNamespace(kill=lambda number: None, ended=lambda: next(ends))
    start.looking = asking
    with ours, inside:
        assert start.connection() is ours
    assert start.early == [signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM]


def test_a_second_carrier_for_one_record_starts_nothing(bare_bench: Bench) -> None:
    job = with_client(bare_bench, "exec sleep 999")
    wait_until((job.folder / "socket").exists, PATIENCE)
    argv = [*job.program(()), str(job.folder / "record.json"), "true"]
    second = subprocess.run(argv, capture_output=True, text=True, check=False)
    words = f"gpulaunch: cannot listen in {job.folder}: Address already in use\n"
    assert (second.returncode, second.stderr) == (125, words)
    job.kill(signal.SIGTERM)
    job.wait()


@pytest.mark.skipif(os.geteuid() != 0, reason="as another user")
def test_another_user_s_connection_is_refused(bare_bench: Bench) -> None:
    job = with_client(bare_bench, "exec sleep 999")
    path = job.folder / "socket"
    wait_until(path.exists, PATIENCE)
    job.folder.chmod(0o755)
    path.chmod(0o777)
    nobody = pwd.getpwnam("nobody").pw_uid
    script = (
        "import os, socket, sys; os.setuid(int(sys.argv[2]));"
        "link = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET);"
        "link.connect(sys.argv[1]); print(link.recv(99))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, path, str(nobody)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "b''\n"
    assert job.lines() == [f"gpulaunch: user {nobody} connected to {path}, and was refused"]
    job.kill(signal.SIGTERM)
    job.wait()


def test_an_end_that_nobody_tells_is_a_kill_from_outside(bare_bench: Bench) -> None:
    job = started(bare_bench, f"up; {FOREVER}")
    (inside,) = children_of(job.process.pid)
    os.kill(inside, signal.SIGKILL)
    words = f"gpulaunch: the container {job.name} was ended from outside"
    assert (job.wait(), job.lines()) == (-signal.SIGKILL, [words])


def test_a_removal_that_takes_too_long_is_told_and_left(bare_bench: Bench) -> None:
    script = f"{bare_bench.keeper} inside $0/socket; sleep 999; true"
    limits = [Limit("engine.REMOVAL_TIMEOUT", 0.1)]
    job = with_client(bare_bench, script, limits=limits)
    words = f"bare did not remove the container {job.name} in time; its processes are gone"
    assert (job.wait(), job.text()) == (3, f"begun\ngpulaunch: {words}\n")
    assert (job.folder / "record.json").exists()
    assert not job.alive()


def test_a_carrier_without_streams_runs_its_job_and_passes_signals(bare_bench: Bench) -> None:
    job = Contained(bare_bench, ["sh", "-c", f"trap 'exit 3' TERM; echo > $WORK/up; {FOREVER}"])
    argv = ["sh", "-c", 'exec <&- >&-; exec "$@"', "sh", *map(os.fsdecode, job.argv)]
    environ = {**bare_bench.engine.environ, **job.environ}
    carrier = subprocess.Popen(argv, env=environ)
    job.await_file("up")
    carrier.terminate()
    assert carrier.wait(PATIENCE) == 3


@pytest.mark.parametrize("version", VERSIONS)
def test_a_carrier_runs_on(version: str, bare_bench: Bench) -> None:
    job = Contained(bare_bench, ["sh", "-c", "kill -6 $$"])
    argv = [python(version), *map(os.fsdecode, job.argv[1:])]
    environ = {**bare_bench.engine.environ, **job.environ}
    done = subprocess.run(argv, env=environ, stderr=subprocess.PIPE, check=False)
    assert (done.returncode, done.stderr) == (-signal.SIGABRT, b"")
    assert job.cleared()


def test_the_client_has_none_of_the_job_s_files_but_the_log(bare_bench: Bench) -> None:
    with open(os.devnull) as lease:
        job = with_client(
            bare_bench, "ls /proc/self/fd; readlink /proc/$$/fd/1", files={100: lease.fileno()}
        )
        job.wait()
    *numbers, log, _ = job.text().split("\n")[:-1]
    assert numbers == ["0", "1", "2", "3"], "the last is the listing itself"
    assert log == str(job.log)


def test_an_end_is_heard_though_a_signal_was_not() -> None:
    """Whoever leaves words unread leaves an error, which comes before its own last words."""
    ours, inside = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours:
        ours.send(b"a signal")
        inside.send(b'{"is": "ended"}')
        inside.close()
        assert heard(ours) == {"is": "ended"}
        assert heard(ours) is None


def test_signals_that_the_engine_ignores_are_not_ignored_inside(bare_bench: Bench) -> None:
    script = f"trap '' USR2 PIPE; exec {bare_bench.keeper} inside $0/socket"
    job = bare_bench.run("grep", "SigIgn", "/proc/self/status", start=["sh", "-c", script])
    assert job.text().split() == ["SigIgn:", "0" * 16]


def test_podman_s_monitor_of_the_container_is_waited_for(bare_bench: Bench) -> None:
    """It leaves its parent, and keepers would else kill it while it clears away."""
    monitor = f"{bare_bench.keeper} inside $0/socket"
    monitor += "; echo $$ > $0-work/pid; mv $0-work/pid $0-work/over"
    monitor += "; until [ -e $0-work/go ]; do sleep 0.02; done"
    client = f"(sh -c '{monitor}' $0 &); until [ -e $0-work/over ]; do sleep 0.02; done"
    job = with_client(bare_bench, client, engine="podman")
    pid = int(job.await_file("over"))
    wait_until(lambda: children_of(job.process.pid) == [pid], PATIENCE, "it alone is waited for")
    job.file("go").touch()
    assert job.wait() == 3
    assert job.cleared()


@pytest.mark.parametrize("can", [True, False], ids=["removed", "not removed"])
def test_where_the_client_failed_the_container_is_removed_by_name(
    bare_bench: Bench, can: bool
) -> None:
    """As where the daemon ended while the job went on."""
    remove = ["sh", "-c", f"touch $0-work/asked; {str(can).lower()}"]
    client = f"{bare_bench.keeper} inside $0/socket; exit 1"
    limits = [Limit("engine.REFUSAL_TIMEOUT", 0.0)]
    job = with_client(bare_bench, client, remove=remove, limits=limits)
    assert job.wait() == 3
    assert job.file("asked").exists()
    assert job.folder.exists() != can
    why = f"bare did not remove the container {job.name} (status 1); its processes are gone"
    assert job.lines() == ([] if can else [f"gpulaunch: {why}"])


IN_PROGRESS = "Error response from daemon: removal of container gl is already in progress"
IMPROPER = "Error: cannot remove container gl: container state improper: stopped"
NO_SUCH = "Error: No such container: gl"


def told(*lines: str) -> list[str]:
    """A client's line that says one of these at each of its calls, at last the last, and fails."""
    numbers = [*map(str, range(1, len(lines))), "*"]
    cases = "".join(f"{at}) echo '{line}' >&2;; " for at, line in zip(numbers, lines, strict=True))
    count = "echo >> $0-work/asked; case $(wc -l < $0-work/asked) in"
    return ["sh", "-c", f"{count} {cases} esac; exit 1"]


def test_a_container_that_the_engine_removes_by_itself_is_removed(bare_bench: Bench) -> None:
    client = f"{bare_bench.keeper} inside $0/socket; exit 1"
    limits = [Limit("engine.REMOVE_PAUSE", 0.0)]
    remove = told(IN_PROGRESS, IN_PROGRESS, NO_SUCH)
    job = with_client(bare_bench, client, remove=remove, limits=limits)
    assert (job.wait(), job.lines()) == (3, [])
    assert job.cleared()


def test_a_removal_that_the_engine_refuses_is_asked_for_again(bare_bench: Bench) -> None:
    client = f"{bare_bench.keeper} inside $0/socket; exit 1"
    limits = [Limit("engine.REMOVE_PAUSE", 0.0), Limit("engine.REFUSAL_TIMEOUT", 60.0)]
    job = with_client(bare_bench, client, remove=told(IMPROPER, NO_SUCH), limits=limits)
    assert (job.wait(), job.lines()) == (3, [])
    assert job.cleared()


@pytest.mark.parametrize(
    ("remove", "limit", "why"),
    [
        (told("daemon: is dead", NO_SUCH), 60.0, "(daemon: is dead)"),
        (told(IN_PROGRESS), 0.1, "in time"),
        (["sh", "-c", "exec sleep 999"], 0.1, "in time"),
    ],
    ids=["refused", "in progress", "silent"],
)
def test_a_removal_that_fails_is_told_with_its_cause(
    bare_bench: Bench, remove: list[str], limit: float, why: str
) -> None:
    client = f"{bare_bench.keeper} inside $0/socket; exit 1"
    limits = [Limit("engine.REMOVAL_TIMEOUT", limit), Limit("engine.REFUSAL_TIMEOUT", 0.0)]
    job = with_client(bare_bench, client, remove=remove, limits=limits)
    words = f"bare did not remove the container {job.name} {why}; its processes are gone"
    assert (job.wait(), job.lines()) == (3, [f"gpulaunch: {words}"])
    assert (job.folder / "record.json").exists()


def test_who_asked_for_the_end_does_not_wait_as_long_for_the_removal(bare_bench: Bench) -> None:
    script = f"{bare_bench.keeper} inside $0/socket; sleep 999; true"
    limits = [Limit("engine.REMOVAL_TIMEOUT", 999), Limit("engine.ASKED_REMOVAL_TIMEOUT", 0.1)]
    start = ["sh", "-c", script]
    job = started(bare_bench, f"trap 'exit 3' TERM; up; {FOREVER}", start=start, limits=limits)
    job.kill(signal.SIGTERM)
    words = f"bare did not remove the container {job.name} in time; its processes are gone"
    assert job.wait() == 3
    assert job.lines() == [f"gpulaunch: {words}"]


# ── At a terminal ───────────────────────────────────────────────────────────────────────────────


def at_terminal(bench: Bench, script: str) -> tuple[Carried, int]:
    ours, theirs = pty.openpty()
    job = started(bench, script, stdin=theirs, streams=theirs)
    os.close(theirs)
    return job, ours


def test_the_terminal_is_the_program_s_and_its_keys_reach_it(bench: Bench) -> None:
    # It starts no more processes: a shell that waits for one to be executed is not stopped (vfork).
    waits = "while :; do read line; done"
    script = f"trap 'echo int; exit 6' INT; [ -t 0 ] && [ -t 1 ] && echo tty; up; {waits}"
    job, ours = at_terminal(bench, script)
    pids = [job.process.pid, *shells(job)]
    os.write(ours, b"\x1a")
    wait_until(lambda: all(map(is_stopped, pids)), PATIENCE, "Ctrl-Z stops both")
    job.kill(signal.SIGCONT)
    wait_until(lambda: not any(map(is_stopped, pids)), PATIENCE, "both go on")
    os.write(ours, b"\x03")
    assert job.wait() == 6
    said = os.read(ours, 4096)
    assert said.split()[0] == b"tty"
    assert b"int" in said
    os.close(ours)
