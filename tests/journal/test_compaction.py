from __future__ import annotations

import errno
import os
import signal
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path

import pytest

from gpulaunch.core.facts import (
    AttemptEnded,
    AttemptLaunched,
    AttemptStarted,
    CodeChanged,
    Fact,
    GpuChanged,
    GpuReported,
    ImageKnown,
    JobsArchived,
    JobSet,
    JobSettled,
    JobsGiven,
    Noted,
    RunClosed,
)
from gpulaunch.core.ledger import Ledger
from gpulaunch.core.model import AttemptId, End, Exited, ImageSource, Instant, Job
from gpulaunch.journal import compaction, thinning
from gpulaunch.journal.append import BusyJournalError, Journal, ShorterJournal
from gpulaunch.journal.compaction import CannotCompactError, compact
from gpulaunch.journal.given import additions_in, facts_of
from gpulaunch.journal.history import ledger_of, names_in, stem_of
from gpulaunch.journal.read import Follower, read, replay
from gpulaunch.journal.rundir import RunDir
from tests.core.histories import play
from tests.journal.facts import added, opened

STEPS = ("history", "names", "draft", "tail", "replaced")


class Clock:
    """Times that go on by themselves."""

    def __init__(self) -> None:
        self.now = 1000

    def __call__(self) -> Instant:
        self.now += 1
        return Instant(float(self.now), 1.7e9 + self.now)


clock = Clock()


def job(name: str, state: str = "succeeded") -> list[Fact]:
    attempt = AttemptId(name, 1)
    return [
        *facts_of(f"addition of {name}", [Job(name, "true", given=True)]),
        added(name),
        AttemptLaunched(attempt, ("GPU-0",)),
        GpuChanged("GPU-0", "leased"),
        AttemptStarted(attempt, 7),
        AttemptEnded(attempt, End(Exited(0 if state == "succeeded" else 1))),
        JobSettled(name, state),  # type: ignore[arg-type]
        GpuChanged("GPU-0", "free"),
    ]


def write(journal: Journal, facts: Sequence[Fact]) -> None:
    assert journal.append([(fact, clock()) for fact in facts])


def put(journal: Journal, rundir: RunDir, names: Sequence[str], later: Sequence[Fact] = ()) -> None:
    """Archive these jobs; the `later` facts are recorded while the draft is being made."""
    size = journal.size
    assert size is not None
    draft = compact(rundir, size, names)
    write(journal, later)
    take(journal, draft, names)


def take(
    journal: Journal,
    draft: ShorterJournal,
    names: Sequence[str],
    step: Callable[[str], object] = lambda name: None,
) -> None:
    ledger = replay(journal.path)
    counted = Counter(ledger.archived)
    counted.update(ledger.jobs[name].state for name in names)
    journal.go_on_in(draft, step)
    by_state = {str(state): count for state, count in counted.items()}
    write(journal, [JobsArchived(tuple(names), draft.history, by_state)])


def everything(rundir: RunDir) -> list[str]:
    """The names of all jobs, those that are archived first; more than once where they are so."""
    ledger = replay(rundir.events)
    archived = [name for stem in ledger.history for name in ledger_of(rundir, stem).jobs]
    assert archived == [name for stem in ledger.history for name in names_in(rundir, stem)]
    assert sum(ledger.archived.values()) == len(archived)
    return archived + list(ledger.jobs)


@pytest.fixture
def journal(rundir: RunDir) -> Journal:
    made = Journal.create(rundir)
    write(made, [opened(standing="queue")])
    return made


NAMES = [f"j{number}" for number in range(8)]


def test_a_compacted_journal_says_the_same_without_the_archived_jobs(
    rundir: RunDir, journal: Journal
) -> None:
    for name in NAMES:
        write(journal, job(name, "failed" if name == "j2" else "succeeded"))
    before, size = replay(rundir.events), rundir.events.stat().st_size
    put(journal, rundir, NAMES[:5], job("late"))
    after = replay(rundir.events)
    assert list(after.jobs) == [*NAMES[5:], "late"]
    assert after.jobs["j6"] == before.jobs["j6"]
    assert after.archived == Counter(succeeded=4, failed=1)
    assert after.counts == Counter(succeeded=8, failed=1)
    assert after.archived_failure == ""  # by the fact that was recorded last
    assert rundir.events.stat().st_size < size
    assert everything(rundir) == [*NAMES, "late"]
    assert [a.name for a in additions_in(rundir.events)] == [
        f"addition of {name}" for name in [*NAMES[5:], "late"]
    ]
    (stem,) = after.history
    assert ledger_of(rundir, stem).jobs["j2"] == before.jobs["j2"]
    assert stem_of(rundir, after.history, "j2") == stem
    assert stem_of(rundir, after.history, "j6") is None
    write(journal, job("more"))
    journal.close()
    with Journal.reopen(rundir) as again:
        assert again.next == len(list(read(rundir.events))) + 1


def test_what_was_compacted_is_compacted_again(rundir: RunDir, journal: Journal) -> None:
    for round in range(5):
        names = [f"{round}-{number}" for number in range(4)]
        for name in names:
            write(journal, job(name))
        put(journal, rundir, names[:3] if round else names[:2])
    assert len(replay(rundir.events).history) == 5
    found = everything(rundir)
    assert len(found) == len(set(found)) == 20
    assert replay(rundir.events).counts["succeeded"] == 20


def test_the_journal_does_not_grow_with_the_jobs_that_it_has_seen(
    rundir: RunDir, journal: Journal
) -> None:
    sizes = []
    for round in range(12):
        names = [f"{round}-{number}" for number in range(20)]
        for name in names:
            write(journal, [*job(name), Noted(f"{name} is over")])
        put(journal, rundir, [*([f"{round - 1}-19"] if round else []), *names[:19]])
        write(journal, [RunClosed("stopped"), opened(epoch=round + 2, standing="queue")])
        sizes.append(rundir.events.stat().st_size)
    assert sizes[-1] < sizes[6] + 1000, sizes


def test_the_last_change_of_each_script_is_kept(rundir: RunDir, journal: Journal) -> None:
    write(journal, [CodeChanged("a.py", 1.0, 1, 2), CodeChanged("b.py", 2.0, 1, 2), *job("x")])
    write(journal, [CodeChanged("a.py", 3.0, 2, 2), *job("y")])
    before = replay(rundir.events).code_changes
    put(journal, rundir, ["x"])
    after = replay(rundir.events)
    assert after.code_changes == before
    assert list(after.code_changes) == ["b.py", "a.py"]
    assert "x" not in after.jobs


@pytest.mark.parametrize("seed", range(150))
def test_any_history_of_a_core_is_compacted_without_a_loss(tmp_path: Path, seed: int) -> None:
    world = play(seed, 1, archives=False)
    side = world.sides[0]
    if side.crashes:  # the facts of the openings are not among the world's
        return
    names = side.run.archivable(seed % 3)
    rundir = RunDir.create(tmp_path, "fold", datetime(2026, 11, 20))
    with Journal.create(rundir) as journal:
        gpus = tuple(place.gpu for place in world.cards.values())
        write(journal, [opened(gpus=gpus), *side.facts])
        before = replay(rundir.events)
        if not names:
            return
        put(journal, rundir, names)
    after = replay(rundir.events)
    assert {**after.jobs, **ledger_of(rundir, after.history[0]).jobs} == before.jobs
    assert sorted(everything(rundir)) == sorted(before.jobs)


@pytest.mark.parametrize(
    "lost",
    [
        JobSet("j7", {"priority": "5"}),
        ImageKnown(ImageSource("img", "docker"), "sha256:1", "sha256:1", "docker"),
    ],
)
def test_what_a_compaction_would_lose_is_refused(
    rundir: RunDir, journal: Journal, monkeypatch: pytest.MonkeyPatch, lost: Fact
) -> None:
    for name in NAMES:
        write(journal, job(name))
    write(journal, [lost])
    divide = thinning.Thinning.divide

    def broken(self: thinning.Thinning, index: int, fact: Fact) -> thinning.Two:
        return (None, None) if fact == lost else divide(self, index, fact)

    monkeypatch.setattr(thinning.Thinning, "divide", broken)
    held = rundir.events.read_bytes()
    with pytest.raises(CannotCompactError, match="would not say the same"):
        put(journal, rundir, NAMES[:3])
    assert rundir.events.read_bytes() == held


def test_a_report_of_the_driver_stays_with_the_attempts_that_it_names(
    rundir: RunDir, journal: Journal
) -> None:
    for name in NAMES[:4]:
        write(journal, job(name))
    both = (AttemptId("j0", 1), AttemptId("j3", 1))
    write(journal, [GpuReported("GPU-0", "Xid 31", both)])
    put(journal, rundir, NAMES[:2])
    after = replay(rundir.events)
    assert after.jobs["j3"].attempts[0].reports == ["Xid 31"]
    assert ledger_of(rundir, after.history[0]).jobs["j0"].attempts[0].reports == ["Xid 31"]


def test_an_attempt_that_began_behind_an_archived_one_keeps_its_cards(
    rundir: RunDir, journal: Journal
) -> None:
    first, then = AttemptId("first", 1), AttemptId("then", 1)
    write(
        journal,
        [
            added("first"),
            added("then"),
            AttemptLaunched(first, ("GPU-0",)),
            AttemptStarted(first, 7),
            AttemptLaunched(then, ("GPU-0",), worker=first, behind=first),
            AttemptEnded(first, End(Exited(0))),
            JobSettled("first", "succeeded"),
            AttemptStarted(then, 7),
        ],
    )
    before = replay(rundir.events)
    put(journal, rundir, ["first"])
    assert replay(rundir.events).jobs["then"] == before.jobs["then"]
    assert replay(rundir.events).jobs["then"].attempts[0].gpus == ("GPU-0",)


def test_an_addition_counts_as_long_as_one_of_its_jobs_is_left(
    rundir: RunDir, journal: Journal
) -> None:
    jobs = [Job(f"j{number}", "true", given=True) for number in range(300)]
    write(journal, [*facts_of("many", jobs), *(added(each.name) for each in jobs)])
    over: list[Fact] = []
    for each in jobs:
        over += [JobSettled(each.name, "cancelled")]
    write(journal, over)
    put(journal, rundir, [each.name for each in jobs[5:]])
    (addition,) = additions_in(rundir.events)
    assert [each.name for each in addition.jobs] == [f"j{number}" for number in range(5)]
    put(journal, rundir, [f"j{number}" for number in range(5)])
    assert list(additions_in(rundir.events)) == []
    kinds = {type(fact) for fact, _ in read(rundir.events)}
    assert JobsGiven not in kinds


# ── A launcher that dies, a full disk, a rival ──────────────────────────────────────────────────


@pytest.mark.parametrize("fatal", STEPS)
@pytest.mark.parametrize("before", [0, 1])
def test_a_sigkill_at_any_step_leaves_each_job_exactly_once(
    rundir: RunDir, journal: Journal, fatal: str, before: int
) -> None:
    names = [f"old{number}" for number in range(4)]
    for name in names:
        write(journal, job(name))
    if before:
        put(journal, rundir, names[:3])
    for name in NAMES:
        write(journal, job(name))

    def die(step: str) -> None:
        if step == fatal:
            os.kill(os.getpid(), signal.SIGKILL)

    child = os.fork()
    if not child:
        try:
            size = journal.size
            assert size is not None
            draft = compact(rundir, size, NAMES[:5], die)
            write(journal, job("late"))
            take(journal, draft, NAMES[:5], die)
        finally:
            os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status)
    os.close(journal._fd)  # the lock is the open file's, which the child shared
    found = everything(rundir)
    wanted = [*names, *NAMES, *(["late"] if fatal in ("tail", "replaced") else [])]
    assert sorted(found) == sorted(wanted)
    assert replay(rundir.events).counts["succeeded"] == len(wanted)
    with Journal.reopen(rundir) as again:
        left = [name for name in NAMES[:5] if name in replay(rundir.events).jobs]
        if left:
            put(again, rundir, left)
        write(again, job("new"))
    assert sorted(everything(rundir)) == sorted([*wanted, "new"])
    assert not list(rundir.path.glob(".events-*"))


@pytest.mark.parametrize("where", ["_write", "_write_names"])
def test_a_full_disk_while_the_draft_is_written_changes_nothing(
    rundir: RunDir, journal: Journal, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    for name in NAMES:
        write(journal, job(name))
    held = rundir.events.read_bytes()

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(compaction, where, full)
        with pytest.raises(OSError, match="No space"):
            put(journal, rundir, NAMES[:5])
    assert rundir.events.read_bytes() == held
    assert os.listdir(rundir.history) == []
    put(journal, rundir, NAMES[:5])
    assert everything(rundir) == NAMES


def test_a_disk_that_is_full_for_the_newest_lines_changes_nothing(
    rundir: RunDir, journal: Journal
) -> None:
    for name in NAMES:
        write(journal, job(name))
    size = journal.size
    assert size is not None
    draft = compact(rundir, size, NAMES[:5])
    write(journal, job("late"))
    real = journal._write

    def torn(fd: int, data: bytes) -> int:
        if len(data) > 9:
            return real(fd, data[:9])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    journal._write = torn
    with pytest.raises(OSError, match="No space"):
        journal.go_on_in(draft)
    journal._write = real
    write(journal, job("later"))
    assert everything(rundir) == [*NAMES, "late", "later"]
    assert not list(rundir.path.glob(".events-*"))


def test_a_torn_line_behind_a_compacted_journal_is_cut_off(
    rundir: RunDir, journal: Journal
) -> None:
    for name in NAMES:
        write(journal, job(name))
    put(journal, rundir, NAMES[:5])
    journal.close()
    with open(rundir.events, "ab") as file:
        file.write(b'{"n":77,"t":"20')
    assert everything(rundir) == NAMES
    with Journal.reopen(rundir) as again:
        write(again, job("new"))
    assert everything(rundir) == [*NAMES, "new"]


def test_a_damaged_journal_is_not_compacted(rundir: RunDir, journal: Journal) -> None:
    for name in NAMES:
        write(journal, job(name))
    text = bytearray(rundir.events.read_bytes())
    text[len(text) // 2] ^= 1
    rundir.events.write_bytes(text)
    size = journal.size
    assert size is not None
    with pytest.raises(CannotCompactError, match="is damaged"):
        compact(rundir, size, NAMES[:2])


def test_no_other_launcher_can_take_the_run_at_any_step(rundir: RunDir, journal: Journal) -> None:
    for name in NAMES:
        write(journal, job(name))
    refused = []

    def rival(step: str) -> None:
        with pytest.raises(BusyJournalError):
            Journal.reopen(rundir)
        refused.append(step)

    size = journal.size
    assert size is not None
    take(journal, compact(rundir, size, NAMES[:5], rival), NAMES[:5], rival)
    rival("over")
    assert refused == [*STEPS, "over"]
    assert not journal.gone
    journal.close()
    Journal.reopen(rundir).close()


def test_a_launcher_that_had_opened_the_old_file_locks_the_new_one(
    rundir: RunDir, journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in NAMES:
        write(journal, job(name))
    from gpulaunch.journal import append

    claim, went = append._claim, []

    def between(path: Path, fd: int) -> None:
        if not went:
            went.append(fd)
            put(journal, rundir, NAMES[:5])
            journal.close()
        claim(path, fd)

    monkeypatch.setattr(append, "_claim", between)
    with Journal.reopen(rundir) as again:
        assert not again.gone
        write(again, job("new"))
    assert everything(rundir) == [*NAMES, "new"]


# ── Who reads while it happens ──────────────────────────────────────────────────────────────────


def facts_seen(follower: Follower, piece: bool = False) -> list[Fact]:
    return [fact for fact, _ in follower.read(piece)]


@pytest.mark.parametrize("piece", [False, True])
def test_a_follower_sees_every_fact_once_through_compactions(
    rundir: RunDir, journal: Journal, piece: bool
) -> None:
    written: list[Fact] = [opened(standing="queue")]

    def record(facts: Sequence[Fact]) -> None:
        written.extend(facts)
        write(journal, facts)

    def archive(names: Sequence[str]) -> None:
        put(journal, rundir, names)
        (last,) = [fact for fact, _ in list(read(rundir.events))[-1:]]
        written.append(last)

    with Follower(rundir.events) as follower:
        seen: list[Fact] = []
        for round in range(4):
            names = [f"{round}-{number}" for number in range(4)]
            for name in names:
                record(job(name))
            if round % 2:
                seen += facts_seen(follower, piece)
            record(job(f"{round}-late"))
            archive(names)
            record(job(f"{round}-later"))
            seen += facts_seen(follower, piece)
        while more := facts_seen(follower, piece):
            seen += more
        assert seen == written
        assert not follower.faults
        ledger = Ledger()
        for fact, at in read(rundir.events):
            ledger.apply(fact, at)
        followed = Ledger()
        for fact in seen:
            followed.apply(fact, Instant(1.0, 1.0))
        assert followed.jobs.keys() == ledger.jobs.keys()
        assert followed.counts == ledger.counts
        assert followed.archived == ledger.archived
        assert followed.history == ledger.history


def test_a_follower_that_missed_a_compaction_begins_anew(rundir: RunDir, journal: Journal) -> None:
    ledger = Ledger()
    with Follower(rundir.events) as follower:
        for name in NAMES:
            write(journal, job(name))
        for fact, at in follower.read():
            ledger.apply(fact, at)
        put(journal, rundir, NAMES[:3])
        write(journal, job("between"))
        put(journal, rundir, NAMES[3:6])
        write(journal, job("late"))
        for fact, at in follower.read():
            ledger.apply(fact, at)
    assert ledger == replay(rundir.events)
    assert list(ledger.jobs) == ["j6", "j7", "between", "late"]


def test_a_follower_is_woken_by_what_comes_after_a_compaction(
    rundir: RunDir, journal: Journal
) -> None:
    for name in NAMES:
        write(journal, job(name))
    with Follower(rundir.events) as follower:
        follower.read()
        put(journal, rundir, NAMES[:3])
        assert follower.wait(60)
        follower.read()
        write(journal, job("late"))
        assert follower.wait(60)
        assert JobSettled("late", "succeeded") in facts_seen(follower)


def test_a_follower_that_is_ahead_of_the_draft_goes_on_where_it_was(
    rundir: RunDir, journal: Journal
) -> None:
    for name in NAMES:
        write(journal, job(name))
    with Follower(rundir.events) as follower:
        size = journal.size
        assert size is not None
        shorter = compact(rundir, size, NAMES[:5])
        write(journal, job("meanwhile"))
        assert JobSettled("meanwhile", "succeeded") in facts_seen(follower)
        write(journal, job("unread"))
        take(journal, shorter, NAMES[:5])
        write(journal, job("late"))
        seen = facts_seen(follower)
        assert [type(fact) for fact in seen if isinstance(fact, JobsArchived)] == [JobsArchived]
        settled = [fact.name for fact in seen if isinstance(fact, JobSettled)]
        assert settled == ["unread", "late"]
        assert not follower.faults
