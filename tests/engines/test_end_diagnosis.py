"""What is gathered of an attempt's end before it is told, and what is passed on as it is."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from gpulaunch.core.causes import Hint, Quoted
from gpulaunch.core.events import Ended
from gpulaunch.core.model import (
    AttemptId,
    Cancelled,
    Demand,
    End,
    Exited,
    Gpu,
    Interrupted,
    Job,
    Lost,
    MissingOutput,
    NotStarted,
    Outcome,
    Signaled,
    TimedOut,
)
from gpulaunch.engines.diagnosis import EndDiagnosis
from gpulaunch.gpus.machine import CardReading, LookCallback, Process
from gpulaunch.journal.rundir import RunDir

GIB = 1 << 30
ONE, TWO = (Gpu(f"GPU-{n}", n, f"0000:0{n}:00.0", "A40", 48 * GIB) for n in (0, 1))
OOM = """\
Traceback (most recent call last):
  File "predict.py", line 3, in <module>
    model(batch)
torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total \
capacity of 47.43 GiB of which 1.2 GiB is free.
"""


class Scene:
    """A diagnosis of one attempt; `show` answers a look that it asked for."""

    def __init__(self, path: Path) -> None:
        self.run = RunDir(path)
        self.run.log(AttemptId("a", 1)).parent.mkdir(parents=True)
        self.looks: dict[str, LookCallback] = {}
        self.xids: dict[str, tuple[int, ...]] = {}
        self.told: list[Ended] = []
        self.warned: list[tuple[str | None, str]] = []
        self.diagnosis = EndDiagnosis(
            self.run,
            lambda job, text: self.warned.append((job, text)),
            ("/tmp", "/dev/shm"),
            lambda gpu, then: self.looks.__setitem__(gpu.uuid, then),
            lambda uuid, since: self.xids.get(uuid, ()),
        )

    def end(
        self, outcome: Outcome, log: str = "", *gpus: Gpu, per_gpu: int = 1, kept: bool = False
    ) -> None:
        attempt = AttemptId("a", 1)
        self.run.log(attempt).write_text(log)
        self.diagnosis.begin(attempt)
        job = Job("a", "x", demand=Demand(len(gpus), per_gpu=per_gpu), cwd="/")
        ended = Ended(attempt, End(outcome), kept=kept)
        self.diagnosis.diagnose(ended, job, gpus, self.told.append)

    def show(self, gpu: Gpu, *processes: Process) -> None:
        self.looks.pop(gpu.uuid)(CardReading(gpu.uuid, processes=processes))


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


@pytest.mark.parametrize(
    "outcome",
    [
        Exited(0),
        Cancelled(),
        Interrupted(Quoted("drain")),
        NotStarted("no such file"),
        Lost(Quoted("gone")),
    ],
)
def test_an_end_that_says_all_is_told_at_once(scene: Scene, outcome: Outcome) -> None:
    scene.end(outcome, OOM, ONE)
    (ended,) = scene.told
    assert (ended.end.outcome, ended.end.failure) == (outcome, None)
    assert not scene.looks


@pytest.mark.parametrize("outcome", [Exited(1), Signaled(9), MissingOutput(("a",))])
def test_a_failure_is_told_once_each_of_its_cards_was_seen(scene: Scene, outcome: Outcome) -> None:
    scene.end(outcome, OOM, ONE, TWO)
    scene.show(TWO)
    assert not scene.told
    scene.show(ONE)
    (ended,) = scene.told
    assert ended.end.failure is not None
    assert ended.end.failure.kind == "gpu_oom"
    assert "Tried to allocate 20.00 GiB" in ended.end.failure.evidence
    assert ended.end.failure.advice


def test_a_full_disk_is_seen_though_the_attempts_own_directory_is_gone_when_its_card_was_seen(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene.run.outs.mkdir()
    statvfs = os.statvfs

    def full(path: str) -> object:
        below = str(path).startswith(str(scene.run.path))
        return SimpleNamespace(f_bavail=0, f_frsize=4096) if below else statvfs(path)

    monkeypatch.setattr(os, "statvfs", full)
    scene.end(Exited(1), "", ONE)
    scene.show(ONE)
    (ended,) = scene.told
    assert ended.end.failure is not None
    assert ended.end.failure.kind == "disk_full"


def test_a_job_without_cards_asks_nobody(scene: Scene) -> None:
    scene.end(Exited(1), OOM)
    assert len(scene.told) == 1


def test_a_card_that_the_driver_calls_unfit_is_named(scene: Scene) -> None:
    scene.end(Exited(1), "CUDA error: unspecified launch failure\n", ONE, TWO)
    scene.looks.pop(ONE.uuid)(CardReading(ONE.uuid, sick="GPU is lost"))
    scene.show(TWO)
    failure = scene.told[0].end.failure
    assert failure is not None
    assert (failure.kind, failure.gpus) == ("gpu_lost", (ONE.uuid,))


def test_what_hung_on_a_lost_card_did_not_take_too_long(scene: Scene) -> None:
    scene.end(TimedOut("timeout", 60.0), "step 1\n", ONE)
    scene.looks.pop(ONE.uuid)(CardReading(ONE.uuid, sick="GPU is lost"))
    failure = scene.told[0].end.failure
    assert failure is not None
    assert (failure.kind, failure.gpus) == ("gpu_lost", (ONE.uuid,))


def _foreign(scene: Scene, per_gpu: int, kept: bool = False) -> bool:
    scene.end(Exited(1), OOM, ONE, per_gpu=per_gpu, kept=kept)
    scene.show(ONE, Process(77, "C", 30 * GIB, "bob", "train.py"))
    failure = scene.told[0].end.failure
    assert failure is not None
    return failure.foreign


def test_memory_that_others_have_of_the_card_is_told(scene: Scene) -> None:
    assert _foreign(scene, per_gpu=1)


def test_beside_other_jobs_of_ours_nobody_is_called_a_stranger(scene: Scene) -> None:
    assert not _foreign(scene, per_gpu=2)


def test_the_memory_of_the_attempts_own_worker_is_nobody_elses(scene: Scene) -> None:
    assert not _foreign(scene, per_gpu=1, kept=True)


def test_what_is_not_recognised_is_told_with_its_last_line(scene: Scene) -> None:
    scene.end(Exited(3), "step 1\nno such residue: X\n\n")
    failure = scene.told[0].end.failure
    assert failure is not None
    assert (failure.kind, failure.evidence) == ("exit", "no such residue: X")
    assert failure.advice == ()


def test_what_follows_where_modules_are_missing_gets_advice_on_them(scene: Scene) -> None:
    scene.end(Exited(1), "sh: line 1: module: command not found\nnot set up\n")
    failure = scene.told[0].end.failure
    assert failure is not None
    assert (failure.kind, failure.evidence) == ("exit", "not set up")
    assert failure.advice == (Hint("no_modules"),)


@pytest.mark.parametrize("log", ["", "\n\n"])
def test_of_an_empty_log_nothing_is_said(scene: Scene, log: str) -> None:
    scene.end(Exited(3), log)
    assert scene.told[0].end.failure is None


def test_a_log_that_is_gone_is_no_trouble(scene: Scene) -> None:
    attempt = AttemptId("gone", 1)
    ended = Ended(attempt, End(Exited(1)))
    scene.diagnosis.diagnose(ended, Job("gone", ()), (), scene.told.append)
    assert scene.told == [ended]


def test_a_success_that_gave_something_up_is_pointed_at(scene: Scene) -> None:
    scene.end(Exited(0), "| WARNING: ran out of memory, skipping batch\n")
    ((job, text),) = scene.warned
    assert job == "a"
    assert "ran out of memory, skipping batch" in text


def test_a_line_without_an_end_is_cut(scene: Scene) -> None:
    scene.end(Exited(1), "x" * 100_000)
    failure = scene.told[0].end.failure
    assert failure is not None
    assert len(failure.evidence) == 500
