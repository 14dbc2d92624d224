"""Strict isolation through real pairs: what is absent, what stays, and what a job cannot undo.

/dev/full stands for another card's node: every machine has it, and it can be opened.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpulaunch.base.errors import UsageError
from gpulaunch.core.model import Cancelled, Exited, NotStarted, Signaled, TimedOut
from gpulaunch.engines.client import AttemptOver, Gone, ProgramStarted, Spawner
from gpulaunch.engines.command import Command
from gpulaunch.engines.isolation import why_no_isolation
from tests.helpers import wait_until
from tests.process.ordinary import UNSHARE
from tests.process.support import Slot, keepers_of, marked, token

OTHER = "/dev/full"
HIDDEN = (OTHER,)
ORDINARY = Path(__file__).with_name("ordinary.py")
NOBODY = "setpriv --reuid 65534 --regid 65534 --clear-groups"


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that every user may write to."""
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o1777)
        yield Path(name)


def started(
    folder: Path,
    who: str,
    keeper: str,
    options: str = "",
    as_who: str = NOBODY,
) -> str:
    """A program that is keepers as `who`; skips where that cannot be, or may not isolate."""
    wrapper: list[str] = []
    inner = [keeper]
    if who == "ordinary":
        wrapper = [sys.executable, str(ORDINARY), *options.split(), "--"]
    elif who == "nobody":
        if os.geteuid() or not shutil.which("setpriv"):
            pytest.skip("another user is to be had by root alone, with setpriv")
        wrapper = as_who.split()
        inner = [str(shutil.copy(keeper, folder / "keeper"))]
    script = folder / "started"
    script.write_text(f'#!/bin/sh\nexec {shlex.join([*wrapper, *inner])} "$@"\n')
    script.chmod(0o755)
    if "--forbidden" not in options and (why := refused(f"{who} {keeper}", str(script))):
        pytest.skip(why)
    return str(script)


answers: dict[str, str | None] = {}


def refused(who: str, program: str) -> str | None:
    """Whether isolation is refused to `who`; asked once, since the machine stays the same."""
    if who not in answers:
        answers[who] = why_no_isolation(program)
    return answers[who]


@pytest.fixture(params=["us", "ordinary", "nobody"])
def strict(request: pytest.FixtureRequest, open_folder: Path, keeper: str) -> Iterator[Slot]:
    """A slot of ours, of an ordinary user's, of another user's."""
    with (
        Spawner(started(open_folder, request.param, keeper)) as spawner,
        Slot(spawner, open_folder) as slot,
    ):
        yield slot
        assert spawner.said() == ""


@pytest.fixture
def ordinary(open_folder: Path, keeper: str) -> Iterator[Slot]:
    with (
        Spawner(started(open_folder, "ordinary", keeper)) as spawner,
        Slot(spawner, open_folder) as slot,
    ):
        yield slot


def said(slot: Slot, *argv: str, hidden: tuple[str, ...] = HIDDEN) -> str:
    """The log of a job that succeeds."""
    ended = slot.run(*argv, hidden=hidden)
    assert ended.end.outcome == Exited(0), (
        ended,
        slot.log.read_text() if slot.log.exists() else "",
    )
    return slot.log.read_text()


# ── What is absent, and what is there ───────────────────────────────────────────────────────────


def test_the_hidden_node_is_absent_and_back_for_the_next_job(strict: Slot) -> None:
    assert said(strict, "sh", "-c", f"test ! -e {OTHER} && echo absent") == "absent\n"
    assert said(strict, "sh", "-c", f"test -c {OTHER} && echo there", hidden=()) == "there\n"
    assert os.path.exists(OTHER)


LISTING = """
import json, os, stat
def kind(path):
    found = os.lstat(path)
    return [stat.S_IFMT(found.st_mode), stat.S_IMODE(found.st_mode), found.st_rdev]
print(json.dumps({name: kind("/dev/" + name) for name in os.listdir("/dev")}))
"""


def test_the_rest_of_dev_is_as_it_was(slot: Slot, strict: Slot) -> None:
    slot.run("/usr/bin/python3", "-I", "-c", LISTING)
    before = json.loads(slot.log.read_text())
    inside = json.loads(said(strict, "/usr/bin/python3", "-I", "-c", LISTING))
    del before["full"]
    # What cannot be the same: the terminals are the job's own.
    for name in ("ptmx", "pts"):
        assert inside.pop(name)
        before.pop(name, None)
    assert inside == before


def test_nothing_is_mounted_outside(strict: Slot) -> None:
    before = Path("/proc/self/mountinfo").read_text()
    said(strict, "true")
    assert Path("/proc/self/mountinfo").read_text() == before


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts of the machine's own are root's")
def test_nothing_is_mounted_outside_where_mounts_are_shared(open_folder: Path, keeper: str) -> None:
    """As they are under systemd: there a mount of root's shows in every namespace."""
    program = started(open_folder, "us", keeper)
    script = open_folder / "shared"
    script.write_text(f'#!/bin/sh\nexec unshare -m --propagation shared {program} "$@"\n')
    script.chmod(0o755)
    with Spawner(str(script)) as spawner, Slot(spawner, open_folder) as slot:
        assert said(slot, "sh", "-c", f"test ! -e {OTHER} && echo absent") == "absent\n"
        assert slot.run("test", "-c", OTHER).end.outcome == Exited(0)
        assert slot.run("grep", "^tmpfs /dev ", "/proc/mounts").end.outcome == Exited(1)


def test_a_node_deep_inside_is_hidden_alone(open_folder: Path, keeper: str) -> None:
    nodes = "--node dri/card0 --node dri/card1 --node dri/by-path/pci-1 --node nvidia1"
    with (
        Spawner(started(open_folder, "ordinary", keeper, options=nodes)) as spawner,
        Slot(spawner, open_folder) as slot,
    ):
        hidden = ("/dev/dri/card1", "/dev/dri/by-path/pci-1", "/dev/nvidia1", "/dev/nvidia7")
        found = said(slot, "sh", "-c", "cd /dev; echo *1 dri/* dri/by-path/*", hidden=hidden)
        assert "nvidia1" not in found
        assert found.endswith("dri/by-path dri/card0 dri/by-path/*\n")
        assert said(slot, "cat", "/dev/dri/card0", hidden=hidden) == "dri/card0\n"


def test_shared_memory_is_the_machines(strict: Slot) -> None:
    name = f"/dev/shm/{token()}"
    try:
        said(strict, "sh", "-c", f"echo first > {name}")
        assert Path(name).read_text() == "first\n"
        assert said(strict, "cat", name) == "first\n"
    finally:
        Path(name).unlink(missing_ok=True)


PSEUDO_TERMINAL = """
import os, pty, tty
master, slave = os.openpty()
tty.setraw(slave)
os.write(slave, b"across")
print(os.ttyname(slave).startswith("/dev/pts/"), os.read(master, 6))
print(os.WEXITSTATUS(pty.spawn(["sh", "-c", "test -t 0 && echo tty > /dev/tty; exit 7"])))
"""


def test_pseudo_terminals_work(strict: Slot) -> None:
    lines = said(strict, "/usr/bin/python3", "-I", "-c", PSEUDO_TERMINAL).splitlines()
    assert sorted(lines) == ["7", "True b'across'", "tty"]


def test_the_streams_by_their_names_in_dev(strict: Slot) -> None:
    script = "cat <(echo one); echo two >>/dev/stdout; echo x >/dev/null; cat /dev/stdin; cat - <&0"
    assert said(strict, "bash", "-c", script) == "one\ntwo\n"
    script = (
        "head -c 3 /dev/zero | wc -c; head -c 3 /dev/urandom | wc -c; echo x | tee -a /dev/fd/2"
    )
    assert said(strict, "bash", "-c", script).split() == ["3", "3", "x", "x"]


def test_standard_input_is_of_the_jobs_own_dev(strict: Slot) -> None:
    script = "grep mnt_id /proc/self/fdinfo/0; cut -d' ' -f1,5 /proc/self/mountinfo"
    first, *mounts = said(strict, "sh", "-c", script).splitlines()
    assert f"{first.split()[1]} /dev/null" in mounts


def test_the_user_is_the_same_and_so_are_the_owners_of_what_is_made(strict: Slot) -> None:
    said(strict, "sh", "-c", "id -u; id -g", hidden=())
    within = strict.log.read_text()
    owner = strict.log.stat()
    assert said(strict, "sh", "-c", f"id -u; id -g; echo > {strict.folder}/made") == within
    made = (strict.folder / "made").stat()
    assert (made.st_uid, made.st_gid) == (owner.st_uid, owner.st_gid)


@pytest.mark.skipif(os.geteuid() != 0, reason="groups are root's to give")
@pytest.mark.skipif(not shutil.which("setpriv"), reason="no setpriv")
def test_other_groups_still_open_files(open_folder: Path, keeper: str) -> None:
    """Device nodes are often those of a group such as video."""
    started(open_folder, "nobody", keeper)
    secret = open_folder / "secret"
    secret.write_text("read\n")
    os.chown(secret, 0, 4321)
    secret.chmod(0o640)
    for groups, outcome in (("--groups 4321", Exited(0)), ("--clear-groups", Exited(1))):
        folder = open_folder / groups.strip("-").split()[0]
        folder.mkdir()
        folder.chmod(0o777)
        who = NOBODY.replace("--clear-groups", groups)
        with (
            Spawner(started(folder, "nobody", keeper, as_who=who)) as spawner,
            Slot(spawner, folder) as slot,
        ):
            assert slot.run("cat", str(secret), hidden=HIDDEN).end.outcome == outcome


# ── The process and its end ─────────────────────────────────────────────────────────────────────


def test_the_job_is_the_keepers_own_child_by_the_number_that_is_told(strict: Slot) -> None:
    guardian, monitor = keepers_of(strict.spawner)
    strict.launch("sh", "-c", "echo $$ $PPID", hidden=HIDDEN)
    started = strict.expect(ProgramStarted)
    strict.expect(AttemptOver)
    assert strict.log.read_text() == f"{started.pid} {monitor}\n"
    assert guardian != monitor


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_signals_and_codes_are_the_programs_own(strict: Slot, number: int) -> None:
    assert strict.run("sh", "-c", f"kill -{int(number)} $$", hidden=HIDDEN).end.outcome == Signaled(
        number
    )
    assert strict.run("sh", "-c", "exit 7", hidden=HIDDEN).end.outcome == Exited(7)


def test_a_program_that_is_not_there_is_told_as_ever(strict: Slot) -> None:
    outcome = strict.run("/no/program", hidden=HIDDEN).end.outcome
    assert outcome == NotStarted("there is no program /no/program")


def test_a_term_is_heard_and_the_grace_is_given(strict: Slot) -> None:
    script = "trap 'echo bye; exit 3' TERM; echo up; while :; do sleep 0.05; done"
    strict.launch("bash", "-c", script, hidden=HIDDEN)
    strict.expect(ProgramStarted)
    wait_until(lambda: "up" in strict.log.read_text())
    strict.pair.stop("cancelled")
    assert strict.expect(AttemptOver).end.outcome == Cancelled(Exited(3))
    assert strict.log.read_text().endswith("bye\n")
    ended = strict.run("sh", "-c", "trap '' TERM; sleep 100", hidden=HIDDEN, timeout=1.0, grace=0.2)
    assert ended.end.outcome == TimedOut("timeout", 1.0, Signaled(signal.SIGKILL))


@pytest.mark.parametrize("who", ["us", "ordinary"])
def test_whatever_it_leaves_is_ended_from_outside(
    who: str, open_folder: Path, nasty: str, keeper: str
) -> None:
    mark = token()
    with (
        Spawner(started(open_folder, who, keeper)) as spawner,
        Slot(spawner, open_folder) as slot,
    ):
        assert slot.run(nasty, "daemons-exit", mark, hidden=HIDDEN).end.leftovers == 3
        slot.launch(nasty, "ignore-term", mark, hidden=HIDDEN)
        slot.expect(ProgramStarted)
        slot.pair.stop("stopped", now=True)
        slot.expect(AttemptOver)
        # In namespaces of its own making, too.
        within = f"{nasty} daemons-exit {mark}"
        slot.run("unshare", "-Um", "sh", "-c", within, hidden=HIDDEN)
        assert marked(mark) == []
        slot.launch(nasty, "ignore-term", mark, hidden=HIDDEN, grace=0.1)
        slot.expect(ProgramStarted)
        slot.pair.close()
        wait_until(lambda: not marked(mark))


def test_it_dies_with_its_keepers(ordinary: Slot, nasty: str) -> None:
    mark = token()
    guardian, monitor = keepers_of(ordinary.spawner)
    ordinary.launch(nasty, "ignore-term", mark, hidden=HIDDEN)
    ordinary.expect(ProgramStarted)
    for keeper in (guardian, monitor):
        os.kill(keeper, signal.SIGKILL)
    ordinary.expect(Gone)
    assert marked(mark) == []


# ── What a job cannot undo ──────────────────────────────────────────────────────────────────────

WAYS = {
    "as it is": "true",
    "another /proc": "cd /proc/$PPID/root/dev",
    "its keeper's working directory": "cd /proc/$PPID/cwd/dev",
    "unmounting": "umount /dev; umount -l /dev",
    "a namespace of its own": "unshare -Urm sh -c 'umount /dev; umount -l /dev; REACH'",
    "moving": "unshare -Urm sh -c 'mount --move /dev /mnt; REACH'",
    "seen from elsewhere": "unshare -Urm sh -c 'mount --bind / /mnt; cd /mnt/dev; REACH'",
    "seen from elsewhere, all": "unshare -Urm sh -c 'mount --rbind / /mnt;"
    " umount /mnt/dev; umount -l /mnt/dev; cd /mnt/dev; REACH'",
    "a new devtmpfs": "unshare -Urm sh -c 'mount -t devtmpfs d /mnt; cd /mnt; REACH'",
    "its keeper's namespaces": "nsenter -t $PPID -U -m --preserve-credentials sh -c 'REACH'",
    "its keeper's mounts": "nsenter -t $PPID -m sh -c 'REACH'",
    "a new node": "rm -f /dev/shm/full; mknod /dev/shm/full c 1 7; cd /dev/shm",
    "a new node as root": "unshare -Urm sh -c 'mknod /dev/shm/full c 1 7; cd /dev/shm; REACH'",
    "its first descriptor": "cd /proc/self/fd/0/..",
}
REACH = f"head -c 1 ./full || head -c 1 {OTHER}; exit 0"


@pytest.mark.parametrize("who", ["ordinary", "nobody"])
@pytest.mark.parametrize("way", WAYS)
def test_a_job_cannot_reach_what_is_hidden(
    way: str, who: str, open_folder: Path, keeper: str
) -> None:
    if not all(map(shutil.which, ("unshare", "nsenter", "umount", "mknod"))):
        pytest.skip("no util-linux here")
    script = f"{{ {WAYS[way].replace('REACH', REACH)}; }} 2>&1; {{ {REACH}; }} 2>&1"
    with (
        Spawner(started(open_folder, who, keeper)) as spawner,
        Slot(spawner, open_folder) as slot,
    ):
        slot.run("sh", "-c", script, hidden=HIDDEN)
        assert b"\0" not in slot.log.read_bytes(), slot.log.read_text()
        slot.run("sh", "-c", script, hidden=())
        assert b"\0" in slot.log.read_bytes(), "the test itself reaches nothing"


def test_a_job_cannot_reach_it_through_another_strict_job(open_folder: Path, keeper: str) -> None:
    with Spawner(started(open_folder, "ordinary", keeper)) as spawner:
        folders = [open_folder / name for name in ("one", "two")]
        for folder in folders:
            folder.mkdir()
        with Slot(spawner, folders[0]) as one, Slot(spawner, folders[1]) as two:
            one.launch("sleep", "100", hidden=(), grace=0.1)
            pid = one.expect(ProgramStarted).pid
            script = f"cd /proc/{pid}/root/dev && head -c 1 full; nsenter -t {pid} -U -m {REACH}"
            two.run("sh", "-c", script, hidden=HIDDEN)
            assert "ermission denied" in two.log.read_text()
            assert "\0" not in two.log.read_text()
            two.run("sh", "-c", script)
            assert "\0" in two.log.read_text(), "the test itself reaches nothing"


@pytest.mark.skipif(os.geteuid() != 0, reason="what root may do, root alone can show")
def test_root_can_undo_it(open_folder: Path, keeper: str) -> None:
    """As the documentation says: against accidents, not against intent."""
    program = started(open_folder, "us", keeper)
    with Spawner(program) as spawner, Slot(spawner, open_folder) as slot:
        said(slot, "sh", "-c", f"test ! -e {OTHER} && umount -l /dev && test -c {OTHER}")
        assert os.path.exists(OTHER)


def test_it_has_no_capability_and_still_dies_with_its_parent(ordinary: Slot) -> None:
    code = (
        "import ctypes; n = ctypes.c_int(); ctypes.CDLL(None).prctl(2, ctypes.byref(n));"
        "print(n.value, *(l.split()[1] for l in open('/proc/self/status')"
        " if l.startswith(('CapInh', 'CapPrm', 'CapEff', 'CapAmb'))))"
    )
    assert said(ordinary, "/usr/bin/python3", "-I", "-c", code).split() == ["9", *["0" * 16] * 4]


def test_no_node_can_be_made_in_its_dev(strict: Slot) -> None:
    assert said(strict, "sh", "-c", f"echo x 2>&1 > {OTHER} || echo no").endswith("no\n")


INSIDE = """
import sys
from pathlib import Path
from gpulaunch.engines.client import Spawner
from tests.process.support import Slot
with Spawner(sys.argv[1]) as spawner, Slot(spawner, Path(sys.argv[2])) as slot:
    names = "cd /dev; for n in full zero null shm ptmx; do test -e $n; echo $?; done"
    slot.run("sh", "-c", names, hidden=("/dev/zero",))
    print(*slot.log.read_text().split())
"""


def test_a_job_of_a_job_hides_more_and_never_less(
    ordinary: Slot, keeper: str, tmp_path: Path
) -> None:
    """A launcher inside a strict job has strict jobs of its own."""
    shown = said(ordinary, sys.executable, "-c", INSIDE, keeper, str(tmp_path))
    assert shown.split() == ["1", "1", "0", "0", "0"]


# ── Where it is forbidden ───────────────────────────────────────────────────────────────────────


def test_where_namespaces_are_forbidden_nothing_is_started_and_the_reason_told(
    open_folder: Path, keeper: str
) -> None:
    started(open_folder, "ordinary", keeper)
    forbidden = started(open_folder, "ordinary", keeper, options="--forbidden")
    with Spawner(forbidden) as spawner, Slot(spawner, open_folder) as slot:
        outcome = slot.run("sh", "-c", f"touch {open_folder}/ran", hidden=HIDDEN).end.outcome
        assert isinstance(outcome, NotStarted)
        assert outcome.error.startswith("strict isolation is not possible here: ")
        assert "user.max_user_namespaces is 0" in outcome.error
        assert not (open_folder / "ran").exists()
        assert why_no_isolation(forbidden) == outcome.error
        assert slot.run("true").end.outcome == Exited(0)


@pytest.mark.skipif(os.uname().machine not in UNSHARE, reason="another machine's numbers")
@pytest.mark.parametrize(
    ("options", "word"),
    [("--filtered", "seccomp=unconfined"), ("--filtered --as-root", "--cap-add SYS_ADMIN")],
)
def test_a_containers_filter_is_named(
    options: str, word: str, open_folder: Path, keeper: str
) -> None:
    started(open_folder, "ordinary", keeper)
    found = started(open_folder, "ordinary", keeper, options=f"--forbidden {options}")
    why = str(why_no_isolation(found))
    assert why.startswith("strict isolation is not possible here: ")
    assert word in why


def test_an_answer_is_always_one_line(tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    broken.write_text("#!/bin/sh\nexit 3\n")
    broken.chmod(0o755)
    assert "could not be tried" in str(why_no_isolation(str(broken)))
    assert "could not be tried" in str(why_no_isolation(str(tmp_path / "absent")))


def test_only_what_lies_below_dev_can_be_hidden() -> None:
    """Anything else would stay in sight, silently."""
    for path in ("/proc/driver", "dev/nvidia0", "/dev"):
        with pytest.raises(UsageError, match="below /dev"):
            Command("j.1", ("a",), "/l", "/e", hidden=(path,))
