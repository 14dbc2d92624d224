"""A job in a container, as its keepers see it: its carrier is the job.

On docker, on podman as root and as a user, and on none (`bare`).
"""

from __future__ import annotations

import fcntl
import os
import random
import signal
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from gpulaunch.agent.proc import is_stopped, stat_fields
from tests.containers.carried import Bench, Carried
from tests.containers.daemons import PATIENCE
from tests.helpers import wait_until
from tests.process.support import children_of, marked

ODD = [b"a b", b"'\"$x", b"line\nbreak", b"\xff\xfe", b"", b"=", b"\xe2\x82\xac"]
KILLS = int(os.environ.get("GPULAUNCH_TEST_KILLS", "10"))
SEED = int(os.environ.get("GPULAUNCH_TEST_SEED", "0"))
FOREVER = "while :; do sleep 0.02; done"


def started(bench: Bench, script: str, **more: Any) -> Carried:
    """A shell whose script has come to the word `up`."""
    script = script.replace("up", "echo $$ > $WORK/pid; mv $WORK/pid $WORK/up", 1)
    job = bench.job("sh", "-c", script, **more)
    job.await_file("up")
    return job


# ── Where it runs ───────────────────────────────────────────────────────────────────────────────


def test_the_program_and_what_it_starts_run_on_their_cpus_alone(bench: Bench) -> None:
    allowed = os.sched_getaffinity(0)
    for cpu in allowed:
        job = bench.run("sh", "-c", "grep Cpus_allowed_list /proc/self/status", cpus=[cpu])
        assert (job.wait(), job.text().split()) == (0, ["Cpus_allowed_list:", str(cpu)])


def test_cpus_that_are_not_to_be_had_are_no_failure_of_the_program(bench: Bench) -> None:
    job = bench.run("sh", "-c", "echo done", cpus=[4000])
    assert (job.wait(), job.text()) == (0, "done\n")


# ── How it ends ─────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("code", [0, 3, 255])
def test_the_carrier_exits_as_the_program(bench: Bench, code: int) -> None:
    job = bench.run("sh", "-c", f"exit {code}")
    assert (job.wait(), job.text()) == (code, "")
    assert job.cleared()


def test_the_carrier_ends_by_the_program_s_signal(bench: Bench) -> None:
    for number in (signal.SIGABRT, signal.SIGKILL, signal.SIGSEGV, signal.SIGPIPE):
        job = bench.run("sh", "-c", f"kill -{number:d} $$; {FOREVER}")
        assert (job.wait(), job.text()) == (-number, "")
        assert job.cleared()


def test_a_signal_that_ends_the_program_ends_the_carrier(bench: Bench) -> None:
    for number in (*[signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGUSR1], 34, 64):
        job = started(bench, "up; exec sleep 999")
        job.kill(number)
        assert (job.wait(), job.text()) == (-number, "")
        assert job.cleared()


def test_a_program_that_is_not_there_is_status_127(bench: Bench) -> None:
    job = bench.run("no-such", unset=["PATH"])
    assert (job.wait(), job.lines()) == (127, ["gpulaunch: no-such is not in the image box:1"])
    assert job.cleared()


def test_a_shell_that_is_not_there_is_told_with_the_way_out(bench: Bench) -> None:
    job = bench.run("bash", "-c", "true", env={"PATH": "/nowhere"})
    words = "bash is not in the image box:1; `shell: [sh, -ec]` uses another shell"
    assert (job.wait(), job.lines()) == (127, [f"gpulaunch: {words}"])


def test_what_cannot_be_executed_is_status_126(bench: Bench) -> None:
    job = bench.run("/etc")
    words = "/etc is a directory, not a program (in the image box:1)"
    assert (job.wait(), job.lines()) == (126, [f"gpulaunch: {words}"])
    job = bench.run("sh", cwd="/no/where")
    words = "the working directory /no/where does not exist (in the image box:1)"
    assert (job.wait(), job.lines()) == (126, [f"gpulaunch: {words}"])


def test_what_is_left_over_is_killed_and_counted(bench: Bench) -> None:
    daemon = 'setsid sh -c "sleep 999 & echo > $WORK/up; wait" &'
    job = bench.run("sh", "-c", f"({daemon}); until [ -e $WORK/up ]; do :; done; exit 4")
    assert job.wait() == 4
    assert job.lines() == ["gpulaunch: 2 processes left over in the container ended with it"]
    assert job.cleared()


# ── What it is given ────────────────────────────────────────────────────────────────────────────


def test_arguments_and_variables_arrive_byte_for_byte(bench: Bench) -> None:
    env = {b"V%d" % at: value for at, value in enumerate(ODD)}
    script = 'printf "%s\\0" "$@" > $WORK/argv; cat /proc/self/environ > $WORK/environ'
    job = bench.run("sh", "-c", script, "sh", *ODD, env=env)
    assert job.wait() == 0, job.text()
    assert job.file("argv").read_bytes().split(b"\0")[:-1] == ODD
    variables = job.file("environ").read_bytes().split(b"\0")
    assert {b"%s=%s" % pair for pair in env.items()} <= set(variables)
    assert not [one for one in variables if b"GPULAUNCH_INSIDE_" in one]


def test_a_long_command_line_arrives(bench: Bench) -> None:
    job = bench.run("sh", "-c", 'echo "$# ${#1}"', "sh", *["x" * 100_000] * 3)
    assert (job.wait(), job.text()) == (0, "3 100000\n")


def test_the_container_s_own_variables_are_there_but_those_unset(bench: Bench) -> None:
    script = 'echo "${PATH+path} ${HOME+home}"'
    env = {} if bench.engine.name != "bare" else {"HOME": "/"}
    assert bench.run("/bin/sh", "-c", script, env=env).text() == "path home\n"
    assert bench.run("/bin/sh", "-c", script, unset=["HOME"]).text() == "path \n"


def test_it_is_in_its_directory_with_nothing_to_read(bench: Bench) -> None:
    assert bench.run("sh", "-c", "pwd; cat; echo read", cwd="/tmp").text() == "/tmp\nread\n"


def test_it_leads_a_session_and_has_default_signals(bench: Bench) -> None:
    words = "echo $$; cut -d' ' -f6 /proc/$$/stat; exec grep -E 'Sig(Blk|Ign)' /proc/self/status"
    pid, session, *signals = bench.run("sh", "-c", words).text().splitlines()
    assert pid == session
    assert [line.split()[1] for line in signals] == ["0" * 16] * 2


def test_files_made_inside_are_the_user_s(bench: Bench) -> None:
    job = bench.run("sh", "-c", "echo > $WORK/made")
    assert job.file("made").stat().st_uid == bench.engine.uid


def test_the_program_writes_into_the_log_itself(bench: Bench) -> None:
    job = bench.run("sh", "-c", "for fd in 1 2; do readlink /proc/$$/fd/$fd; done; true")
    assert job.text().split() == [str(job.log)] * 2


def test_a_search_path_may_go_before_the_container_s_own(bench: Bench) -> None:
    script = 'echo "$PATH"'
    own = bench.run("/bin/sh", "-c", script).text().strip()
    job = bench.run("/bin/sh", "-c", script, env={"PATH": "/first"}, first=["PATH"])
    assert job.text() == f"/first:{own}\n"


def client_of(job: Carried) -> int:
    run = f"{job.bench.engine.name}\0run\0".encode()
    pids = children_of(job.process.pid)
    (pid,) = [pid for pid in pids if Path(f"/proc/{pid}/cmdline").read_bytes().startswith(run)]
    return pid


def test_what_is_written_after_the_client_died_is_in_the_log(bench: Bench) -> None:
    if bench.bare:
        pytest.skip("there the client is `inside`")
    job = started(bench, f"trap 'echo two >&2; exit 5' USR1; echo one; up; {FOREVER}")
    os.kill(client_of(job), signal.SIGKILL)
    job.kill(signal.SIGUSR1)
    assert job.wait() == 5
    assert {"one", "two"} <= set(job.text().splitlines())
    job.await_gone()


def test_a_worker_s_pipes_are_its_0_and_3_and_end_with_their_other_ends(bench: Bench) -> None:
    items, to_worker = os.pipe()
    from_worker, answers = os.pipe()
    script = 'while read -r line; do echo "got $line" >&3; done; echo end >&3; exec 3>&-; '
    job = bench.job("sh", "-c", f"{script} {FOREVER}", stdin=items, files={3: answers})
    for fd in (items, answers):
        os.close(fd)
    with os.fdopen(from_worker) as heard:
        os.write(to_worker, b"one\n")
        assert heard.readline() == "got one\n"
        os.close(to_worker)
        assert heard.read() == "end\n", "nobody else holds the other end"
    job.kill(signal.SIGTERM)
    assert job.wait() == -signal.SIGTERM


def test_a_lease_is_held_inside_and_given_back_with_the_end(bench: Bench) -> None:
    path = bench.engine.folder / "lease"
    with path.open("w") as lease:
        fcntl.flock(lease, fcntl.LOCK_EX)
        script = f"readlink /proc/$$/fd/100 > $WORK/held; up; {FOREVER}"
        job = started(bench, script, files={100: lease.fileno()})
    assert job.file("held").read_text() == f"{path}\n"
    with path.open("w") as again:
        with pytest.raises(BlockingIOError):
            fcntl.flock(again, fcntl.LOCK_EX | fcntl.LOCK_NB)
        job.kill()
        job.wait()
        fcntl.flock(again, fcntl.LOCK_EX)  # waits for the container's end
        job.await_gone()


# ── Signals ─────────────────────────────────────────────────────────────────────────────────────


def test_signals_reach_the_program(bench: Bench) -> None:
    numbers = [1, 2, 3, 10, 12, 15, 28, 34, 40, 64]
    traps = "; ".join(f"trap 'echo {number}' {number}" for number in numbers)
    job = started(bench, f"{traps}; up; {FOREVER}")
    for at, number in enumerate(numbers):
        job.kill(number)
        wait_until(lambda at=at: heard(job)[at:], PATIENCE, f"signal {number}")
    job.kill()
    job.wait()
    assert heard(job) == numbers
    job.await_gone()


def heard(job: Carried) -> list[int]:
    """What the traps wrote, beside a shell's words on its children."""
    return [int(line) for line in job.text().splitlines() if line.isdigit()]


def test_the_warning_goes_to_those_that_take_it(bench: Bench) -> None:
    """A shell that does not has no harm of it; its child does take it."""
    child = "sh -c 'trap \"echo warned; exit 6\" USR1; up; while :; do sleep 0.02; done'"
    job = started(bench, f"{child}; exit $?", warn=signal.SIGUSR1)
    job.kill(signal.SIGUSR1)
    assert (job.wait(), job.text()) == (6, "warned\n")


def test_term_ends_it(bench: Bench) -> None:
    job = started(bench, f"up; {FOREVER}")
    job.kill(signal.SIGTERM)
    assert (job.wait(), job.text()) == (-signal.SIGTERM, "")
    assert job.cleared()


@pytest.mark.parametrize("apart", ["", "setsid "], ids=["group", "apart"])
def test_after_a_term_the_others_have_the_time_that_is_left(bench: Bench, apart: str) -> None:
    slow = "trap 'until [ -e \\$WORK/go ]; do sleep 0.02; done; echo saved; exit' TERM"
    slow += f"; echo > \\$WORK/slow; {FOREVER}"
    wait = "until [ -e $WORK/slow ]; do sleep 0.02; done; up; wait"
    job = started(bench, f'{apart}sh -c "{slow}" & {wait}')
    job.kill(signal.SIGTERM)
    job.file("go").touch()
    assert job.wait() == -signal.SIGTERM
    assert "saved" in job.text().splitlines()


def test_one_that_ignores_term_ends_with_the_carrier(bench: Bench) -> None:
    deaf = f"trap '' TERM HUP INT; (setsid sh -c 'sleep 999; true' &); up; {FOREVER}"
    job = started(bench, deaf)
    job.kill(signal.SIGTERM)
    job.kill(signal.SIGKILL)
    assert job.wait() == -signal.SIGKILL
    job.await_gone()


@pytest.mark.parametrize("again", [signal.SIGTERM, signal.SIGINT])
def test_a_second_term_ends_those_that_ignore_the_first(bench: Bench, again: int) -> None:
    """Above the carrier of `exec` is no keeper, which would kill it in time."""
    deaf = f"(trap '' TERM INT; echo > $WORK/deaf; {FOREVER}) &"
    job = started(bench, f"{deaf} until [ -e $WORK/deaf ]; do sleep 0.02; done; up; wait")
    (main,) = shells(job)
    job.kill(signal.SIGTERM)
    wait_until(lambda: not Path(f"/proc/{main}").exists(), PATIENCE, "the main process is over")
    assert job.process.poll() is None
    job.kill(again)
    assert job.wait() == -signal.SIGTERM
    assert job.cleared()


def test_it_stops_and_goes_on_with_the_carrier(bench: Bench) -> None:
    # One process: a shell that waits for its child to be executed is not stopped meanwhile (vfork).
    job = started(bench, "up; exec sleep 3600")
    pids = [job.process.pid, *shells(job)]
    job.kill(signal.SIGTSTP)
    wait_until(lambda: all(map(is_stopped, pids)), PATIENCE, "both stop")
    job.kill(signal.SIGCONT)
    wait_until(lambda: not any(map(is_stopped, pids)), PATIENCE, "both go on")
    job.kill(signal.SIGTERM)
    assert job.wait() == -signal.SIGTERM


def shells(job: Carried) -> list[int]:
    """The program, which leads a session, by this machine's number."""
    found = []
    for pid in marked(job.mark, "environ"):
        with suppress(FileNotFoundError):  # it ended meanwhile
            if int(stat_fields(pid)[3]) == pid != job.process.pid:
                found.append(pid)
    return found


# ── Kills ───────────────────────────────────────────────────────────────────────────────────────


def test_a_kill_at_any_moment_leaves_nothing(bench: Bench) -> None:
    """No container, no process; and what the job does it has begun once at most."""
    chance = random.Random(SEED)
    for _ in range(KILLS):
        job = bench.job("sh", "-c", f"echo begun >> $WORK/begun; {FOREVER}")
        with suppress(subprocess.TimeoutExpired):
            job.process.wait(chance.uniform(0, 1.2))
        job.kill()
        assert job.wait() == -signal.SIGKILL
        job.await_gone()
        begun = job.file("begun")
        assert not begun.exists() or begun.read_text() == "begun\n"


def test_a_term_at_any_moment_leaves_nothing_not_even_the_record(bench: Bench) -> None:
    chance = random.Random(SEED)
    for _ in range(KILLS // 2):
        job = bench.job("sh", "-c", FOREVER)
        wait_until((job.folder / "pid").exists, PATIENCE, "it hears signals")
        with suppress(subprocess.TimeoutExpired):
            job.process.wait(chance.uniform(0, 1.1))
        job.kill(signal.SIGTERM)
        assert (job.wait(), job.lines()) == (-signal.SIGTERM, [])
        assert job.cleared()
