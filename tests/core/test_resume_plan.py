"""What a resume and a retry run again."""

from __future__ import annotations

from msgspec.structs import replace

from gpulaunch.core import resume
from gpulaunch.core.facts import JobAdded, JobSettled
from gpulaunch.core.ledger import Ledger
from gpulaunch.core.model import Instant, Job, JobState

AT = Instant(0.0, 0.0)


def ledger(**states: JobState) -> Ledger:
    made = Ledger()
    for name, state in states.items():
        made.apply(JobAdded(name, 0, 1, "v1"), AT)
        if state != "waiting":
            made.apply(JobSettled(name, state), AT)
    return made


def jobs(*names: str, **needs: str) -> list[Job]:
    plain = [Job(name, "true", digest="v1") for name in names]
    return plain + [Job(name, "true", digest="v1", needs=(n,)) for name, n in needs.items()]


def test_resume_runs_everything_that_has_not_succeeded() -> None:
    before = ledger(a="succeeded", b="failed", c="cancelled", d="waiting", gone="failed")
    result = resume.resume(before, jobs("a", "b", "c", "d", "new"))
    assert result.requeue == {"b", "c"}
    assert str(result) == "1 done, 3 again, 1 new, 1 no longer in the file"


def test_a_redefined_success_is_named_and_runs_again_only_on_request() -> None:
    before = ledger(a="succeeded")
    redefined = [replace(job, digest="v2") for job in jobs("a")]
    assert str(resume.resume(before, redefined)) == "1 done, 0 again, 1 done but changed"
    assert resume.resume(before, redefined).nothing
    assert resume.resume(before, redefined, changed_too=True).requeue == {"a"}


def test_a_redefinition_that_was_seen_and_not_run_is_still_one() -> None:
    before = ledger(a="succeeded")
    before.apply(JobAdded("a", 0, 1, "v2"), AT)
    redefined = [replace(job, digest="v2") for job in jobs("a")]
    assert resume.resume(before, redefined, changed_too=True).requeue == {"a"}


def test_resume_among_some_leaves_the_others() -> None:
    before = ledger(a="failed", b="failed", c="succeeded")
    result = resume.resume(before, jobs("a", "b", "c", "new"), among={"a"})
    assert result.requeue == {"a"}
    assert result.left == {"b"}
    assert [job.name for job in result.jobs] == ["a", "b", "c"], "what is new stays unknown"


def test_retry_takes_failures_and_what_was_skipped_because_of_them() -> None:
    before = ledger(
        bad="failed", b="skipped", c="skipped", off="cancelled", d="skipped", e="waiting"
    )
    filed = jobs("bad", "off", "e", b="bad", c="b", d="off")
    result = resume.resume(before, filed, resume.retried(before, filed))
    assert result.requeue == {"bad", "b", "c"}
    assert result.left == {"off", "d", "e"}


def test_another_input_is_named_and_runs_again_only_on_request() -> None:
    before = ledger(a="succeeded", b="succeeded", c="succeeded")
    filed = [*jobs("a", "b"), replace(jobs("c")[0], digest="v2")]
    seen = resume.resume(before, filed, other_inputs={"a", "c"})
    assert seen.nothing
    assert str(seen) == "3 done, 0 again, 2 done but changed (1 redefined, 1 with a changed input)"
    done = resume.resume(before, filed, changed_too=True, other_inputs={"a", "c"})
    assert done.requeue == {"a", "c"}
    assert str(done) == "1 done, 2 again (of these 1 redefined, 1 with a changed input)"


def test_what_needs_a_changed_job_runs_again_and_nothing_else_does() -> None:
    before = ledger(
        a="succeeded", b="succeeded", c="succeeded", d="succeeded", bad="failed", other="succeeded"
    )
    filed = [*jobs("a", "other", b="a", c="b", bad="a"), *jobs(d="bad")]
    assert resume.resume(before, filed, other_inputs={"a"}).requeue == {"bad"}
    done = resume.resume(before, filed, changed_too=True, other_inputs={"a"})
    assert done.requeue == {"a", "b", "c", "d", "bad"}
    assert done.over == {"other"}
    assert str(done) == "1 done, 5 again (of these 1 with a changed input, 3 that need those)"


def test_what_was_redefined_takes_along_what_needs_it() -> None:
    before = ledger(a="succeeded", b="succeeded")
    filed = [replace(jobs("a")[0], digest="v2"), *jobs(b="a")]
    assert resume.resume(before, filed, changed_too=True).requeue == {"a", "b"}
    among = resume.resume(before, filed, among={"a"}, changed_too=True)
    assert among.requeue == {"a"}, "--only says which jobs may run"
    assert among.over == {"b"}


def test_an_input_of_a_job_that_runs_anyway_is_no_change() -> None:
    before = ledger(a="failed", b="waiting")
    result = resume.resume(before, jobs("a", "b", "new"), None, True, {"a", "b", "new"})
    assert str(result) == "0 done, 2 again, 1 new"


def test_what_only_came_after_a_changed_job_is_named_and_left() -> None:
    before = ledger(a="succeeded", b="succeeded", sum="succeeded", late="failed")
    filed = [
        *jobs("a", "b"),
        replace(jobs("sum")[0], after=("a", "b")),
        replace(jobs("late")[0], after=("a",)),
    ]
    done = resume.resume(before, filed, changed_too=True, other_inputs={"a"})
    assert done.requeue == {"a", "late"}
    assert done.changed.after == ("sum",)
    assert resume.resume(before, filed, other_inputs={"a"}).changed.after == ()
