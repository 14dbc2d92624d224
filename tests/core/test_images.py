"""Jobs in containers wait until their image is there, which is asked for once."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from gpulaunch.core.causes import Because, Quoted
from gpulaunch.core.events import (
    Asked,
    Cancel,
    ImageDigest,
    ImageFailed,
    ImageReady,
    Pause,
    Relisted,
    Retry,
    Stop,
)
from gpulaunch.core.facts import ImageKnown, PullBegun, ServiceReady
from gpulaunch.core.model import Container, DueTime, Exited, ImageSource, RetryPolicy
from tests.core.table import Table, attempt, job, service

IMG, OTHER = Container("img", "docker"), Container("other", "docker")


def source(container: Container = IMG) -> ImageSource:
    assert container.source is not None
    return container.source


def ready(container: Container = IMG, id: str = "sha256:1", pulled: bool = False) -> ImageReady:
    return ImageReady(source(container), id, f"{id}0", "docker", pulled)


def failed(container: Container = IMG) -> ImageFailed:
    return ImageFailed(source(container), "no such image; look at its name")


def known(table: Table) -> list[ImageKnown]:
    return [fact for fact in table.facts if isinstance(fact, ImageKnown)]


def test_an_image_is_asked_for_once_and_all_that_wait_start_in_their_order() -> None:
    table = Table(0, cpus=9)
    jobs = [job(name, gpus=0, container=IMG) for name in "bac"]
    assert table.submit(*jobs, job("bare", gpus=0)) == [
        "launch bare.1 on none",
        "pull img with docker",
    ]
    assert table.state("a") == "waiting: waits for its image img, which is being looked up"
    assert table.on(ready()) == [f"launch {name}.1 on none" for name in "bac"]
    assert table.on(Relisted((job("late", gpus=0, container=IMG),))) == ["launch late.1 on none"]


def test_no_card_is_asked_for_before_the_image_is_there() -> None:
    table = Table(1)
    assert table.submit(job("a", container=IMG)) == ["pull img with docker"]
    assert table.on(ready()) == ["acquire 0"]


def test_each_image_is_asked_for_by_itself() -> None:
    table = Table(0, cpus=9)
    always = Container("img", "docker", pull="always")
    jobs = [job(str(n), gpus=0, container=one) for n, one in enumerate([IMG, OTHER, always])]
    assert table.submit(*jobs) == [
        "pull img with docker",
        "pull other with docker",
        "pull img with docker",
    ]
    assert table.on(ready(OTHER)) == ["launch 1.1 on none"]


def test_an_image_whose_engine_the_file_leaves_open_is_waited_for_as_well() -> None:
    table = Table(0)
    assert table.submit(job("a", gpus=0, container=Container("img"))) == ["pull img with None"]
    assert table.on(ready(Container("img"))) == ["launch a.1 on none"]


def test_a_digest_that_comes_later_is_recorded_once() -> None:
    table = Table(0)
    table.submit(job("a", gpus=0, container=IMG))
    late = ImageDigest(source(), "sha256:late")
    assert table.on(late) == []
    assert known(table) == [], "of an image that nobody has"
    table.on(ready())
    table.on(late, late)
    assert [fact.digest for fact in known(table)] == ["sha256:10", "sha256:late"]


def test_an_image_that_cannot_be_had_fails_who_waits_for_it_and_skips_who_needs_them() -> None:
    table = Table(0, cpus=9)
    a, b = (job(name, gpus=0, container=IMG) for name in "ab")
    table.submit(a, b, job("last", gpus=0, needs=("a",)), job("other", gpus=0, container=OTHER))
    assert table.on(failed()) == []
    why = "failed: never started: its image img cannot be had: no such image; look at its name"
    assert (table.state("a"), table.state("b")) == (why, why)
    assert table.state("last") == "skipped: needs a, which failed"
    assert table.states()["other"] == "waiting"


def test_a_retry_after_a_failure_asks_anew() -> None:
    table = Table(0)
    table.submit(job("a", gpus=0, container=IMG))
    table.on(failed())
    assert table.run.finished
    assert table.on(Asked(Retry(None))) == ["pull img with docker"]
    assert table.on(ready()) == ["launch a.1 on none"]


def test_a_failed_pull_counts_as_the_failure_of_its_jobs() -> None:
    table = Table(0, fail_fast=True)
    table.submit(job("a", gpus=0, container=IMG), job("b", gpus=0, container=OTHER))
    table.on(failed())
    assert table.run.finished
    assert table.run.outcome()[0] == "failed"


def test_an_attempt_that_is_tried_again_finds_the_image_there() -> None:
    table = Table(0)
    table.submit(job("a", gpus=0, container=IMG, retry=RetryPolicy(1)))
    table.on(ready())
    assert table.ended("a.1", Exited(1)) == ["launch a.2 on none"]


def test_what_an_image_is_goes_on_record_where_it_is_news() -> None:
    table = Table(0)
    table.submit(job("a", gpus=0, container=IMG))
    table.on(PullBegun(source(), "docker"), PullBegun(source(), "docker"), ready(pulled=True))
    assert table.facts.count(PullBegun(source(), "docker")) == 1
    assert known(table) == [ImageKnown(source(), "sha256:1", "sha256:10", "docker", True)]
    assert table.run.ledger.images == {source(): known(table)[0]}


def test_a_later_supervisor_tells_what_is_known_of_the_image_and_records_only_news() -> None:
    first = Table(0)
    first.submit(job("a", gpus=0, container=IMG))
    first.on(ready())
    again = Table(0, ledger=first.run.ledger)
    told = again.submit(job("a", gpus=0, container=IMG), job("b", gpus=0, container=IMG))
    assert told == ["pull img with docker, known as sha256:1"]
    again.on(ready())
    assert known(again) == []
    third = Table(0, ledger=again.run.ledger)
    third.submit(job("c", gpus=0, container=IMG))
    third.on(ready(id="sha256:2"))
    assert [fact.id for fact in known(third)] == ["sha256:2"]
    fourth = Table(0, ledger=third.run.ledger)
    fourth.submit(job("d", gpus=0, container=IMG))
    fourth.on(PullBegun(source(), "docker"), ready(id="sha256:2", pulled=True))
    assert [fact.pulled for fact in known(fourth)] == [True], "that its pull is over is news"


def test_answers_that_nobody_asked_for_change_nothing() -> None:
    table = Table(0)
    table.submit(job("a", gpus=0, container=IMG))
    assert table.on(ready(OTHER), failed(OTHER), PullBegun(source(OTHER), "docker")) == []
    assert table.on(ready()) == ["launch a.1 on none"]
    assert table.on(failed(), PullBegun(source(), "docker"), ready(id="sha256:2")) == []
    assert [fact.id for fact in known(table)] == ["sha256:1"]


def test_a_job_that_waits_for_its_image_is_cancelled_at_once_and_the_run_ends() -> None:
    table = Table(0)
    table.submit(job("a", gpus=0, container=IMG))
    assert table.on(Asked(Cancel(("a",)))) == []
    assert table.run.finished
    assert table.on(ready()) == []


def test_what_nobody_waits_for_any_more_is_not_pulled_twice() -> None:
    table = Table(0)
    a = job("a", gpus=0, container=IMG)
    table.submit(a, job("keeps", gpus=0))
    table.on(Asked(Cancel(("a",))))
    assert table.on(Asked(Retry(("a",)))) == []
    assert table.states()["a"] == "waiting"
    table.ended("keeps.1")
    assert table.on(ready()) == ["launch a.1 on none"]


def test_a_stopped_run_ends_while_an_image_is_pulled_and_asks_for_none() -> None:
    table = Table(0)
    table.submit(job("a", gpus=0, container=IMG))
    assert table.on(Asked(Stop(Quoted("SIGINT")))) == []
    assert table.run.finished
    assert table.run.outcome()[0] == "stopped"
    assert table.on(Relisted((job("b", gpus=0, container=OTHER),))) == []


def test_a_paused_run_asks_for_an_image_once_it_goes_on() -> None:
    table = Table(0)
    table.on(Asked(Pause(Quoted("wait"))))
    assert table.submit(job("a", gpus=0, container=IMG)) == []
    assert table.state("a") == "waiting: paused: wait"
    assert table.on(Asked(Pause(None))) == ["pull img with docker"]
    table.on(Asked(Pause(Quoted("wait"))))
    assert table.on(ready()) == []
    assert table.on(Asked(Pause(None))) == ["launch a.1 on none"]


def test_an_image_is_asked_for_only_once_all_that_its_job_needs_is_over() -> None:
    table = Table(0)
    table.submit(job("first", gpus=0), job("a", gpus=0, container=IMG, needs=("first",)))
    assert table.ended("first.1") == ["pull img with docker"]


def test_an_image_is_asked_for_only_once_its_job_is_due() -> None:
    table = Table(0)
    night = job("night", gpus=0, container=IMG, not_before=DueTime("19:00", 1030.0))
    assert table.submit(night) == ["at 30 due"]
    assert table.timer("due", 30.0) == ["pull img with docker"]
    table.ahead = -20.0  # the clock was put back
    assert table.on(ready()) == ["at 20 due"]
    assert table.timer("due", 20.0) == ["launch night.1 on none"]


def test_an_image_is_asked_for_only_after_the_pause_before_a_retry() -> None:
    table = Table(0)
    a = job("a", gpus=0, retry=RetryPolicy(1, delay=30.0))
    table.submit(a)
    table.on(Relisted((replace(a, container=IMG),)))
    assert table.ended("a.1", Exited(1)) == ["at 30 job/a"]
    assert table.timer("job/a", 30.0) == ["pull img with docker"]


def test_a_service_in_a_container_is_pulled_when_somebody_asks_for_it() -> None:
    table = Table(0)
    user = job("user", gpus=0, needs=("msa", "first"))
    table.submit(service("msa", gpus=0, container=IMG), job("first", gpus=0), user)
    assert table.ended("first.1") == ["pull img with docker"]
    assert table.state("user") == "waiting: waits for its service msa to be ready"
    assert table.on(ready()) == ["launch msa.1 on none"]
    table.started("msa.1")
    assert table.on(ServiceReady(attempt("msa.1"))) == ["launch user.1 on none"]


def test_a_service_whose_image_cannot_be_had_skips_who_needs_it() -> None:
    table = Table(0)
    table.submit(service("msa", gpus=0, container=IMG), job("user", gpus=0, needs=("msa",)))
    table.on(failed())
    assert table.state("user") == "skipped: needs msa, which failed"
    assert table.run.finished


def test_a_service_that_nobody_asks_for_any_more_does_not_start_when_its_image_comes() -> None:
    table = Table(0)
    now, later = (job(name, gpus=0, needs=("msa",)) for name in ("now", "later"))
    first = job("first", gpus=0)
    table.submit(
        service("msa", gpus=0, container=IMG), first, now, replace(later, after=("first",))
    )
    table.on(Asked(Cancel(("now",))))
    assert table.state("msa") == "waiting: starts when a job that needs it is ready to go"
    assert table.on(ready()) == []
    assert table.ended("first.1") == ["launch msa.1 on none"]


def test_a_service_is_asked_for_only_once_the_image_of_its_user_is_there() -> None:
    table = Table(1)
    user = job("user", gpus=0, container=IMG, needs=("msa",))
    assert table.submit(service("msa"), user) == ["pull img with docker"]
    assert table.on(ready()) == ["acquire 0"]


def test_jobs_that_wait_for_an_image_are_no_deadlock() -> None:
    table = Table(1)
    table.submit(service("extra", needs=()), job("a", gpus=0, container=IMG))
    table.granted(0)
    table.started("extra.1")
    table.on(ServiceReady(attempt("extra.1")))
    assert table.states() == {"extra": "running", "a": "waiting"}
    assert table.on(ready()) == ["launch a.1 on none"]


def test_an_idle_worker_is_not_kept_for_jobs_that_wait_for_an_image() -> None:
    table = Table(1)
    table.submit(job("a", worker="fold"), job("b", worker="fold", container=IMG))
    table.granted(0)
    assert table.ended("a.1", kept=True) == ["end worker a.1"]


def test_a_job_that_gets_another_container_waits_for_that_one() -> None:
    table = Table(0)
    a = job("a", gpus=0, container=IMG)
    table.submit(a)
    assert table.on(Relisted((replace(a, container=OTHER),))) == ["pull other with docker"]
    assert table.on(failed()) == []
    assert table.on(ready(OTHER)) == ["launch a.1 on none"]


def test_a_job_that_gets_out_of_its_container_starts_at_once() -> None:
    table = Table(0)
    a = job("a", gpus=0, container=IMG)
    table.submit(a)
    assert table.on(Relisted((replace(a, container=None),))) == ["launch a.1 on none"]


def test_a_job_that_the_list_has_no_more_while_it_waits_for_its_image_is_cancelled() -> None:
    table = Table(0)
    table.submit(job("a", gpus=0, container=IMG), job("keeps", gpus=0))
    table.on(Relisted((), gone=("a",)))
    assert table.run.ledger.jobs["a"].reason == Because("not_in_file")
    assert table.on(ready()) == []
    table.ended("keeps.1")
    assert table.run.finished


@pytest.mark.parametrize("needs", [(), ("first",)])
def test_an_engine_that_queues_is_handed_no_job_before_its_image_is_there(
    needs: tuple[str, ...],
) -> None:
    table = Table(0, queue=100, ahead=True)
    lines = table.submit(job("first"), job("boxed", needs=needs, container=IMG))
    assert "launch boxed.1 on none" not in lines
    lines += table.ended("first.1")
    assert lines == ["launch first.1 on none", "pull img with docker"]
    assert table.on(ready()) == ["launch boxed.1 on none"]


def test_a_job_goes_ahead_of_its_needs_once_another_one_has_brought_its_image() -> None:
    table = Table(0, queue=100, ahead=True)
    table.submit(
        job("first"), job("boxed", needs=("first",), container=IMG), job("now", container=IMG)
    )
    assert table.on(ready()) == ["launch now.1 on none", "launch boxed.1 on none after first.1"]
