from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpulaunch.base.errors import UsageError
from gpulaunch.core.facts import Fact, Noted
from gpulaunch.core.model import Instant
from gpulaunch.journal import append, codec
from gpulaunch.journal.append import BusyJournalError, Journal
from gpulaunch.journal.read import Damage, Fault, read
from gpulaunch.journal.rundir import RunDir
from tests.helpers import open_files
from tests.journal.facts import opened

ROOT = Path(__file__).parents[2]


def notes(count: int, start: int = 0) -> list[tuple[Fact, Instant]]:
    return [(Noted(f"note {start + i}"), codec.now()) for i in range(count)]


def texts(path: Path, faults: list[Fault] | None = None) -> list[str]:
    return [fact.text for fact, _ in read(path, faults) if isinstance(fact, Noted)]


def test_what_is_appended_is_read_back_in_order(rundir: RunDir) -> None:
    facts = notes(5)
    with Journal.create(rundir) as journal:
        assert journal.append(facts[:2])
        assert journal.append(facts[2:])
        assert journal.sync()
        assert journal.next == 6
        assert list(read(rundir.events)) == facts
    assert rundir.events.stat().st_mode & 0o777 == 0o600


def test_a_journal_that_goes_on_counts_on(rundir: RunDir) -> None:
    with Journal.create(rundir) as journal:
        journal.append(notes(3))
    with Journal.reopen(rundir) as journal:
        assert journal.next == 4
        journal.append(notes(1, 3))
    assert texts(rundir.events) == ["note 0", "note 1", "note 2", "note 3"]


def test_a_directory_that_holds_a_run_is_not_made_another_s(rundir: RunDir) -> None:
    with Journal.create(rundir) as journal:
        journal.append([(opened(), codec.now())])
        with pytest.raises(UsageError, match="already holds a run"):
            Journal.create(rundir)


def test_a_run_that_another_began_and_ended_meanwhile_is_not_written_on(
    rundir: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock, waits = append.lock, [rundir]

    def locked(fd: int) -> bool:
        while waits:
            with Journal.create(waits.pop()) as quicker:
                quicker.append(notes(2))
        return lock(fd)

    monkeypatch.setattr(append, "lock", locked)
    with pytest.raises(UsageError, match="already holds a run"):
        Journal.create(rundir)
    assert texts(rundir.events) == ["note 0", "note 1"]


def test_a_second_writer_is_refused_as_long_as_the_first_lives(rundir: RunDir) -> None:
    with Journal.create(rundir), pytest.raises(BusyJournalError):
        Journal.reopen(rundir)
    Journal.reopen(rundir).close()


def test_there_must_be_something_to_go_on_with(rundir: RunDir) -> None:
    with pytest.raises(UsageError, match="holds no run"):
        Journal.reopen(rundir)


def test_cut_at_every_byte_a_prefix_is_recovered(rundir: RunDir) -> None:
    facts = notes(6)
    with Journal.create(rundir) as journal:
        journal.append(facts)
    whole = rundir.events.read_bytes()
    for size in range(len(whole) + 1):
        rundir.events.write_bytes(whole[:size])
        kept = whole[:size].count(b"\n")
        assert list(read(rundir.events)) == facts[:kept]
        with Journal.reopen(rundir) as journal:
            assert journal.next == kept + 1
            assert rundir.events.stat().st_size == whole.rfind(b"\n", 0, size) + 1
            assert journal.append(facts[kept:])
        assert list(read(rundir.events)) == facts


def test_a_flipped_byte_costs_its_line_alone(rundir: RunDir) -> None:
    with Journal.create(rundir) as journal:
        journal.append(notes(4))
    whole = rundir.events.read_bytes()
    second = whole.index(b"\n") + 1
    third = whole.index(b"\n", second) + 1
    for where in range(second, third - 1):
        damaged = bytearray(whole)
        damaged[where] ^= 0x40
        rundir.events.write_bytes(bytes(damaged))
        faults: list[Fault] = []
        assert texts(rundir.events, faults) == ["note 0", "note 2", "note 3"]
        (fault,) = faults
        assert isinstance(fault, Damage)
        assert (fault.first, fault.last, fault.byte) == (2, 2, second)
        with Journal.reopen(rundir) as journal:
            assert journal.next == 5
        assert rundir.events.read_bytes() == bytes(damaged)


def test_a_newline_that_is_lost_costs_both_its_lines(rundir: RunDir) -> None:
    with Journal.create(rundir) as journal:
        journal.append(notes(4))
    lines = rundir.events.read_bytes().split(b"\n")
    rundir.events.write_bytes(b"\n".join([lines[0], lines[1] + b"J" + lines[2], *lines[3:]]))
    faults: list[Fault] = []
    assert texts(rundir.events, faults) == ["note 0", "note 3"]
    (fault,) = faults
    assert isinstance(fault, Damage)
    assert (fault.first, fault.last) == (2, 3)


@pytest.mark.parametrize(
    ("keep", "left", "lost"),
    [
        ([0, 2, 3], [0, 2, 3], [(2, 2)]),
        ([0, 1, 1, 2], [0, 1, 2], [(3, 2)]),
        ([1, 2], [1, 2], [(1, 1)]),
        ([0, 2, 1], [0, 2], [(2, 2), (4, 3)]),
        ([3], [3], [(1, 3)]),
    ],
)
def test_lines_lost_doubled_or_swapped_cost_no_other(
    rundir: RunDir, keep: list[int], left: list[int], lost: list[tuple[int, int]]
) -> None:
    with Journal.create(rundir) as journal:
        journal.append(notes(4))
    lines = rundir.events.read_bytes().splitlines(keepends=True)
    rundir.events.write_bytes(b"".join(lines[i] for i in keep))
    faults: list[Fault] = []
    assert texts(rundir.events, faults) == [f"note {i}" for i in left]
    assert [(f.first, f.last) for f in faults if isinstance(f, Damage)] == lost
    with Journal.reopen(rundir) as journal:
        assert journal.next == max(left) + 2


def test_a_last_line_that_is_damaged_is_kept_and_counts(rundir: RunDir) -> None:
    with Journal.create(rundir) as journal:
        journal.append(notes(3))
    damaged = bytearray(rundir.events.read_bytes())
    damaged[-20] ^= 1
    rundir.events.write_bytes(bytes(damaged))
    faults: list[Fault] = []
    assert texts(rundir.events, faults) == ["note 0", "note 1"]
    (fault,) = faults
    assert isinstance(fault, Damage)
    assert (fault.first, fault.last, fault.torn) == (3, 3, False)
    with Journal.reopen(rundir) as journal:
        assert journal.next == 4
        journal.append(notes(1, 3))
    assert texts(rundir.events) == ["note 0", "note 1", "note 3"]


def test_zeros_in_the_middle_cost_the_lines_that_they_cover(rundir: RunDir) -> None:
    with Journal.create(rundir) as journal:
        journal.append(notes(200))
    data = bytearray(rundir.events.read_bytes())
    data[4096:8192] = bytes(4096)
    rundir.events.write_bytes(bytes(data))
    faults: list[Fault] = []
    left = texts(rundir.events, faults)
    (fault,) = faults
    assert isinstance(fault, Damage)
    gone = {f"note {n - 1}" for n in range(fault.first, fault.last + 1)}
    assert left == [f"note {n}" for n in range(200) if f"note {n}" not in gone]
    assert 4096 // 130 < len(gone) < 4096 // 60


def test_a_file_cut_within_a_letter_loses_that_line(rundir: RunDir) -> None:
    with Journal.create(rundir) as journal:
        journal.append([(Noted("one"), codec.now()), (Noted("zwölf"), codec.now())])
    whole = rundir.events.read_bytes()
    rundir.events.write_bytes(whole[: whole.index("ö".encode()) + 1])
    faults: list[Fault] = []
    assert texts(rundir.events, faults) == ["one"]
    (fault,) = faults
    assert isinstance(fault, Damage)
    assert (fault.first, fault.torn) == (2, True)


def test_zeros_that_a_power_cut_left_behind_are_cut_off(rundir: RunDir) -> None:
    with Journal.create(rundir) as journal:
        journal.append(notes(2))
    whole = rundir.events.read_bytes()
    rundir.events.write_bytes(whole + b"\0" * 4096)
    with Journal.reopen(rundir) as journal:
        assert rundir.events.read_bytes() == whole
        assert journal.next == 3


# ── Full disks ──────────────────────────────────────────────────────────────────────────────────


class Disk:
    """A disk of so many bytes that fails as the kernel does: short write first, then ENOSPC."""

    def __init__(self, size: int, scrawl: bool = False) -> None:
        self.size = size
        self.scrawl = scrawl

    def write(self, fd: int, data: bytes) -> int:
        taken = max(0, min(self.size - os.fstat(fd).st_size, len(data)))
        if not taken:
            if self.scrawl:
                os.write(fd, data[: len(data) // 2])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return os.write(fd, data[:taken])


def on(disk: Disk, rundir: RunDir) -> Journal:
    Journal.create(rundir).close()
    fd = os.open(rundir.events, os.O_WRONLY | os.O_APPEND)
    return Journal(rundir.events, fd, write=disk.write)


@given(
    st.lists(st.tuples(st.integers(1, 4), st.integers(0, 300)), min_size=1, max_size=12),
    st.booleans(),
)
def test_a_full_disk_tears_no_line_and_loses_none(
    steps: list[tuple[int, int]], scrawl: bool
) -> None:
    path = Path("/dev/shm" if os.access("/dev/shm", os.W_OK) else "/tmp")
    base = path / f"gpulaunch-test-{os.getpid()}-{threading.get_ident()}"
    rundir = RunDir(base)
    shutil.rmtree(base, ignore_errors=True)
    base.mkdir()
    try:
        _fill_and_free(rundir, steps, scrawl)
    finally:
        shutil.rmtree(base)


def _fill_and_free(rundir: RunDir, steps: list[tuple[int, int]], scrawl: bool) -> None:
    disk = Disk(0, scrawl)
    given_so_far: list[tuple[Fact, Instant]] = []
    with on(disk, rundir) as journal:
        for count, room in steps:
            disk.size += room
            facts = notes(count, len(given_so_far))
            given_so_far += facts
            whole = journal.append(facts)
            on_file = list(read(rundir.events))
            assert rundir.events.read_bytes().endswith(b"\n") or not on_file
            assert on_file == given_so_far[: len(given_so_far) - journal.pending]
            assert whole == (journal.pending == 0) == (journal.failure is None)
        disk.size = 1 << 20
        assert journal.retry()
        assert list(read(rundir.events)) == given_so_far


def test_a_full_disk_is_named(rundir: RunDir) -> None:
    with on(Disk(10), rundir) as journal:
        assert not journal.append(notes(1))
        assert journal.failure is not None
        assert journal.failure.errno == errno.ENOSPC


CHILD = """
import resource, signal, sys
from pathlib import Path
from gpulaunch.journal.append import Journal
from gpulaunch.journal.rundir import RunDir
from tests.helpers import open_files
from tests.journal.facts import opened
from tests.journal.test_append import notes
journal = Journal.create(RunDir(Path(sys.argv[1])))
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))
acknowledged = [journal.append(notes(1, i)) for i in range(30)]
print(acknowledged.count(True), journal.pending, journal.failure.strerror, flush=True)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
if sys.argv[2] == "retry":
    assert journal.retry()
"""


def run_child(rundir: RunDir, then: str) -> str:
    command = [sys.executable, "-c", CHILD, str(rundir.path), then]
    done = subprocess.run(
        command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True, timeout=60
    )
    return done.stdout


def test_a_file_that_may_not_grow_keeps_what_was_acknowledged(rundir: RunDir) -> None:
    acknowledged, pending, *why = run_child(rundir, "die").split()
    assert " ".join(why) == os.strerror(errno.EFBIG)
    assert int(acknowledged) + int(pending) == 30
    assert len(texts(rundir.events)) == int(acknowledged) > 0
    assert rundir.events.read_bytes().endswith(b"\n")


def test_a_file_that_may_grow_again_gets_what_was_pending(rundir: RunDir) -> None:
    run_child(rundir, "retry")
    assert texts(rundir.events) == [f"note {i}" for i in range(30)]


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    if os.geteuid() != 0:
        pytest.skip("mounting a tmpfs needs root")
    disk = tmp_path / "disk"
    disk.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(disk)]
    if subprocess.run(command, check=False, capture_output=True).returncode:
        pytest.skip("mounting is not allowed here")
    try:
        yield disk
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


def test_a_disk_that_is_really_full(tiny_disk: Path) -> None:
    rundir = RunDir(tiny_disk)
    ballast = tiny_disk / "ballast"
    ballast.write_bytes(b"x" * 40960)
    with Journal.create(rundir) as journal:
        count = 0
        while journal.append(notes(7, 7 * count)):
            count += 1
        journal.append(notes(7, 7 * count + 7))
        assert journal.failure is not None
        assert journal.failure.errno == errno.ENOSPC
        on_file = texts(rundir.events)
        assert len(on_file) == 7 * (count + 2) - journal.pending
        ballast.unlink()
        assert journal.retry()
        assert texts(rundir.events) == [f"note {i}" for i in range(7 * (count + 2))]


def test_lines_that_the_disk_refuses_late_are_written_again(rundir: RunDir) -> None:
    broken = True

    def sync(fd: int) -> None:
        if broken:
            os.ftruncate(fd, 0)  # the kernel gave up on the pages
            raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))
        os.fdatasync(fd)

    Journal.create(rundir).close()
    fd = os.open(rundir.events, os.O_WRONLY | os.O_APPEND)
    with Journal(rundir.events, fd, sync=sync) as journal:
        assert journal.append(notes(3))
        assert not journal.sync()
        assert journal.pending == 3
        assert not journal.sync()
        assert journal.retry()
        broken = False
        assert journal.append(notes(1, 3))
        assert journal.sync()
    assert texts(rundir.events) == [f"note {i}" for i in range(4)]


# ── Directories that go away ────────────────────────────────────────────────────────────────────


def delete(rundir: RunDir) -> None:
    shutil.rmtree(rundir.path)


def move(rundir: RunDir) -> None:
    rundir.path.rename(rundir.path.with_name("elsewhere"))


def replace(rundir: RunDir) -> None:
    move(rundir)
    rundir.path.mkdir()
    rundir.events.write_bytes(b"")


def unlink(rundir: RunDir) -> None:
    rundir.events.unlink()


@pytest.mark.parametrize(
    ("happens", "said"),
    [
        (delete, "deleted or moved"),
        (move, "deleted or moved"),
        (replace, "events.jsonl was deleted or replaced"),
        (unlink, "events.jsonl was deleted or replaced"),
    ],
)
def test_a_run_directory_that_is_gone_is_noticed(
    rundir: RunDir, happens: Callable[[RunDir], None], said: str
) -> None:
    with Journal.create(rundir) as journal:
        assert journal.append(notes(1))
        assert not journal.gone
        happens(rundir)
        assert journal.gone
        assert not journal.append(notes(1))
        assert journal.pending == 1
        assert said in str(journal.failure)


def test_a_directory_that_comes_back_gets_what_was_pending(rundir: RunDir) -> None:
    away = rundir.path.with_name("away")
    with Journal.create(rundir) as journal:
        rundir.path.rename(away)
        assert not journal.append(notes(2))
        away.rename(rundir.path)
        assert journal.retry()
    assert texts(rundir.events) == ["note 0", "note 1"]


def test_a_journal_that_is_closed_twice_is_closed(rundir: RunDir) -> None:
    before = open_files()
    journal = Journal.create(rundir)
    journal.close()
    journal.close()
    assert not open_files() - before


def test_no_descriptor_reaches_the_processes_that_are_started(rundir: RunDir) -> None:
    with Journal.create(rundir) as journal:
        assert not os.get_inheritable(journal._fd)
