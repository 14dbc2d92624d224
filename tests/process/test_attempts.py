"""One attempt through a real pair: how it starts, what it finds, how its end is told."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import json
import os
import resource
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpulaunch.base.errors import UsageError
from gpulaunch.core.causes import Quoted
from gpulaunch.core.model import (
    Cancelled,
    Exited,
    Interrupted,
    MissingOutput,
    NotStarted,
    Signaled,
    Stopped,
    TimedOut,
)
from gpulaunch.engines.client import AttemptOver, ProgramStarted, Spawner
from gpulaunch.engines.command import Command
from gpulaunch.journal.ends import read_end
from tests.helpers import wait_until
from tests.process.support import Slot, children_of, made_before, marked, token

PYTHON = sys.executable
FAN_OPEN_PERM, FAN_OPEN_EXEC_PERM, FAN_ONDIR = 0x10000, 0x40000, 0x40000000


def error_of(ended: AttemptOver) -> str:
    assert isinstance(ended.end.outcome, NotStarted)
    return ended.end.outcome.error


@pytest.mark.parametrize("code", [0, 1, 3, 127, 255])
def test_exit_codes_are_the_programs_own(slot: Slot, code: int) -> None:
    assert slot.run("sh", "-c", f"exit {code}").end.outcome == Exited(code)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM, signal.SIGINT])
def test_signals_are_told_as_signals(slot: Slot, number: int) -> None:
    assert slot.run("sh", "-c", f"kill -{int(number)} $$").end.outcome == Signaled(number)


def test_started_comes_before_ended_and_names_the_main_process(slot: Slot) -> None:
    slot.launch("sh", "-c", "echo $$")
    started = slot.expect(ProgramStarted)
    slot.expect(AttemptOver)
    assert started.attempt == "job.1"
    assert slot.log.read_text() == f"{started.pid}\n"


def test_the_end_is_on_file_before_it_is_told(slot: Slot) -> None:
    before = time.time()
    ended = slot.run("sh", "-c", "exit 4")
    record = slot.end()
    assert record is not None
    assert (record.attempt, record.end.outcome, record.end.leftovers) == (
        ended.attempt,
        Exited(4),
        0,
    )
    assert record.end.started is not None
    assert before <= record.end.started.utc <= record.end.ended.utc <= time.time()
    assert record.end.started.mono <= record.end.ended.mono <= time.monotonic()
    assert slot.end_file.stat().st_mode & 0o777 == 0o600


def test_the_end_file_has_its_blocks_while_the_job_runs(slot: Slot) -> None:
    slot.launch("sleep", "100", grace=0.1)
    slot.expect(ProgramStarted)
    laid_out = slot.end_file.stat()
    assert laid_out.st_size > 0
    assert laid_out.st_blocks * 512 >= laid_out.st_size
    assert slot.end() is None
    slot.pair.stop("cancelled")
    slot.expect(AttemptOver)
    assert slot.end_file.stat().st_ino == laid_out.st_ino


# ── What the job finds ──────────────────────────────────────────────────────────────────────────

LOOK = """
import json, os, resource, signal, stat
def name(fd):
    try: return os.readlink(f"/proc/self/fd/{fd}")
    except OSError: return None
fds = {int(fd): name(fd) for fd in os.listdir("/proc/self/fd")}
def status(key):
    for line in open("/proc/self/status"):
        if line.startswith(key + ":"): return int(line.split()[1], 16)
print(json.dumps({
    "env": dict(os.environ), "cwd": os.getcwd(), "ppid": os.getppid(), "sid": os.getsid(0),
    "pid": os.getpid(), "blocked": status("SigBlk"), "files": resource.getrlimit(7),
    "fds": {fd: name for fd, name in fds.items() if name},
    "umask": os.umask(0),
}))
"""


def look(slot: Slot, **limits: object) -> dict[str, object]:
    slot.run(PYTHON, "-I", "-c", LOOK, **limits)
    found: dict[str, object] = json.loads(slot.log.read_text())
    return found


def test_the_environment_is_exactly_base_and_changes(tmp_path: Path, keeper: str) -> None:
    base = {"PATH": os.environ["PATH"], "GONE": "1", "KEPT": "a=b\nc", "LANG": "C.UTF-8"}
    with Spawner(keeper, base) as spawner, Slot(spawner, tmp_path) as slot:
        slot.run("env", "-0", env_set={"NEW": "ü", "KEPT2": ""}, env_unset=("GONE", "NEVER"))
        entries = slot.log.read_bytes().rstrip(b"\0").split(b"\0")
    want = {**base, "NEW": "ü", "KEPT2": ""}
    del want["GONE"]
    assert dict(e.decode().split("=", 1) for e in entries) == want


def test_an_interpreter_in_the_c_locale_adds_nothing_to_the_environment(
    tmp_path: Path, keeper: str
) -> None:
    base = {"PATH": os.environ["PATH"]}
    with Spawner(keeper, base) as spawner, Slot(spawner, tmp_path) as slot:
        slot.run("env")
        assert slot.log.read_text().strip() == f"PATH={os.environ['PATH']}"


def test_arguments_of_any_bytes_arrive_as_they_are(slot: Slot) -> None:
    odd = ["ü€", "\udcff\udc80", "a\nb", "", "'\"$(x)", "\t"]
    slot.run("printf", "%s|", *odd)
    assert slot.log.read_bytes() == b"".join(os.fsencode(o) + b"|" for o in odd)


def test_nothing_leaks_into_the_job_but_stdio_and_leases(tmp_path: Path, keeper: str) -> None:
    stray = os.open("/etc/hostname", os.O_RDONLY)
    os.set_inheritable(stray, True)
    lease, alive = os.pipe()
    try:
        with (
            Spawner(keeper) as spawner,
            Slot(spawner, tmp_path, (lease, lease), alive) as slot,
        ):
            for _ in range(2):
                fds = look(slot)["fds"]
                assert isinstance(fds, dict)
                low = {int(fd): target for fd, target in fds.items() if int(fd) < 100}
                assert low == {0: "/dev/null", 1: str(slot.log), 2: str(slot.log)}
                held = [target for fd, target in fds.items() if int(fd) >= 100]
                assert held == [f"pipe:[{os.fstat(lease).st_ino}]"] * 2
    finally:
        for fd in (stray, lease, alive):
            os.close(fd)


def test_the_job_has_default_signals_its_own_session_and_our_limits(slot: Slot) -> None:
    script = "grep -E '^Sig(Blk|Ign)' /proc/self/status"
    slot.run("sh", "-c", script)
    assert [line.split()[1] for line in slot.log.read_text().splitlines()] == ["0" * 16] * 2
    found = look(slot, cwd="/usr")
    assert found["sid"] == found["pid"]
    assert found["cwd"] == "/usr"
    assert found["files"] == list(resource.getrlimit(resource.RLIMIT_NOFILE))
    os.umask(mask := os.umask(0))
    assert found["umask"] == mask


def test_a_program_that_reads_its_standard_input_finds_its_end(slot: Slot) -> None:
    assert slot.run("sh", "-c", 'test -z "$(cat)"').end.outcome == Exited(0)


def test_output_and_errors_keep_their_order_in_one_private_log(slot: Slot) -> None:
    slot.run("sh", "-c", "echo a; echo b >&2; echo c; echo d >&2")
    assert slot.log.read_text() == "a\nb\nc\nd\n"
    assert slot.log.stat().st_mode & 0o777 == 0o600


def test_a_log_that_exists_is_never_overwritten(slot: Slot) -> None:
    (slot.folder / "1.log").write_text("precious")
    assert "File exists" in error_of(slot.run("echo", "no"))
    assert slot.log.read_text() == "precious"


def test_the_program_is_found_in_the_jobs_own_path(slot: Slot) -> None:
    program = slot.folder / "bin" / "mine"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\necho found\n")
    program.chmod(0o755)
    slot.run("mine", env_set={"PATH": f"/nowhere:{program.parent}:/usr/bin:/bin"})
    assert slot.log.read_text() == "found\n"
    assert "PATH" in error_of(slot.run("mine"))


# ── What cannot be started, in words ────────────────────────────────────────────────────────────


def test_what_cannot_be_executed_is_said_in_words(slot: Slot) -> None:
    def file(name: str, text: bytes, mode: int = 0o755) -> str:
        path = slot.folder / name
        path.write_bytes(text)
        path.chmod(mode)
        return str(path)

    (slot.folder / "dangling").symlink_to("/nowhere/at/all")
    cases = {
        "no-such-program-here": "not found in the job's PATH",
        "/no/such/program": "there is no program /no/such/program",
        "/tmp": "is a directory",
        file("plain", b"#!/bin/sh\n", 0o644): "may not be executed",
        file("script", b"#!/no/python3\n"): "its interpreter /no/python3 does not",
        file("crlf", b"#!/bin/sh\r\necho\r\n"): "Windows line ends",
        file("text", b"just text\n"): "no #! line",
        str(slot.folder / "dangling"): "a link to a file that does not exist",
    }
    for program, words in cases.items():
        assert words in error_of(slot.run(program))
    assert slot.end() is not None
    assert "/no/dir does not exist" in error_of(slot.run("true", cwd="/no/dir"))
    assert "is not a directory" in error_of(slot.run("true", cwd="/etc/hostname"))
    assert "too long for the kernel" in error_of(slot.run("true", "x" * 3_000_000))
    assert "cannot create the log /no/log" in error_of(slot.run("true", log="/no/log"))


def test_an_end_that_cannot_be_laid_out_starts_nothing(slot: Slot) -> None:
    ended = slot.run("touch", str(slot.folder / "x"), end="/no/end")
    assert "cannot lay out /no/end" in error_of(ended)
    assert not (slot.folder / "x").exists()
    assert slot.run("true").end.outcome == Exited(0)


def test_a_command_that_could_never_be_passed_is_refused() -> None:
    with pytest.raises(UsageError):
        Command("j.1", (), "/l", "/e")
    with pytest.raises(UsageError):
        Command("j.1", ("a\0b",), "/l", "/e")
    with pytest.raises(UsageError):
        Command("j.1", ("a",), "/l", "/e", env_set={"A=B": "c"})


def test_a_command_never_shows_its_environment() -> None:
    assert "secret" not in repr(Command("j.1", ("a",), "/l", "/e", env_set={"KEY": "secret"}))


# ── Size ────────────────────────────────────────────────────────────────────────────────────────


def test_two_megabytes_of_arguments_and_environment_arrive(slot: Slot) -> None:
    words = ["x" * 100_000] * 9
    values = {f"V{n}": "y" * 100_000 for n in range(9)}
    count = "sum(len(os.environ[f'V{n}']) for n in range(9))"
    script = f"import os, sys; print(len(''.join(sys.argv[1:])), {count})"
    slot.run(PYTHON, "-c", script, *words, env_set=values)
    assert slot.log.read_text() == "900000 900000\n"


def test_five_thousand_open_files_and_a_line_of_100_megabytes(slot: Slot, nasty: str) -> None:
    mark = token()
    ended = slot.run(nasty, "many-files", mark)
    assert (ended.end.outcome, ended.end.leftovers) == (Exited(0), 1)
    assert slot.log.read_text() == "5000\n"
    assert marked(mark) == []
    assert slot.run("head", "-c", "100000000", "/dev/zero").end.outcome == Exited(0)
    assert slot.log.stat().st_size == 100_000_000
    slot.log.unlink()


def test_a_job_that_closes_its_output_ends_as_it_wants(slot: Slot) -> None:
    script = "import os, time; os.close(0); os.close(1); os.close(2); time.sleep(.05); os._exit(5)"
    assert slot.run(PYTHON, "-c", script).end.outcome == Exited(5)


# ── Stops and limits ────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("reason", "outcome"),
    [
        ("cancelled", Cancelled(Signaled(15))),
        ("stopped", Stopped(Signaled(15))),
        ("interrupted", Interrupted(Quoted("Ctrl-C"), Signaled(15))),
    ],
)
def test_the_reason_of_a_stop_is_the_outcomes_kind(
    slot: Slot, reason: str, outcome: object
) -> None:
    slot.launch("sleep", "100")
    slot.expect(ProgramStarted)
    slot.pair.stop(reason, by="Ctrl-C")  # type: ignore[arg-type]
    assert slot.expect(AttemptOver).end.outcome == outcome
    record = slot.end()
    assert record is not None
    assert record.end.outcome == outcome


def test_a_stop_right_after_the_launch_is_not_lost(slot: Slot) -> None:
    for _ in range(10):
        slot.launch("sleep", "100", grace=15.0)
        slot.pair.stop("cancelled")
        assert slot.expect(AttemptOver).end.outcome == Cancelled(Signaled(15))


def test_a_stop_after_the_end_does_not_touch_the_next_attempt(slot: Slot) -> None:
    slot.run("true")
    slot.pair.stop("cancelled")
    assert slot.run("true").end.outcome == Exited(0)


def test_an_end_of_its_own_before_the_stop_stays_its_own(slot: Slot) -> None:
    slot.launch("sh", "-c", "exit 6")
    wait_until(lambda: slot.end_file.exists() and slot.end())
    slot.pair.stop("cancelled", now=True)
    assert slot.expect(AttemptOver).end.outcome == Exited(6)


SAVES = """
import signal, sys, time
def save(*_):
    print('asked', flush=True)
    time.sleep(.3)
    print('saved', flush=True)
    sys.exit(0)
signal.signal(15, save)
print('up', flush=True)
signal.pause()
"""


@pytest.mark.parametrize("shell", ["exec ", "", "(", "setsid --wait "])
def test_all_that_saves_its_work_is_asked_once_and_has_the_grace(slot: Slot, shell: str) -> None:
    """The shell dies of the TERM at once; the program below it is asked, and waited for."""
    command = f'{shell}{PYTHON} -c "{SAVES}"; echo after' + (")" if shell == "(" else "")
    slot.launch("bash", "-c", command, grace=10.0)
    wait_until(lambda: slot.log.exists() and "up\n" in slot.log.read_text())
    slot.pair.stop("cancelled")
    assert slot.expect(AttemptOver).end.leftovers == 0
    assert slot.log.read_text() == "up\nasked\nsaved\n"


def test_what_ignores_term_is_killed_after_its_grace(slot: Slot, nasty: str) -> None:
    mark = token()
    slot.launch(nasty, "ignore-term", mark, grace=0.4)
    slot.expect(ProgramStarted)
    wait_until(lambda: len(marked(mark)) == 2)
    at = time.monotonic()
    slot.pair.stop("cancelled")
    assert slot.expect(AttemptOver).end.outcome == Cancelled(Signaled(9))
    assert time.monotonic() - at >= 0.4
    assert marked(mark) == []


def test_a_second_stop_with_now_kills_at_once(slot: Slot, nasty: str) -> None:
    mark = token()
    slot.launch(nasty, "ignore-term", mark, grace=60.0)
    slot.expect(ProgramStarted)
    wait_until(lambda: len(marked(mark)) == 2)
    slot.pair.stop("interrupted", by="Ctrl-C")
    slot.pair.stop("interrupted", by="Ctrl-C again", now=True)
    assert slot.expect(AttemptOver).end.outcome == Interrupted(Quoted("Ctrl-C"), Signaled(9))


def test_a_stopped_process_sees_its_term(slot: Slot, nasty: str) -> None:
    slot.launch(nasty, "stopped-saves", token(), grace=60.0)
    pid = slot.expect(ProgramStarted).pid
    wait_until(lambda: b") T" in Path(f"/proc/{pid}/stat").read_bytes())
    slot.pair.stop("cancelled")
    assert slot.expect(AttemptOver).end.outcome == Cancelled(Exited(7))
    assert slot.log.read_text() == "saved\n"


def test_timeout_ends_a_job_and_says_which_limit(slot: Slot, nasty: str) -> None:
    assert slot.run("sleep", "100", timeout=0.2).end.outcome == TimedOut(
        "timeout", 0.2, Signaled(15)
    )
    ended = slot.run(nasty, "ignore-term", token(), timeout=1.0, grace=0.2)
    assert ended.end.outcome == TimedOut("timeout", 1.0, Signaled(9))


def test_silence_of_the_log_ends_a_job_and_speech_does_not(slot: Slot) -> None:
    talk = "for i in $(seq 40); do sleep 0.05; echo $i; done"
    assert slot.run("sh", "-c", talk, idle_timeout=1.5).end.outcome == Exited(0)
    ended = slot.run("sh", "-c", "sleep 0.3; echo once; sleep 100", idle_timeout=0.6)
    assert ended.end.outcome == TimedOut("idle_timeout", 0.6, Signaled(15))
    assert ended.end.ended is not None
    assert ended.end.ended.utc - slot.log.stat().st_mtime >= 0.55


@pytest.mark.skipif(os.geteuid() != 0, reason="holding up an exec (fanotify) needs root")
def test_an_exec_that_hangs_is_stopped_and_holds_nobody_up(
    spawner: Spawner, slot: Slot, tmp_path: Path
) -> None:
    """As a program on a dead file server would: the kernel is told to wait for our permission."""
    program = tmp_path / "program"
    shutil.copy("/bin/true", program)
    other = tmp_path / "other"
    other.mkdir()
    with held_up(program, FAN_OPEN_EXEC_PERM), Slot(spawner, other) as neighbour:
        slot.launch(str(program), timeout=0.5, grace=0.2)
        for _ in range(5):
            assert neighbour.run("true").end.outcome == Exited(0)
        assert isinstance(slot.expect(AttemptOver).end.outcome, TimedOut)
        slot.launch(str(program))
        slot.pair.stop("cancelled", now=True)
        assert slot.expect(AttemptOver).end.outcome == Cancelled(Signaled(9))
        assert slot.run("true").end.outcome == Exited(0)
    assert slot.run(str(program)).end.outcome == Exited(0)


@contextlib.contextmanager
def held_up(path: Path, events: int) -> Iterator[None]:
    """Whoever does that to the path waits, killable, for a permission that comes at the end."""
    libc = ctypes.CDLL(None, use_errno=True)
    fan_class_content, fan_mark_add, at_fdcwd = 4, 1, -100
    fd = libc.fanotify_init(fan_class_content, os.O_RDONLY)
    mask = ctypes.c_uint64(events)
    if fd < 0 or libc.fanotify_mark(fd, fan_mark_add, mask, at_fdcwd, bytes(path)):
        pytest.skip(f"no fanotify here: {os.strerror(ctypes.get_errno())}")
    try:
        yield
    finally:
        os.close(fd)


# ── Outputs ─────────────────────────────────────────────────────────────────────────────────────


def test_outputs_that_are_there_make_a_success(slot: Slot) -> None:
    out = slot.folder / "out[1]"
    out.mkdir()
    script = f"cd '{out}'; echo x > a.pdb; mkdir d; echo y > d/e; : > empty"
    outputs = (f"{out}/a.pdb", f"{slot.folder}/out?1?/*.pdb", f"{out}/d", f"{slot.folder}/**/e")
    assert slot.run("sh", "-c", script, outputs=outputs).end.outcome == Exited(0)


def test_an_output_that_kept_its_old_time_is_new_where_the_attempt_put_it_there(
    slot: Slot,
) -> None:
    folder = slot.folder
    for name in ("old", "moved", "target"):
        (folder / name).write_text("x")
        os.utime(folder / name, (1, 1))
    made_before(folder / "last")
    script = (
        f"cd {folder}; cp -p old copy; mv moved here; ln -s target link; ln old hard;"
        " tar cf a.tar old; mkdir d; tar xf a.tar -C d"
    )
    outputs = tuple(f"{folder}/{name}" for name in ("copy", "here", "link", "hard", "d/old"))
    assert slot.run("sh", "-c", script, outputs=outputs).end.outcome == Exited(0)


def test_a_link_from_before_is_old_unless_what_it_leads_to_is_new(slot: Slot) -> None:
    folder = slot.folder
    (folder / "link").symlink_to("target")
    made_before(folder / "target")
    outputs = (f"{folder}/link",)
    left = slot.run("true", outputs=outputs).end.outcome
    assert isinstance(left, MissingOutput)
    assert left.paths == (f"{folder}/link (older than the attempt)",)
    written = slot.run("sh", "-c", f"echo y > {folder}/target", outputs=outputs)
    assert written.end.outcome == Exited(0)


def test_outputs_absent_empty_or_old_are_named(slot: Slot) -> None:
    made_before(slot.folder / "old")
    (slot.folder / "bare").mkdir()
    names = ("absent", "empty", "old", "bare", "*.none")
    outputs = tuple(f"{slot.folder}/{name}" for name in names)
    outcome = slot.run("touch", f"{slot.folder}/empty", outputs=outputs).end.outcome
    assert isinstance(outcome, MissingOutput)
    assert outcome.status == Exited(0)
    assert outcome.paths == (
        f"{slot.folder}/absent (absent)",
        f"{slot.folder}/empty (empty)",
        f"{slot.folder}/old (older than the attempt)",
        f"{slot.folder}/bare (an empty directory)",
        f"{slot.folder}/*.none (absent)",
    )


def test_outputs_are_not_looked_at_after_a_failure_and_codes_of_success_count(slot: Slot) -> None:
    none = (f"{slot.folder}/none",)
    assert slot.run("false", outputs=none).end.outcome == Exited(1)
    ended = slot.run("false", outputs=none, success_codes=frozenset({1}))
    assert ended.end.outcome == MissingOutput((f"{none[0]} (absent)",), Exited(1))


def test_thousands_of_missing_outputs_fit_the_end(slot: Slot) -> None:
    outputs = tuple(f"{slot.folder}/{'ü' * 100}-{n}" for n in range(3000))
    ended = slot.run("true", outputs=outputs)
    assert isinstance(ended.end.outcome, MissingOutput)
    told = [f"{path} (absent)" for path in outputs]
    assert list(ended.end.outcome.paths) == told[: len(ended.end.outcome.paths)]
    record = slot.end()
    assert record is not None
    assert record.end.outcome == ended.end.outcome


@pytest.mark.skipif(os.geteuid() != 0, reason="holding up a file system (fanotify) needs root")
def test_a_check_of_outputs_that_hangs_can_be_stopped(slot: Slot) -> None:
    folder = slot.folder / "hung"
    folder.mkdir()
    (folder / "x").touch()
    with held_up(folder, FAN_OPEN_PERM | FAN_ONDIR):
        slot.launch("true", outputs=(str(folder),), grace=0.3)
        slot.expect(ProgramStarted)
        wait_until(lambda: not slot.reports and slot.log.exists())
        assert select.select([slot.pair], [], [], 0.3)[0] == []
        slot.pair.stop("cancelled")
        assert slot.expect(AttemptOver).end.outcome == Cancelled(Exited(0))
    assert slot.run("true", outputs=(str(folder),)).end.outcome == Exited(0)


# ── Scarcity ────────────────────────────────────────────────────────────────────────────────────


def test_a_fork_that_fails_is_tried_again_and_is_not_the_jobs_failure(
    tmp_path: Path, wrapped: str
) -> None:
    scarce = {**os.environ, "WRAPPED_SCARCE": "1"}
    with Spawner(wrapped, scarce) as spawner, Slot(spawner, tmp_path) as slot:
        assert slot.run("true", timeout=20.0).end.outcome == Exited(0)
        assert slot.run("true", outputs=("/etc/hostname",)).end.outcome != Exited(0)
        slot.launch("true")
        slot.pair.stop("cancelled")
        assert isinstance(slot.expect(AttemptOver).end.outcome, Cancelled | Exited)
        slot.finish()


@pytest.mark.skipif(os.geteuid() != 0, reason="a small disk to fill (tmpfs) needs root")
def test_a_full_disk_loses_no_end_and_is_said_of_a_launch(slot: Slot) -> None:
    disk = slot.folder / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=256k", "none", str(disk)]
    if subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("no tmpfs here")
    try:
        slot.launch("sh", "-c", f"head -c 1000000 /dev/zero > {disk}/fill; exit 9", end=f"{disk}/e")
        assert slot.expect(AttemptOver).end.outcome == Exited(9)
        record = read_end(disk / "e")
        assert record is not None
        assert record.end.outcome == Exited(9)
        ended = slot.run("true", end=f"{disk}/e2")
        assert error_of(ended) == f"cannot lay out {disk}/e2: No space left on device"
        assert ended.no_space
        assert not (disk / "e2").exists()
    finally:
        subprocess.run(["umount", str(disk)], check=True)


@pytest.mark.skipif(os.geteuid() != 0, reason="a small disk to fill (tmpfs) needs root")
def test_a_disk_without_room_for_the_log_is_no_failure_of_the_job(
    slot: Slot, tmp_path: Path
) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    # Two files: the directory itself and the end, which is laid out first.
    mount = ["mount", "-t", "tmpfs", "-o", "nr_inodes=2", "none", str(disk)]
    if subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("no tmpfs here")
    try:
        ended = slot.run("true", end=f"{disk}/e", log=f"{disk}/log")
        assert error_of(ended) == f"cannot create the log {disk}/log: No space left on device"
        assert ended.no_space
        assert os.listdir(disk) == []  # so that the attempt can be laid out again
        assert slot.run("true", end=f"{disk}/e", log=str(tmp_path / "log")).end.outcome == Exited(0)
    finally:
        subprocess.run(["umount", str(disk)], check=True)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_that_a_disk_is_full_is_told_as_a_kind(tmp_path: Path, wrapped: str, code: int) -> None:
    full = {**os.environ, "WRAPPED_ROOM": str(code)}
    with Spawner(wrapped, full) as spawner, Slot(spawner, tmp_path) as slot:
        ended = slot.run("true")
        assert error_of(ended) == f"cannot lay out {slot.end_file}: {os.strerror(code)}"
        assert ended.no_space is (code == errno.ENOSPC)
        slot.finish()


# ── One pair, many attempts ─────────────────────────────────────────────────────────────────────


def test_a_pair_is_used_a_hundred_times_without_growth(spawner: Spawner, tmp_path: Path) -> None:
    def size() -> tuple[int, int]:
        (guardian,) = children_of(spawner.pid)
        (monitor,) = children_of(guardian)
        rss = int(Path(f"/proc/{monitor}/statm").read_text().split()[1]) * 4096
        return len(os.listdir(f"/proc/{monitor}/fd")), rss

    with Slot(spawner, tmp_path) as slot:
        for _ in range(10):
            slot.run("true", outputs=("/etc/hostname",), idle_timeout=5.0)
        fds, memory = size()
        for _ in range(100):
            slot.run("true", outputs=("/etc/hostname",), idle_timeout=5.0)
        wait_until(lambda: size()[0] <= fds)  # the next child may be on its way
        if "GPULAUNCH_TEST_SANITIZE" not in os.environ:  # it keeps what is freed for a while
            assert size()[1] < memory + 500_000
        slot.finish()


def test_a_job_enters_its_cgroup_before_its_program_starts(slot: Slot, tmp_path: Path) -> None:
    procs = tmp_path / "cgroup.procs"
    procs.touch()
    slot.launch("cat", str(procs), cgroup=str(procs))
    assert slot.expect(AttemptOver).end.outcome == Exited(0)
    assert slot.log.read_text() == "0"  # who writes it


def test_a_job_whose_cgroup_is_gone_is_not_started(slot: Slot, tmp_path: Path) -> None:
    slot.launch("touch", str(tmp_path / "made"), cgroup=str(tmp_path / "gone" / "cgroup.procs"))
    error = error_of(slot.expect(AttemptOver))
    where = tmp_path / "gone" / "cgroup.procs"
    assert error == f"cannot enter its cgroup by {where}: No such file or directory"
    assert not (tmp_path / "made").exists()
