"""The code of a run's jobs is looked at, and a change of it is told with how many had started."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from gpulaunch.base.loop import Loop
from gpulaunch.core import facts as f
from gpulaunch.core.ledger import Ledger
from gpulaunch.core.model import AttemptId, End, Exited, Instant, Job, JobState
from gpulaunch.core.run import Run
from gpulaunch.diagnose.lint.report import JobsCode
from gpulaunch.run.code_watch import (
    LOOK_EVERY,
    START_AFTER,
    TOLD_AT_MOST_EVERY,
    CodeLook,
    CodeMinder,
    CodeNews,
    code_changed,
)
from tests.helpers import descriptors_left, wait_until

EPOCH = 1_700_000_000.0


class Clocks:
    """Both clocks, which go only as they are told."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def mono(self) -> float:
        return self.seconds

    def utc(self) -> float:
        return EPOCH + self.seconds


@pytest.fixture
def clocks() -> Clocks:
    return Clocks()


class Looked:
    """Who looks at files of which every job of an entry is said to run all."""

    def __init__(self, clocks: Clocks, monkeypatch: pytest.MonkeyPatch) -> None:
        self.files: dict[str, set[int]] = {}
        monkeypatch.setattr(JobsCode, "of", lambda code, jobs: self.files)
        self.look = CodeLook(clocks.mono, clocks.utc)

    def follow(self, *files: Path, groups: frozenset[int] = frozenset({0})) -> None:
        self.files = {str(path): set(groups) for path in files}

    def __call__(self, since: float | None = None) -> list[CodeNews]:
        return self.look.look((), since)


@pytest.fixture
def look(clocks: Clocks, monkeypatch: pytest.MonkeyPatch) -> Looked:
    return Looked(clocks, monkeypatch)


def written(path: Path, text: str, at: float = EPOCH - 1000) -> Path:
    path.write_text(text)
    os.utime(path, (at, at))
    return path


def paths(news: list[CodeNews]) -> list[str]:
    return [Path(one.path).name for one in news]


# ── Looking ─────────────────────────────────────────────────────────────────────────────────────


def test_a_file_with_another_time_or_size_is_another_one(
    look: Looked, tmp_path: Path, clocks: Clocks
) -> None:
    file = written(tmp_path / "train.py", "x = 1")
    look.follow(file, groups=frozenset({0, 2}))
    assert look() == []
    assert look() == []
    clocks.seconds = 7.0
    written(file, "x = 2", EPOCH + 3)
    assert look() == [CodeNews(str(file), EPOCH + 3, frozenset({0, 2}))]
    assert look() == []
    clocks.seconds = 100.0
    written(file, "x = 10", EPOCH + 3)
    assert look() == [CodeNews(str(file), EPOCH + 100, frozenset({0, 2}))]


@pytest.mark.parametrize("at", [-2000, 500], ids=["older than before", "ahead of the clock"])
def test_a_time_that_cannot_be_is_not_told(
    look: Looked, tmp_path: Path, clocks: Clocks, at: float
) -> None:
    file = written(tmp_path / "train.py", "x = 1")
    look.follow(file)
    look()
    clocks.seconds = 7.0
    written(file, "x = 2", EPOCH + at)
    assert [news.utc for news in look()] == [EPOCH + 7]


def test_a_file_that_an_editor_replaces_is_the_same_file(look: Looked, tmp_path: Path) -> None:
    file = written(tmp_path / "train.py", "x = 1")
    look.follow(file)
    look()
    file.unlink()
    assert look() == [], "it is gone for a moment"
    written(tmp_path / "new", "x = 2", EPOCH - 10)
    (tmp_path / "new").rename(file)
    assert paths(look()) == ["train.py"]


def test_what_changed_before_the_first_look_is_known_by_its_time(
    look: Looked, tmp_path: Path
) -> None:
    files = {name: written(tmp_path / name, "x", EPOCH + at) for name, at in
             (("old", -100), ("since", -5), ("ahead", 500))}  # fmt: skip
    look.follow(*files.values())
    found = look(EPOCH - 10)
    assert paths(found) == ["since"], "what lies in the future tells of a wrong clock"
    assert found[0].utc == EPOCH - 5


def test_who_saves_often_is_told_of_once_a_minute(
    look: Looked, tmp_path: Path, clocks: Clocks
) -> None:
    file = written(tmp_path / "train.py", "x = 0")
    look.follow(file)
    look()
    told = []
    for second in range(int(2 * TOLD_AT_MOST_EVERY)):
        clocks.seconds = second
        written(file, f"x = {second + 1}", EPOCH + second)
        told += look()
    assert len(told) == 2
    clocks.seconds += TOLD_AT_MOST_EVERY
    assert [news.utc for news in look()] == [EPOCH + 2 * TOLD_AT_MOST_EVERY - 1]


# ── Which files ─────────────────────────────────────────────────────────────────────────────────


def test_code_is_what_a_command_runs_and_what_that_imports_and_runs(tmp_path: Path) -> None:
    (tmp_path / "pkg").mkdir()
    for name, text in {
        "run.sh": "python train.py --lr 1\n",
        "train.py": "import pkg.model\nimport json\n",
        "pkg/__init__.py": "",
        "pkg/model.py": "x = 1\n",
        "unused.py": "",
        "vars": "A=1\n",
    }.items():
        (tmp_path / name).write_text(text)
    jobs = [
        Job("a", "bash run.sh", group=3, cwd=str(tmp_path), env_file=str(tmp_path / "vars")),
        Job("b", ("python", "train.py"), group=4, cwd=str(tmp_path)),
        Job("c", "echo hi", group=5, cwd=str(tmp_path)),
    ]
    found = {
        os.path.relpath(path, tmp_path): groups for path, groups in JobsCode().of(jobs).items()
    }
    both = {3, 4}
    assert found == {
        "run.sh": {3},
        "vars": {3},
        "train.py": both,
        "pkg/__init__.py": both,
        "pkg/model.py": both,
    }


# ── What is recorded ────────────────────────────────────────────────────────────────────────────


def ledger(**states: JobState) -> Ledger:
    """Jobs of entry 0, a second apart; those that do not wait were started."""
    made = Ledger()
    for second, (name, state) in enumerate(states.items()):
        at = Instant(float(second), EPOCH + second)
        made.apply(f.JobAdded(name, 0, 0, "v1"), at)
        if state != "waiting":
            made.apply(f.AttemptLaunched(AttemptId(name, 1), ()), at)
            made.apply(f.AttemptStarted(AttemptId(name, 1), 7), at)
        if state == "succeeded":
            made.apply(f.AttemptEnded(AttemptId(name, 1), End(Exited(0))), at)
            made.apply(f.JobSettled(name, "succeeded"), at)
    return made


def news(path: str = "/p/src/train.py", at: float = 100.0) -> CodeNews:
    return CodeNews(path, EPOCH + at, frozenset({0}))


def test_a_change_is_recorded_with_how_many_of_its_jobs_had_started() -> None:
    run = ledger(a="succeeded", b="running", c="waiting", d="waiting")
    run.apply(f.JobAdded("other", 1, 0, "v1"), Instant(9.0, EPOCH + 9))
    assert code_changed(news(), run, "/p") == f.CodeChanged("src/train.py", EPOCH + 100, 2, 4)
    earlier = code_changed(news(at=0.5), run, "/p")
    assert earlier is not None
    assert earlier.started == 1, "b began after that"
    elsewhere = code_changed(news("/q/lib.py"), run, "/p")
    assert elsewhere is not None
    assert elsewhere.path == "/q/lib.py"


def test_a_change_that_touches_no_job_or_every_one_is_none() -> None:
    assert code_changed(news(), ledger(a="waiting", b="waiting"), "/p") is None
    assert code_changed(news(), ledger(a="succeeded", b="succeeded"), "/p") is None
    assert code_changed(news(at=-1), ledger(a="running", b="waiting"), "/p") is None


def test_a_change_that_is_recorded_is_not_recorded_again() -> None:
    run = ledger(a="running", b="waiting")
    fact = code_changed(news(), run, "/p")
    assert fact is not None
    run.apply(fact, Instant(100.0, EPOCH + 100))
    assert code_changed(news(), run, "/p") is None
    assert code_changed(news(at=101), run, "/p") is not None


# ── When it is looked ───────────────────────────────────────────────────────────────────────────


class Minded:
    """A run whose one entry is a script, and who minds its code."""

    def __init__(self, clocks: Clocks, jobs: Sequence[Job] = ()) -> None:
        self.clocks, self.said, self.told = clocks, list[str](), list[f.CodeChanged]()
        self.loop = Loop(clocks.mono)
        self.run = Run(())
        self.minder = CodeMinder(self.run, self.loop, "/", self.told.append, self.said.append)

    def see(self, fact: f.Fact) -> None:
        at = Instant(self.clocks.seconds, self.clocks.utc())
        self.run.ledger.apply(fact, at)
        self.minder.see(fact, at, self.run.ledger)

    def pass_time(self, seconds: float = LOOK_EVERY) -> None:
        """Let it look, if it wants to, and wait until it has."""
        self.clocks.seconds += seconds
        self.loop.turn(block=False)
        wait_until(lambda: not _looking())
        self.loop.turn(block=False)

    def close(self) -> None:
        self.minder.close()
        self.loop.close()


def _looking() -> bool:
    return any("work_on" in thread.name for thread in threading.enumerate())


@pytest.fixture
def minded(clocks: Clocks) -> Iterator[Minded]:
    made = Minded(clocks)
    yield made
    made.close()


def test_it_is_looked_every_two_seconds(
    minded: Minded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = written(tmp_path / "train.py", "x = 1")
    monkeypatch.setattr(JobsCode, "of", lambda code, jobs: {str(file): {0}})
    for name in "ab":
        minded.see(f.JobAdded(name, 0, 0, "v1"))
    minded.see(f.AttemptLaunched(AttemptId("a", 1), ()))
    minded.pass_time(START_AFTER)
    written(file, "x = 2", EPOCH + 1.5)
    minded.pass_time(LOOK_EVERY - 0.1)
    assert minded.told == []
    minded.pass_time(0.1)
    assert [(told.path, told.started, told.jobs) for told in minded.told] == [(str(file)[1:], 1, 2)]


def test_jobs_that_are_added_are_followed_from_the_next_look_on(
    minded: Minded, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[list[str]] = []

    def of(code: JobsCode, jobs: Sequence[Job]) -> dict[str, set[int]]:
        looks.append([job.name for job in jobs])
        return {}

    monkeypatch.setattr(JobsCode, "of", of)
    monkeypatch.setattr(Run, "job", lambda run, name: Job(name, "true"))
    minded.see(f.JobAdded("first", 0, 0, "v1"))
    minded.pass_time(START_AFTER)
    minded.see(f.JobAdded("late", 0, 0, "v1"))
    minded.pass_time()
    minded.pass_time()
    assert looks == [["first"], ["late"], []]


def test_a_slow_look_is_followed_by_a_longer_pause(
    minded: Minded, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[object] = []

    def of(code: JobsCode, jobs: object) -> dict[str, set[int]]:
        looks.append(jobs)
        minded.clocks.seconds += 1.0
        return {}

    monkeypatch.setattr(JobsCode, "of", of)
    minded.pass_time(START_AFTER)
    minded.pass_time(19.9)
    assert len(looks) == 1
    minded.pass_time(0.1)
    assert len(looks) == 2


def test_where_no_descriptor_is_left_nothing_is_watched_and_that_is_said(minded: Minded) -> None:
    minded.clocks.seconds += START_AFTER
    with descriptors_left(1):
        minded.loop.turn(block=False)
    assert "changes of the jobs' code are not noticed: " in minded.said[0]
    assert "Too many open files" in minded.said[0]


def test_where_a_look_fails_that_is_said_once_and_the_run_goes_on(
    minded: Minded, monkeypatch: pytest.MonkeyPatch
) -> None:
    def of(code: JobsCode, jobs: object) -> dict[str, set[int]]:
        raise RecursionError("parsed too deep")

    monkeypatch.setattr(JobsCode, "of", of)
    minded.clocks.seconds = START_AFTER
    minded.loop.turn(block=False)
    wait_until(lambda: minded.loop.turn(block=False) or minded.said)
    assert minded.said == [
        "changes of the jobs' code are not noticed any more: RecursionError: parsed too deep"
    ]
    minded.see(f.JobAdded("late", 0, 0, "v1"))
    minded.pass_time()
    assert len(minded.said) == 1
    assert minded.told == []
