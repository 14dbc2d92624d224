from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from zlib import crc32

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from gpulaunch import __version__
from gpulaunch.base.errors import UsageError
from gpulaunch.core import resume
from gpulaunch.core.causes import Quoted
from gpulaunch.core.events import Submitted
from gpulaunch.core.facts import (
    AttemptEnded,
    AttemptFact,
    AttemptLaunched,
    AttemptStarted,
    Fact,
    GpuChanged,
    GpuReported,
    JobDelayed,
    JobFact,
    JobRequeued,
    JobSettled,
    Noted,
    RunClosed,
    StopAsked,
)
from gpulaunch.core.ledger import Ledger
from gpulaunch.core.model import AttemptId, Demand, End, Exited, Failure, Instant, Job, Signaled
from gpulaunch.core.run import Run
from gpulaunch.core.state import OnCards, RunConfig
from gpulaunch.journal import codec
from gpulaunch.journal import manifest as manifests
from gpulaunch.journal.append import Journal
from gpulaunch.journal.read import (
    Damage,
    DamagedJournalError,
    Fault,
    Follower,
    Foreign,
    OtherFormatError,
    Watch,
    read,
    replay,
)
from gpulaunch.journal.rundir import RunDir
from tests.helpers import open_files, wait_until
from tests.journal.facts import added, opened
from tests.journal.test_append import ROOT, notes

A1, A2 = AttemptId("a", 1), AttemptId("a", 2)
HISTORY: list[Fact] = [
    opened(),
    added("a"),
    added("b"),
    GpuChanged("GPU-0", "leased"),
    AttemptLaunched(A1, ("GPU-0",)),
    AttemptStarted(A1, 99),
    AttemptEnded(A1, End(Signaled(9), Failure("signal"), leftovers=2), charged=True),
    JobDelayed("a", Quoted("again in 0.1 s"), 0.1),
    AttemptLaunched(A2, ("GPU-0",)),
    AttemptStarted(A2, 100),
    AttemptEnded(A2, End(Exited(0))),
    JobSettled("a", "succeeded"),
    JobSettled("b", "cancelled", Quoted("asked")),
    RunClosed("failed", Quoted("1 of 2 jobs did not succeed")),
]


def test_a_journal_of_another_form_is_refused_with_one_line(rundir: RunDir) -> None:
    old = json.loads(codec.encode(1, opened(version="0.0.1"), Instant(1.5, 1.5)))
    del old["c"], old["format"]
    raw = codec.to_json(old)
    rundir.events.write_bytes(raw[:-1] + b',"c":"%08x"}\n' % crc32(raw))
    with pytest.raises(OtherFormatError) as refused:
        replay(rundir.events)
    assert str(refused.value) == (
        f"{rundir.events} was written by gpulaunch 0.0.1, in a form that gpulaunch"
        f" {__version__} does not read: use that version for this run"
    )


def test_the_replayed_state_equals_the_live_one(rundir: RunDir) -> None:
    live = Ledger()
    with Journal.create(rundir) as journal:
        for fact in HISTORY:
            at = codec.now()
            journal.append([(fact, at)])
            live.apply(fact, at)
            assert replay(rundir.events) == live


def test_a_run_that_is_not_there_is_a_clear_line(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"holds no run: it has no events\.jsonl"):
        replay(tmp_path / "events.jsonl")
    with pytest.raises(UsageError, match="holds no run"):
        Follower(tmp_path / "events.jsonl")


def test_a_journal_that_speaks_of_jobs_it_never_named_is_damaged(rundir: RunDir) -> None:
    with Journal.create(rundir) as journal:
        journal.append([(opened(), codec.now()), (JobSettled("x", "failed"), codec.now())])
    with pytest.raises(DamagedJournalError, match="line 2 is damaged: it speaks of 'x'"):
        replay(rundir.events)


def sealed(body: dict[str, object]) -> bytes:
    raw = codec.to_json(body)
    return raw[:-1] + b',"c":"%08x"}\n' % crc32(raw)


def test_a_newer_version_s_fact_is_left_out_and_names_that_version(rundir: RunDir) -> None:
    with Journal.create(rundir) as journal:
        journal.append([(opened(version="9.1.0"), codec.now())])
    with open(rundir.events, "ab") as file:
        file.write(sealed({"n": 2, "t": codec.iso(0), "m": 0.0, "e": "gpu_sang"}))
        file.write(codec.encode(3, Noted("after"), codec.now()))
    faults: list[Fault] = []
    assert [fact for fact, _ in read(rundir.events, faults)] == [
        opened(version="9.1.0"),
        Noted("after"),
    ]
    (fault,) = faults
    assert isinstance(fault, Foreign)
    assert (fault.line, fault.version, fault.what) == (2, "9.1.0", "the fact 'gpu_sang'")


def test_a_newer_version_s_opening_names_that_version(rundir: RunDir) -> None:
    line = codec.encode(1, opened(version="9.1.0"), codec.now())
    body = json.loads(line)
    del body["c"]
    rundir.events.write_bytes(sealed(body | {"colour": "red"}))
    faults: list[Fault] = []
    assert list(read(rundir.events, faults)) == []
    (fault,) = faults
    assert isinstance(fault, Foreign)
    assert fault.version == "9.1.0"
    assert "colour" in fault.what


def test_journals_larger_than_a_chunk_are_read_whole(rundir: RunDir) -> None:
    long = [(Noted(f"{i} " + "x" * 3000), Instant(0.0, float(i))) for i in range(1200)]
    with Journal.create(rundir) as journal:
        journal.append(long)
    assert rundir.events.stat().st_size > 3 << 20
    assert list(read(rundir.events)) == long
    with Follower(rundir.events) as follower:
        assert follower.read() == long
    with Journal.reopen(rundir) as journal:
        assert journal.next == 1201


# ── Following ───────────────────────────────────────────────────────────────────────────────────


def test_a_follower_gets_each_fact_once(rundir: RunDir) -> None:
    facts = notes(9)
    with Journal.create(rundir) as journal, Follower(rundir.events) as follower:
        assert follower.read() == []
        for start in (0, 3, 6):
            journal.append(facts[start : start + 3])
            assert follower.wait(30)
            assert follower.read() == facts[start : start + 3]
        assert follower.read() == []
        assert not follower.wait(0.01)


def test_a_follower_waits_for_the_rest_of_a_line_at_every_byte(rundir: RunDir) -> None:
    facts = notes(2)
    lines = [codec.encode(i, *fact) for i, fact in enumerate(facts, 1)]
    whole = b"".join(lines)
    for cut in range(len(whole) + 1):
        rundir.events.write_bytes(whole[:cut])
        with Follower(rundir.events) as follower:
            got = follower.read()
            with open(rundir.events, "ab") as file:
                file.write(whole[cut:])
            assert got + follower.read() == facts


def test_a_follower_is_not_fooled_by_a_torn_line_that_is_cut_off(rundir: RunDir) -> None:
    first, second = notes(2)
    rundir.events.write_bytes(codec.encode(1, *first) + b'{"n":2,"t":"1999-12-31T')
    with Follower(rundir.events) as follower:
        assert follower.read() == [first]
        with Journal.reopen(rundir) as journal:
            journal.append([second])
        assert follower.read() == [second]


def test_a_follower_of_a_damaged_journal_goes_on_behind_the_damage(rundir: RunDir) -> None:
    facts = notes(3)
    with Journal.create(rundir) as journal:
        journal.append(facts[:2])
        data = bytearray(rundir.events.read_bytes())
        data[20] ^= 1
        with open(rundir.events, "r+b") as file:
            file.write(bytes(data))
        with Follower(rundir.events) as follower:
            assert follower.read() == facts[1:2]
            assert [fault.lost for fault in follower.faults] == [True]
            journal.append(facts[2:])
            assert follower.read() == facts[2:]
            assert len(follower.faults) == 1


B1, C1 = AttemptId("b", 1), AttemptId("c", 1)
LONG: list[Fact] = [
    opened(),
    *(added(name) for name in "abcd"),
    GpuChanged("GPU-0", "leased"),
    AttemptLaunched(A1, ("GPU-0",)),
    AttemptStarted(A1, 99),
    GpuReported("GPU-0", "Xid 31", (A1,)),
    AttemptEnded(A1, End(Signaled(9), Failure("signal")), charged=True),
    JobDelayed("a", Quoted("again in 1 s"), 1.0),
    AttemptLaunched(A2, ("GPU-0",)),
    AttemptStarted(A2, 100),
    AttemptEnded(A2, End(Exited(0))),
    JobSettled("a", "succeeded"),
    AttemptLaunched(B1, ("GPU-0",)),
    AttemptStarted(B1, 101),
    AttemptEnded(B1, End(Exited(1), Failure("exit")), charged=True),
    JobSettled("b", "failed", Quoted("exited with status 1")),
    JobSettled("d", "skipped", Quoted("needs b, which failed")),
    StopAsked(Quoted("Ctrl-C")),
    RunClosed("stopped", None, 130),
    replace(opened(), epoch=2),
    JobRequeued("b", Quoted("again")),
    AttemptLaunched(C1, ("GPU-0",)),
    AttemptStarted(C1, 102),
    AttemptEnded(C1, End(Exited(0))),
    JobSettled("c", "succeeded"),
    RunClosed("failed", None, 1),
]


def about(fact: Fact) -> str:
    """The job that the fact is about; empty for none."""
    if isinstance(fact, AttemptFact):
        return fact.attempt.job
    return fact.name if isinstance(fact, JobFact) else ""


@settings(max_examples=300, deadline=None)
@given(st.sets(st.integers(0, len(LONG) - 1)))
@example({9, 13, 14})  # no end of either attempt of a
def test_any_lines_may_be_lost_and_jobs_whose_lines_are_whole_are_as_they_were(
    lost: set[int],
) -> None:
    lines = [codec.encode(n, fact, Instant(n, n)) for n, fact in enumerate(LONG, 1)]
    damaged = [b"?" + line[1:] if at in lost else line for at, line in enumerate(lines)]
    with TemporaryDirectory() as place:
        events = Path(place) / "events.jsonl"
        events.write_bytes(b"".join(lines))
        before = replay(events)
        events.write_bytes(b"".join(damaged))
        faults: list[Fault] = []
        ledger = replay(events, faults)
        with Follower(events) as follower:
            followed = Ledger()
            follower.fold(followed)
    named = {n for f in faults if isinstance(f, Damage) for n in range(f.first - 1, f.last)}
    assert named | {len(LONG) - 1} == lost | {len(LONG) - 1}, "a last line may be torn"
    assert {job.name: job.state for job in followed.jobs.values()} == {
        job.name: job.state for job in ledger.jobs.values()
    }
    assert ledger.counts.total() + ledger.vanished == len(ledger.jobs)
    assert min(ledger.counts.values(), default=0) >= 0
    for job in ledger.jobs.values():
        numbers = [attempt.id.number for attempt in job.attempts]
        assert numbers == list(range(1, len(numbers) + 1))
    under_way = [attempt.id.job for attempt in ledger.open_attempts()]
    assert len(under_way) == len(set(under_way)), "no job has two attempts under way"
    whole = set("abcd") - {about(LONG[at]) for at in lost}
    for name in whole:
        assert ledger.jobs[name].state == before.jobs[name].state
        assert len(ledger.jobs[name].attempts) == len(before.jobs[name].attempts)
    go_on(ledger, whole)


def go_on(ledger: Ledger, whole: set[str]) -> None:
    """Resume what is left: every job is there, and those that are known to be done stay so."""
    ledger.apply(replace(opened(), epoch=3), Instant(50, 50))
    jobs = [Job(name, "true", demand=Demand(gpus=1)) for name in "abcd"]
    plan = resume.resume(ledger, jobs)
    core = Run(opened().gpus, RunConfig(OnCards(4)), ledger)
    submitted = Submitted(plan.jobs, plan.requeue, plan.left)
    facts = core.handle([submitted], Instant(51, 51))
    again = {fact.name for fact in facts if isinstance(fact, JobRequeued)}
    assert ledger.jobs.keys() == set("abcd")
    for name in "abcd":
        assert ledger.jobs[name].state in ("waiting", "running", "succeeded"), "no job is lost"
        if name in whole & {"a", "c"}:
            assert name not in again
            assert ledger.jobs[name].state == "succeeded", "what is done is not run again"


@pytest.mark.parametrize("kind", [AttemptLaunched, AttemptEnded, JobSettled])
def test_a_success_stays_one_while_any_end_of_it_is_left(rundir: RunDir, kind: type[Fact]) -> None:
    at = max(n for n, fact in enumerate(LONG) if isinstance(fact, kind) and about(fact) == "c")
    lines = [codec.encode(n, fact, Instant(n, n)) for n, fact in enumerate(LONG, 1)]
    lines[at] = b"?" + lines[at][1:]
    rundir.events.write_bytes(b"".join(lines))
    ledger = replay(rundir.events)
    go_on(ledger, {"a"})
    assert ledger.jobs["c"].state == "succeeded"


def test_a_first_line_that_is_lost_is_made_good_by_the_manifest(rundir: RunDir) -> None:
    first = opened()
    manifests.write(
        rundir.manifest,
        manifests.collect(
            first.run, "fold", started=codec.iso(5), command=[], job_file=None, gpus=first.gpus
        ),
    )
    with Journal.create(rundir) as journal:
        journal.append([(fact, codec.now()) for fact in HISTORY])
    rundir.events.write_bytes(b"?" + rundir.events.read_bytes()[1:])
    ledger = replay(rundir.events)
    assert (ledger.opening.run, ledger.opening.name, ledger.state) == (first.run, "fold", "failed")
    assert list(ledger.gpus) == ["GPU-0"]


WRITER = """
import sys, time
from pathlib import Path
from gpulaunch.journal.append import Journal
from gpulaunch.journal.rundir import RunDir
from tests.journal.test_append import notes
journal = Journal.create(RunDir(Path(sys.argv[1])))
sys.stdin.readline()
for i in range(2000):
    journal.append(notes(1, i))
"""


def test_a_follower_keeps_up_with_another_process_without_polling(rundir: RunDir) -> None:
    command = [sys.executable, "-c", WRITER, str(rundir.path)]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, text=True) as writer:
        assert writer.stdin is not None
        wait_until(rundir.events.exists)
        got: list[str] = []
        with Follower(rundir.events) as follower:
            assert not follower._watch.polls
            assert not follower.wait(0.05)
            writer.stdin.write("go\n")
            writer.stdin.flush()
            while len(got) < 2000:
                assert follower.wait(30)
                got += [fact.text for fact, _ in follower.read() if isinstance(fact, Noted)]
        assert got == [f"note {i}" for i in range(2000)]


def test_a_follower_wakes_for_what_else_it_is_told_to_watch(rundir: RunDir) -> None:
    Journal.create(rundir).close()
    read_end, write_end = os.pipe()
    with Follower(rundir.events) as follower, open(read_end, "rb") as other:
        assert not follower.wait(0.01, [other])
        os.close(write_end)
        assert follower.wait(5, [other])


def test_a_follower_wakes_when_the_run_is_deleted(rundir: RunDir) -> None:
    Journal.create(rundir).close()
    with Follower(rundir.events) as follower:
        rundir.events.unlink()
        assert follower.wait(30)
        assert follower.read() == []


def test_a_watched_directory_tells_of_new_and_growing_files(tmp_path: Path) -> None:
    watch = Watch()
    try:
        watch.add(tmp_path)
        with open(tmp_path / "a.1.log", "ab", buffering=0) as log:
            assert watch.wait(30)
            log.write(b"x")
            assert watch.wait(30)
        assert not watch.wait(0)
    finally:
        watch.close()


def test_where_inotify_is_not_to_be_had_waiting_still_ends(rundir: RunDir) -> None:
    Journal.create(rundir).close()
    watch = Watch()
    watch.add(rundir.path / "not there")
    assert watch.polls
    assert watch.wait()
    assert not watch.wait(0.01)
    watch.close()


def test_reading_leaves_no_descriptor_behind(rundir: RunDir) -> None:
    with Journal.create(rundir) as journal:
        journal.append(notes(2))
    before = open_files()
    first = read(rundir.events)
    next(first)
    first.close()  # type: ignore[attr-defined]
    with Follower(rundir.events):
        pass
    replay_nothing = read(rundir.path / "nothing")
    with pytest.raises(UsageError):
        next(replay_nothing)
    assert not open_files() - before
