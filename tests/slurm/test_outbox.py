"""What is handed over, and when, to a pretend `sbatch` with limits of its own, in pretend time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from gpulaunch.core.model import AttemptId, Demand, Job
from gpulaunch.engines.slurm import commands, limits, outbox, script
from gpulaunch.engines.slurm.batches import Batch, Terms
from gpulaunch.engines.slurm.limits import Lane
from gpulaunch.engines.slurm.outbox import Outbox
from gpulaunch.engines.slurm.probe import Probe
from gpulaunch.journal.rundir import RunDir
from tests.slurm.world import PretendLoop


class Site:
    """Takes at most `room[WORD]` tasks with that option, and `largest` at once; and is who is told
    of it. `calls`: the tasks of each submission and whether it was taken. Writing down that
    something was taken lasts `slow` seconds."""

    def __init__(self, loop: PretendLoop) -> None:
        self.loop = loop
        self.slow = 0.0
        self.room: dict[str, int] = {}
        self.largest = 1 << 30
        self.calls: list[tuple[int, bool]] = []
        self.ids: dict[AttemptId, str] = {}
        self.said: list[str] = []
        self.lost: list[str] = []
        self.behind = 0

    # As `commands.Slurm`.

    def ask(self, done: Callable[[commands.ConfigAnswer], object]) -> None:
        config = commands.Config("22.05", 1001, 10_000, 300.0)
        self.loop.call_after("ask", 0.0, lambda: done(config))

    def submit(
        self,
        options: Sequence[str],
        script: Path,
        environ: Mapping[str, str],
        done: Callable[[commands.SubmitAnswer], object],
        arguments: Sequence[str] = (),
    ) -> None:
        size = _tasks(options)
        answer: commands.SubmitAnswer = commands.SubmissionAccepted(str(100 + len(self.calls)))
        lanes = [word for word in options if word in self.room]
        if size > self.largest:
            answer = commands.SubmissionRefused("sbatch: Invalid job array specification")
        elif any(self.room[word] < size for word in lanes):
            answer = commands.Full("sbatch: MaxSubmitJob")
        else:
            self.room.update({word: self.room[word] - size for word in lanes})
        self.calls.append((size, isinstance(answer, commands.SubmissionAccepted)))
        self.loop.call_after("submit", 0.0, lambda: done(answer))

    # As the engine.

    def wanted(self, attempt: AttemptId) -> bool:
        return attempt not in self.ids

    def id_of(self, attempt: AttemptId) -> str | None:
        return self.ids.get(attempt, "")

    def numbers(self) -> set[str]:
        return set(self.ids.values())

    def waiting(self, lane: Lane) -> int:
        return self.behind

    def sent(self, batch: Batch) -> None:
        self.loop.now += self.slow
        self.ids.update({attempt: batch.task_of(place) for place, attempt in batch.members})

    def refused(self, batch: Batch, why: str) -> None:
        self.lost += map(str, batch.attempts)

    def full(self, lane: Lane, why: str) -> None:
        self.said.append(f"{' '.join(lane)}: {why}")

    def doubtful(self) -> None:
        raise AssertionError("every answer is clear")

    waits = away = lambda self, why: self.said.append(why)

    # As the probe.

    id = ""

    def comes_first(self, options: Sequence[str], then: Callable[[], None]) -> bool:
        return False


def _tasks(options: Sequence[str]) -> int:
    arrays = [word.partition("=")[2] for word in options if word.startswith("--array=")]
    if not arrays:
        return 1
    ends = [span.partition("-")[::2] for span in arrays[0].split(",")]
    return sum(int(last or first) - int(first) + 1 for first, last in ends)


@pytest.fixture
def site() -> Iterator[Site]:
    loop = PretendLoop()
    with loop.clock():
        yield Site(loop)


@pytest.fixture
def box(site: Site, tmp_path: Path) -> Outbox:
    run = RunDir(tmp_path)
    run.slurm.mkdir()
    run.batch_lists.mkdir()
    slurm, probe = cast(commands.Slurm, site), cast(Probe, site)
    return Outbox(slurm, run, "gl:x:", 1, {}, site.loop, site, probe)


def add(box: Outbox, count: int, *options: str) -> list[AttemptId]:
    attempts = [AttemptId(f"{'-'.join(options)}{number}", 1) for number in range(count)]
    for attempt in attempts:
        box.add(attempt, Terms(options))
    return attempts


def handed_over(site: Site, attempts: Sequence[AttemptId], within: float = 60.0) -> None:
    """Until all of them are; fails where that takes more seconds."""
    until = site.loop.now + within
    while not site.ids.keys() >= set(attempts):
        site.loop.turn()
        assert site.loop.now <= until


def test_a_full_limit_holds_up_only_what_it_limits(site: Site, box: Outbox) -> None:
    site.room = {"--qos=a": 3}
    held_up, others = add(box, 10, "--qos=a"), add(box, 10, "--qos=b")
    handed_over(site, [*held_up[:3], *others])
    assert box.why(held_up[3]) == "sbatch: MaxSubmitJob"
    assert site.said == ["--qos=a: sbatch: MaxSubmitJob"]
    assert not set(held_up[3:]) & set(site.ids)


def test_what_is_too_large_does_not_hold_up_others_of_its_lane(site: Site, box: Outbox) -> None:
    site.room = {"--mem=900G": 0}
    never = add(box, 5, "--qos=a", "--mem=900G")
    others = add(box, 5, "--qos=a", "--mem=1G")
    handed_over(site, others)
    assert not set(never) & set(site.ids)


@pytest.mark.parametrize("slow", [0.0, 0.7, 1.5, 10.0])
def test_room_that_our_own_ends_make_is_used_soon_by_as_many(
    site: Site, box: Outbox, slow: float
) -> None:
    site.slow = slow
    site.room = {"--qos=a": 4}
    attempts = add(box, 10, "--qos=a")
    handed_over(site, attempts[:4])
    site.room["--qos=a"] = 3
    site.calls.clear()
    for _ in range(3):
        box.one_is_over(("--qos=a",))
    handed_over(site, attempts[:7], limits.MIN_RETRY_DELAY + slow)
    assert site.calls[0] == (3, True)
    site.room["--qos=a"] = 1 << 30
    handed_over(site, attempts)


def test_an_array_of_more_tasks_than_may_be_goes_as_several(site: Site, box: Outbox) -> None:
    site.largest = 30
    handed_over(site, add(box, 100, "--qos=a"))
    assert site.lost == site.said == []
    assert max(size for size, taken in site.calls if taken) <= 30
    assert len(site.calls) <= 8


def test_what_slurm_has_plainly_refused_for_now_can_be_taken_back(site: Site, box: Outbox) -> None:
    site.room = {"--qos=a": 0}
    waiting = add(box, 4, "--qos=a")
    while not site.said:
        site.loop.turn()
    assert [box.drop(attempt) for attempt in waiting] == [True] * 4
    assert not box.drop(AttemptId("of another", 1))


def test_what_an_earlier_launcher_may_have_handed_over_cannot_be_taken_back(
    site: Site, box: Outbox
) -> None:
    doubts: list[bool] = []
    site.doubtful = lambda: doubts.append(True)  # type: ignore[method-assign]
    attempt = AttemptId("a", 1)
    box.take_up(Batch("1-1", "gl:x:1-1:a", (attempt,), Terms(()), (0,)))
    assert (doubts, box.in_doubt, box.drop(attempt)) == ([True], True, False)
    box.look_up(())
    assert not box.drop(attempt)
    handed_over(site, [attempt])
    assert not box.in_doubt


def test_what_comes_one_by_one_is_gathered_while_slurm_has_plenty(site: Site, box: Outbox) -> None:
    handed_over(site, add(box, 1, "--qos=first"))
    site.calls.clear()
    site.behind = 1000
    attempts = [AttemptId(f"later{number}", 1) for number in range(250)]
    for attempt in attempts[:-1]:
        box.add(attempt, Terms(("--qos=a",)))
        site.loop.call_after("on", outbox.GATHERED + 0.01 if attempt == attempts[9] else 0.0, int)
        site.loop.turn()
    assert site.calls == []
    box.add(attempts[-1], Terms(("--qos=a",)))
    handed_over(site, attempts)
    assert [size for size, _ in site.calls] == [250]


def test_what_is_gathered_waits_for_a_bounded_time_and_not_where_slurm_has_little(
    site: Site, box: Outbox
) -> None:
    site.behind = 1000
    handed_over(site, add(box, 3, "--qos=a"), outbox.LATEST + 1.0)
    site.behind = outbox.PLENTY - 1
    handed_over(site, add(box, 1, "--qos=b"), 1.0)


# ── The probe ───────────────────────────────────────────────────────────────────────────────────


def test_the_probe_is_told_where_and_who_pays_but_not_what_jobs_are_to_have(
    site: Site, tmp_path: Path
) -> None:
    run = RunDir(tmp_path)
    run.slurm.mkdir()
    asked: list[Sequence[str]] = []
    submit = site.submit

    def noted(options: Sequence[str], *rest: Any) -> None:
        asked.append(options)
        submit(options, *rest)

    site.submit = noted  # type: ignore[method-assign]
    probe = Probe(cast(commands.Slurm, site), run, "p", {}, site.loop, site.said.append, print)
    told = ("--partition=a", "--account=b", "--qos=c", "--constraint=d", "--reservation=e")
    extra = ("--mem=900G", "--mem-per-cpu=9G", "--exclusive", "--mail-type=ALL", "--mail-user=x")
    extra += ("--tmp=1T", "--licenses=l", "--hold", "--begin=now+1day", "--deadline=1", "--nice=9")
    job = Job("a", "true", timeout=9e4, engine={"slurm": {"extra": (*told, *extra)}})
    assert probe.comes_first(
        script.options(replace(job, demand=Demand(4, cpus=8)), run), lambda: None
    )
    (options,) = asked
    assert set(told) <= set(options)
    assert not set(extra) & set(options)
    assert not [word for word in options if word.startswith(("--gpus", "--cpus", "--signal"))]
    assert {"--time=1", "--mem=100M", "--nodes=1", "--no-requeue"} <= set(options)
