"""What is handed over, and when, to a pretend `sbatch` with limits of its own, in pretend time."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace

from gpulaunch.core.model import AttemptId, Demand, Job
from gpulaunch.engines.slurm import commands, limits, script, standstill, submission
from gpulaunch.engines.slurm.actions import (
    Action,
    Answered,
    AskConfig,
    Due,
    Observation,
    RecordNumber,
    Submit,
    SubmitProbe,
    Wake,
    Warn,
)
from gpulaunch.engines.slurm.attempt import SlurmAttempt, SlurmJob
from gpulaunch.engines.slurm.batches import Batch, Terms
from gpulaunch.engines.slurm.records import DiskRecords
from gpulaunch.engines.slurm.rundir import SlurmDir
from gpulaunch.engines.slurm.state import GATHER_DELAY, Probe, SlurmState
from gpulaunch.engines.slurm.step import step
from tests.slurm.world import PretendLoop

NOWHERE = DiskRecords(SlurmDir(Path("/nowhere")))
"""No record shows."""


class Site:
    """Takes at most `room[WORD]` tasks with that option, and `largest` at once.

    `calls`: the tasks of each submission and whether it was taken. Writing down that something was
    taken lasts `slow` seconds.
    """

    def __init__(self) -> None:
        self.loop = PretendLoop()
        self.state = SlurmState(
            "gl:x:", 1, "/run", 5.0, Probe("p", asked=True, settled=True), NOWHERE
        )
        self.state.now = self.loop.now
        self.slow = 0.0
        self.room: dict[str, int] = {}
        self.largest = 1 << 30
        self.calls: list[tuple[int, bool]] = []
        self.said: list[str] = []

    def behind(self, count: int, *lane: str) -> None:
        """So many attempts wait in Slurm."""
        for number in range(count):
            attempt = AttemptId(f"behind{lane}{number}", 1)
            waits = SlurmAttempt(attempt, Job("behind", ()), SlurmJob("1", lane=lane))
            self.state.attempts[attempt] = waits

    @property
    def ids(self) -> set[AttemptId]:
        return {held.attempt for held in self.state.attempts.values() if held.id}

    @property
    def lost(self) -> set[AttemptId]:
        return set(self.state.given_up)

    def does(self) -> None:
        """Carry out what the machine says."""
        actions, self.state.out = self.state.out, []
        for action in actions:
            self._do(action)

    def tell(self, observation: Observation) -> None:
        for action in step(self.state, observation, self.loop.now):
            self._do(action)

    def _do(self, action: Action) -> None:
        match action:
            case Wake(timer, seconds):
                due = Due(timer)
                if timer not in ("queue", "records"):
                    self.loop.call_after(timer, seconds, lambda: self.tell(due))
            case AskConfig():
                config = commands.Config("22.05", 1001)
                self.loop.call_after("ask", 0.0, lambda: self._answer(action, config))
            case Submit(_, options):
                answer = self._submit(options)
                self.loop.call_after("submit", 0.0, lambda: self._answer(action, answer))
            case RecordNumber():
                self.loop.now += self.slow
                self.state.now = self.loop.now
            case Warn(text=text):
                self.said.append(text)

    def _answer(self, action: AskConfig | Submit, answer: commands.Answer) -> None:
        self.tell(Answered(action, answer, self.loop.now))

    def _submit(self, options: Sequence[str]) -> commands.SubmitAnswer:
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
        return answer


def _tasks(options: Sequence[str]) -> int:
    arrays = [word.partition("=")[2] for word in options if word.startswith("--array=")]
    if not arrays:
        return 1
    ends = [span.partition("-")[::2] for span in arrays[0].split(",")]
    return sum(int(last or first) - int(first) + 1 for first, last in ends)


@pytest.fixture
def site() -> Site:
    return Site()


def add(site: Site, count: int, *options: str) -> list[AttemptId]:
    attempts = [AttemptId(f"{'-'.join(options)}{number}", 1) for number in range(count)]
    for attempt in attempts:
        add_one(site, attempt, *options)
    return attempts


def add_one(site: Site, attempt: AttemptId, *options: str) -> None:
    site.state.now = site.loop.now
    site.state.attempts[attempt] = SlurmAttempt(attempt, Job(attempt.job, ()))
    submission.add(site.state, attempt, Terms(options))
    site.does()


def handed_over(site: Site, attempts: Sequence[AttemptId], within: float = 60.0) -> None:
    """Until all of them are; fails where that takes more seconds."""
    until = site.loop.now + within
    while not site.ids >= set(attempts):
        site.loop.turn()
        assert site.loop.now <= until


def test_a_full_limit_holds_up_only_what_it_limits(site: Site) -> None:
    site.room = {"--qos=a": 3}
    held_up, others = add(site, 10, "--qos=a"), add(site, 10, "--qos=b")
    handed_over(site, [*held_up[:3], *others])
    assert submission.why(site.state, held_up[3]) == "sbatch: MaxSubmitJob"
    assert site.said == ["Slurm takes no more with --qos=a for now: sbatch: MaxSubmitJob"]
    assert not set(held_up[3:]) & site.ids


def test_what_is_too_large_does_not_hold_up_others_of_its_lane(site: Site) -> None:
    site.room = {"--mem=900G": 0}
    never = add(site, 5, "--qos=a", "--mem=900G")
    others = add(site, 5, "--qos=a", "--mem=1G")
    handed_over(site, others)
    assert not set(never) & site.ids


@pytest.mark.parametrize("slow", [0.0, 0.7, 1.5, 10.0])
def test_room_that_our_own_ends_make_is_used_soon_by_as_many(site: Site, slow: float) -> None:
    site.slow = slow
    site.room = {"--qos=a": 4}
    attempts = add(site, 10, "--qos=a")
    handed_over(site, attempts[:4])
    site.room["--qos=a"] = 3
    site.calls.clear()
    for _ in range(3):
        site.state.room_made(("--qos=a",))
        site.does()
    handed_over(site, attempts[:7], limits.MIN_RETRY_DELAY + slow)
    assert site.calls[0] == (3, True)
    site.room["--qos=a"] = 1 << 30
    handed_over(site, attempts)


def test_an_array_of_more_tasks_than_may_be_goes_as_several(site: Site) -> None:
    site.largest = 30
    handed_over(site, add(site, 100, "--qos=a"))
    assert not site.lost
    assert not site.said
    assert max(size for size, taken in site.calls if taken) <= 30
    assert len(site.calls) <= 8


def test_what_slurm_has_plainly_refused_for_now_can_be_taken_back(site: Site) -> None:
    site.room = {"--qos=a": 0}
    waiting = add(site, 4, "--qos=a")
    while not site.said:
        site.loop.turn()
    assert [submission.drop(site.state, attempt) for attempt in waiting] == [True] * 4
    assert not submission.drop(site.state, AttemptId("of another", 1))


def test_what_an_earlier_launcher_may_have_handed_over_cannot_be_taken_back(site: Site) -> None:
    state, attempt = site.state, AttemptId("a", 1)
    state.attempts[attempt] = SlurmAttempt(attempt, Job("a", ()))
    submission.take_up(state, Batch("1-1", "gl:x:1-1:a", (attempt,), Terms(()), (0,)))
    assert [action.timer for action in state.out if isinstance(action, Wake)] == [
        "records",
        "queue",
    ]
    assert (state.outbox.in_doubt, submission.drop(state, attempt)) == (True, False)
    submission.look_up(state, (), whole=True)
    assert not submission.drop(state, attempt)
    site.does()
    handed_over(site, [attempt])
    assert not state.outbox.in_doubt


def test_what_comes_one_by_one_is_gathered_while_slurm_has_plenty(site: Site) -> None:
    handed_over(site, add(site, 1, "--qos=first"))
    site.calls.clear()
    site.behind(1000, "--qos=a")
    attempts = [AttemptId(f"later{number}", 1) for number in range(250)]
    for attempt in attempts[:-1]:
        add_one(site, attempt, "--qos=a")
        site.loop.call_after("on", GATHER_DELAY + 0.01 if attempt == attempts[9] else 0.0, int)
        site.loop.turn()
    assert site.calls == []
    add_one(site, attempts[-1], "--qos=a")
    handed_over(site, attempts)
    assert [size for size, _ in site.calls] == [250]


def test_what_is_gathered_waits_for_a_bounded_time(site: Site) -> None:
    site.behind(1000, "--qos=a")
    handed_over(site, add(site, 3, "--qos=a"), 11.0)


@pytest.mark.parametrize("behind", [0, 1, 4])
def test_where_slurm_has_little_or_nothing_a_single_one_is_handed_over_at_once(
    site: Site, behind: int
) -> None:
    site.behind(1000, "--qos=other")
    site.behind(behind, "--qos=a")
    handed_over(site, add(site, 1, "--qos=a"), 2 * GATHER_DELAY)


def test_behind_a_few_a_single_one_waits_for_a_moment(site: Site) -> None:
    site.behind(20, "--qos=a")
    began = site.loop.now
    handed_over(site, add(site, 1, "--qos=a"))
    assert 1.0 < site.loop.now - began < 2.5


@pytest.mark.parametrize("rate", [10, 50, 500])
def test_a_long_list_of_short_tasks_takes_few_calls(site: Site, rate: int) -> None:
    """Of 2,000 tasks 1,000 are in Slurm's hands; for each that is over another goes."""
    tasks = [AttemptId(f"j{number}", 1) for number in range(2000)]
    for attempt in tasks[:1000]:
        add_one(site, attempt, "--qos=a")
    handed_over(site, tasks[:1000])
    left, later, began = list(tasks), tasks[1000:], site.loop.now

    def ends() -> None:
        """As a look a second finds them."""
        for attempt in left[:rate]:
            if attempt in site.ids:
                del site.state.attempts[attempt]
                left.remove(attempt)
                site.state.room_made(("--qos=a",))
                site.does()
                for new in later[:1]:
                    add_one(site, new, "--qos=a")
                del later[:1]
        if left:
            site.loop.call_after("ends", 1.0, ends)

    ends()
    while left:
        site.loop.turn()
    assert len(site.calls) <= 14  # and the probe's
    assert site.loop.now - began < 1.1 * len(tasks) / rate + 10.0, "the queue ran dry"


# ── The probe ───────────────────────────────────────────────────────────────────────────────────


def test_the_probe_is_told_where_and_who_pays_but_not_what_jobs_are_to_have(
    tmp_path: Path,
) -> None:
    state = SlurmState("gl:x:", 1, "/run", 5.0, Probe("p"), NOWHERE)
    told = ("--partition=a", "--account=b", "--qos=c", "--constraint=d", "--reservation=e")
    extra = ("--mem=900G", "--mem-per-cpu=9G", "--exclusive", "--mail-type=ALL", "--mail-user=x")
    extra += ("--tmp=1T", "--licenses=l", "--hold", "--begin=now+1day", "--deadline=1", "--nice=9")
    job = Job("a", "true", timeout=9e4, engine={"slurm": {"extra": (*told, *extra)}})
    wide = replace(job, demand=Demand(4, cpus=8))
    assert standstill.comes_first(state, script.options(wide, SlurmDir(tmp_path)))
    (asked,) = state.out
    assert isinstance(asked, SubmitProbe)
    options = asked.options
    assert set(told) <= set(options)
    assert not set(extra) & set(options)
    assert not [word for word in options if word.startswith(("--gpus", "--cpus", "--signal"))]
    assert {"--time=1", "--mem=100M", "--nodes=1", "--no-requeue"} <= set(options)
