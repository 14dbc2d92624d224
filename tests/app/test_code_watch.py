"""The code of a run's jobs is looked at, and a change of it is told with how many had started."""

from __future__ import annotations

import os
import select
import threading
from pathlib import Path

import pytest

from gpulaunch.app.code_look import SLOW_LOOK, TOLD_AT_MOST_EVERY, CodeLook, CodeNews
from gpulaunch.app.code_watch import START_AFTER, CodeMinder, CodeWatch, code_changed
from gpulaunch.core import facts as f
from gpulaunch.core.ledger import Ledger
from gpulaunch.core.model import AttemptId, End, Exited, Instant, Job, JobState
from gpulaunch.core.run import Run
from gpulaunch.diagnose.lint.report import JobsCode
from gpulaunch.loop import Loop
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


@pytest.fixture
def look(clocks: Clocks) -> CodeLook:
    return CodeLook(clocks.mono, clocks.utc)


def written(path: Path, text: str, at: float = EPOCH - 1000) -> Path:
    path.write_text(text)
    os.utime(path, (at, at))
    return path


def paths(news: list[CodeNews]) -> list[str]:
    return [Path(one.path).name for one in news]


# ── Looking ─────────────────────────────────────────────────────────────────────────────────────


def test_only_another_content_is_a_change(look: CodeLook, tmp_path: Path, clocks: Clocks) -> None:
    file = written(tmp_path / "train.py", "x = 1")
    assert look.follow({str(file): {0, 2}}, None) == []
    assert look.look() == []
    written(file, "x = 1", EPOCH)
    assert look.look() == [], "it was touched"
    clocks.seconds = 7.0
    written(file, "x = 2", EPOCH)
    assert look.look() == [CodeNews(str(file), EPOCH + 7, frozenset({0, 2}))]
    assert look.look() == []


def test_a_file_that_an_editor_replaces_is_the_same_file(look: CodeLook, tmp_path: Path) -> None:
    file = written(tmp_path / "train.py", "x = 1")
    look.follow({str(file): {0}}, None)
    file.unlink()
    assert look.look() == [], "it is gone for a moment"
    written(tmp_path / "new", "x = 2")
    (tmp_path / "new").rename(file)
    assert look.heard()
    assert paths(look.look()) == ["train.py"]


def test_what_changed_before_the_first_look_is_known_by_its_time(
    look: CodeLook, tmp_path: Path
) -> None:
    files = {name: written(tmp_path / name, "x", EPOCH + at) for name, at in
             (("old", -100), ("since", -5), ("ahead", 500))}  # fmt: skip
    found = look.follow({str(path): {0} for path in files.values()}, EPOCH - 10)
    assert paths(found) == ["since"], "what lies in the future tells of a wrong clock"
    assert found[0].utc == EPOCH - 5


def test_who_saves_often_is_told_of_once_a_minute(
    look: CodeLook, tmp_path: Path, clocks: Clocks
) -> None:
    file = written(tmp_path / "train.py", "x = 0")
    look.follow({str(file): {0}}, None)
    told = []
    for second in range(int(2 * TOLD_AT_MOST_EVERY)):
        clocks.seconds = second
        file.write_text(f"x = {second + 1}")
        told += look.look()
    assert len(told) == 2
    assert look.due == TOLD_AT_MOST_EVERY, "the last one is still to be told"
    clocks.seconds += TOLD_AT_MOST_EVERY
    assert len(look.look()) == 1


def test_the_kernel_tells_of_these_files_alone(look: CodeLook, tmp_path: Path) -> None:
    if look.fileno() < 0:
        pytest.skip("no inotify here")
    file = written(tmp_path / "train.py", "x")
    look.follow({str(file): {0}}, None)
    written(tmp_path / "log.txt", "y")
    assert not look.heard()
    file.write_text("z")
    assert look.heard()
    assert look.due is None


def test_where_others_write_or_nothing_tells_it_is_looked_now_and_then(
    look: CodeLook, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpulaunch.inotify.others_change", lambda path: True)
    look.follow({str(written(tmp_path / "train.py", "x")): {0}}, None)
    assert look.due == SLOW_LOOK


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


# ── The thread ──────────────────────────────────────────────────────────────────────────────────


def test_the_thread_tells_of_changes_and_ends_when_it_is_closed(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("x = 1")
    watch = CodeWatch(None)
    thread = next(one for one in threading.enumerate() if one.name == "code")
    watch.follow([Job("a", ("python", "train.py"), cwd=str(tmp_path))])

    def heard() -> list[CodeNews]:
        (tmp_path / "train.py").write_text(f"x = {os.urandom(4).hex()}")
        return watch.take() if select.select([watch.fileno()], [], [], 0.2)[0] else []

    assert paths(wait_until(heard, 30)) == ["train.py"]
    watch.close()
    thread.join(30)
    assert not thread.is_alive()


def test_where_no_descriptor_is_left_nothing_is_watched_and_that_is_said(clocks: Clocks) -> None:
    said: list[str] = []
    told: list[f.CodeChanged] = []
    loop = Loop(clocks.mono)
    minder = CodeMinder(Run(()), loop, "/", told.append, said.append)
    clocks.seconds = START_AFTER
    with descriptors_left(2):
        loop.turn(block=False)
    assert "changes of the jobs' code are not noticed: " in said[0]
    assert "Too many open files" in said[0]
    minder.close()
    loop.close()


def test_where_the_thread_fails_that_is_said_once_and_the_run_goes_on(
    clocks: Clocks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def of(code: JobsCode, jobs: object) -> dict[str, set[int]]:
        raise RecursionError("parsed too deep")

    monkeypatch.setattr(JobsCode, "of", of)
    said: list[str] = []
    told: list[f.CodeChanged] = []
    loop = Loop(clocks.mono)
    minder = CodeMinder(Run(()), loop, "/", told.append, said.append)
    clocks.seconds = START_AFTER
    loop.turn(block=False)
    wait_until(lambda: loop.turn(block=False) or said)
    assert said == [
        "changes of the jobs' code are not noticed any more: RecursionError: parsed too deep"
    ]
    minder.see(f.JobAdded("late", 0, 0, "v1"), Instant(9.0, EPOCH), Ledger())
    clocks.seconds += START_AFTER
    loop.turn(block=False)
    minder.close()
    loop.close()
    assert len(said) == 1
    assert told == []


def test_jobs_may_come_when_the_thread_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop has not yet heard of it."""

    def of(code: JobsCode, jobs: object) -> dict[str, set[int]]:
        raise RecursionError("parsed too deep")

    monkeypatch.setattr(JobsCode, "of", of)
    watch = CodeWatch(None)
    watch.follow([])
    wait_until(lambda: not any(one.name == "code" for one in threading.enumerate()))
    watch.follow([])
    watch.close()
