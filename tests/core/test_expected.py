"""What jobs are expected to take, from how long jobs took before."""

from __future__ import annotations

from gpulaunch.core.facts import AttemptEnded, AttemptLaunched, AttemptStarted, JobAdded, JobSettled
from gpulaunch.core.ledger import Ledger
from gpulaunch.core.model import AttemptId, End, Exited, Instant, Job
from gpulaunch.core.resume import expect, expect_again
from tests.core.table import Table, job


def seconds_of(jobs: tuple[Job, ...]) -> dict[str, float]:
    return {one.name: one.expected for one in jobs}


def test_without_earlier_times_nothing_is_expected() -> None:
    jobs = (Job("a", "x"), Job("b", "x", cost=3.0))
    assert expect(jobs, {}) == jobs
    assert expect(jobs, {"gone": 5.0}) == jobs


def test_a_job_is_expected_to_take_what_it_took() -> None:
    jobs = (Job("a", "x"), Job("b", "x", cost=9.0))
    assert seconds_of(expect(jobs, {"a": 5.0, "b": 2.5})) == {"a": 5.0, "b": 2.5}


def test_a_new_job_is_taken_for_an_ordinary_one_of_its_group() -> None:
    old = [Job(f"a{n}", "x", group=1) for n in range(3)]
    jobs = (*old, Job("new", "x", group=1), Job("other", "x", group=2))
    found = seconds_of(expect(jobs, {"a0": 1.0, "a1": 4.0, "a2": 100.0}))
    assert (found["new"], found["other"]) == (4.0, 4.0)


def test_a_new_job_is_judged_by_its_cost_where_its_group_has_costs() -> None:
    old = [Job(f"a{n}", "x", cost=n + 1.0) for n in range(3)]
    jobs = (*old, Job("large", "x", cost=10.0), Job("free", "x"))
    found = seconds_of(expect(jobs, {"a0": 2.0, "a1": 4.0, "a2": 6.0}))
    assert (found["large"], found["free"]) == (20.0, 4.0)


def test_priority_comes_first_then_cost_then_what_is_expected_then_the_file() -> None:
    table = Table(1)
    jobs = [job("a"), job("b"), job("c", cost=1.0), job("d", priority=1), job("e")]
    table.submit(*expect(jobs, {"a": 1.0, "b": 60.0, "c": 0.5, "d": 0.5, "e": 1.0}))
    order = [table.granted(0)]
    for name in ("d.1", "c.1", "b.1", "a.1"):
        table.ended(name)
        order.append(table.drained(0))
    assert [lines[0].split()[1] for lines in order] == ["d.1", "c.1", "b.1", "a.1", "e.1"]


def test_a_run_that_goes_on_keeps_what_it_was_recorded_with() -> None:
    ledger, at = Ledger(), Instant(0.0, 0.0)
    ledger.apply(JobAdded("done", 0, 1, "", expected=10.0), at)
    ledger.apply(JobAdded("left", 0, 1, "", expected=30.0), at)
    ledger.apply(JobAdded("unknown", 0, 1, ""), at)
    attempt = AttemptId("done", 1)
    ledger.apply(AttemptLaunched(attempt, ()), at)
    ledger.apply(AttemptStarted(attempt, 1), at)
    ledger.apply(AttemptEnded(attempt, End(Exited(0))), Instant(50.0, 50.0))
    ledger.apply(JobSettled("done", "succeeded"), Instant(50.0, 50.0))
    jobs = tuple(Job(name, "x") for name in ("done", "left", "unknown", "new"))
    found = seconds_of(expect_again(jobs, ledger))
    assert found == {"done": 10.0, "left": 30.0, "unknown": 0.0, "new": 40.0}
