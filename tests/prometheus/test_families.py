"""A run's facts and samples in, what Prometheus is told of them out."""

from __future__ import annotations

import time

import pytest
from msgspec.structs import replace

from gpulaunch.core import facts as f
from gpulaunch.core.causes import Quoted
from gpulaunch.core.model import AttemptId, Exited, Gpu, Instant, Interrupted, Lost, Signaled
from gpulaunch.core.retry import POLICIES
from gpulaunch.observe.metrics.model import SAMPLE_MAX_AGE, CardSample
from gpulaunch.observe.prometheus.families import Tally, names
from tests.prometheus.support import Page, page, tallied
from tests.views.history import START, History

MEASURED = ("utilization_ratio", "memory_used_bytes", "power_watts", "temperature_celsius")


def told(run: History, *samples: CardSample) -> Page:
    return page(tallied(run.facts), run.now, {sample.gpu: sample for sample in samples})


def busy(simulated: bool = False) -> History:
    """Three cards; one job succeeded, one failed twice, one runs, two wait, one is skipped."""
    run = History(3, simulated).open().jobs("a", "b", "c", "d", "e", "g").pass_(10)
    run.start("a", 0).pass_(30).succeed("a")
    run.start("b", 1).pass_(5).end("b", Signaled(9), "host_oom")
    run.add(f.JobDelayed("b", Quoted("killed by SIGKILL; retry 1 of 1")))
    run.start("b", 1).pass_(5).fail("b").skip("g", "needs b, which failed")
    run.start("c", 0).pass_(20)
    return run.add(f.GpuChanged(run.pool[2].uuid, "aside", Quoted("its memory did not drain")))


def test_the_families_follow_the_conventions() -> None:
    for family in names():
        assert family.name.startswith("gpulaunch_")
        assert family.documentation.endswith(".")
        assert not family.name.endswith("_total")
        for unit in ("seconds", "bytes", "ratio", "watts", "celsius"):
            assert (family.unit == unit) == family.name.endswith(f"_{unit}")


def test_a_page_has_help_type_and_unit_lines_and_an_end() -> None:
    lines = told(busy()).text.splitlines()
    assert "# TYPE gpulaunch_attempts counter" in lines
    assert "# UNIT gpulaunch_run_elapsed_seconds seconds" in lines
    assert "# HELP gpulaunch_jobs Jobs by their present state." in lines
    assert lines[-1] == "# EOF"


def test_jobs_and_attempts_are_counted() -> None:
    found = told(busy())
    assert found.by("gpulaunch_jobs", "state") == {
        "succeeded": 1, "failed": 1, "running": 1, "waiting": 2, "skipped": 1
    }  # fmt: skip
    assert found.value("gpulaunch_jobs", state="cancelled") == 0
    assert found.value("gpulaunch_queue_length") == 2
    assert found.by("gpulaunch_attempts_total", "outcome") == {"succeeded": 1, "failed": 2}
    assert found.by("gpulaunch_failures_total", "failure") == {"host_oom": 1, "exit": 1}
    assert found.value("gpulaunch_retries_total") == 1
    assert found.value("gpulaunch_attempts_running") == 1


def test_every_failure_class_is_there_before_its_first_failure() -> None:
    classes = {labels["failure"] for labels in told(busy()).labels("gpulaunch_failures_total")}
    assert classes == {*POLICIES, "other"}


def test_a_class_that_nobody_knows_counts_as_other() -> None:
    run = History().open().jobs("a").start("a", 0).end("a", Exited(1), "of-the-future")
    assert told(run).by("gpulaunch_failures_total", "failure") == {"other": 1}


def test_times_are_seconds() -> None:
    found = told(busy())
    assert found.value("gpulaunch_run_start_timestamp_seconds") == START
    assert found.value("gpulaunch_run_elapsed_seconds") == 70
    assert found.value("gpulaunch_attempt_oldest_start_timestamp_seconds") == START + 50


def test_a_clock_that_is_set_changes_no_duration() -> None:
    run = busy()
    for set_by in (-864_000, 864_000):
        found = page(tallied(run.facts), replace(run.now, utc=run.now.utc + set_by))
        assert found.value("gpulaunch_run_elapsed_seconds") == 70


def test_what_is_not_known_is_absent() -> None:
    found = told(History().open().jobs("a"))
    assert "gpulaunch_attempt_oldest_start_timestamp_seconds" not in found.families
    assert "gpulaunch_run_estimated_remaining_seconds" not in found.families
    assert "gpulaunch_gpu_oldest_start_timestamp_seconds" not in found.families


def test_time_left_is_there_once_three_jobs_are_done() -> None:
    run = History(1).open().jobs(*"abcdef")
    for name in "abc":
        run.start(name, 0).pass_(60).succeed(name)
    found = told(run)
    for name in ("", "_low", "_high"):
        remaining = found.value(f"gpulaunch_run_estimated_remaining{name}_seconds")
        assert remaining == pytest.approx(180)
    run.add(f.RunClosed("stopped"))
    assert "gpulaunch_run_estimated_remaining_seconds" not in told(run).families


def test_an_earlier_run_gives_the_first_estimate_and_a_resumed_run_has_its_own() -> None:
    run = History(1).open().jobs(*"abc").start("a", 0)
    tally = Tally(dict.fromkeys("abc", 60.0))
    for fact, at in run.facts:
        tally.see(fact, at)
    ahead = tally.ahead(run.now)
    assert ahead is not None
    assert ahead.seconds == pytest.approx(180)
    again = run.pass_(1).open()
    tally.see(*again.facts[-1])
    assert tally.ahead(again.now) is None


def test_a_run_that_is_being_stopped_has_no_estimate() -> None:
    run = History(1).open().jobs(*"abcdef")
    for name in "abc":
        run.start(name, 0).pass_(60).succeed(name)
    run.add(f.StopAsked(Quoted("Ctrl-C")))
    assert "gpulaunch_run_estimated_remaining_seconds" not in told(run).families


def test_a_service_is_not_the_longest_running_attempt() -> None:
    run = History().open().jobs("server", service=True).jobs("a")
    run.start("server", 0).pass_(100).start("a", 0)
    found = told(run)
    assert found.value("gpulaunch_attempt_oldest_start_timestamp_seconds") == START + 100
    assert found.value("gpulaunch_gpu_attempts_running", gpu="0", uuid="GPU-0") == 2


def test_the_run_says_who_it_is_and_whether_it_is_simulated() -> None:
    who = {"run": "20261120-074215-a1b2c3", "name": "nanobodies", "version": "0.1"}
    assert told(busy()).value("gpulaunch_run_info", **who, simulated="false") == 1
    assert told(busy(simulated=True)).value("gpulaunch_run_info", **who, simulated="true") == 1


def test_a_paused_run_says_so() -> None:
    run = busy().add(f.AdmissionPaused(Quoted("10 jobs failed alike")))
    assert told(run).value("gpulaunch_run_paused") == 1
    assert told(run.add(f.AdmissionContinued())).value("gpulaunch_run_paused") == 0


def test_cards_are_told_by_state_and_one_by_one() -> None:
    run = busy().add(f.GpuDrained("GPU-1", True))
    found = told(run)
    assert found.by("gpulaunch_gpus", "state") == {"free": 2, "aside": 1}
    states = found.labels("gpulaunch_gpu_state")
    assert len(states) == 3 * 6
    aside = {"gpu": "2", "uuid": "GPU-2", "gpulaunch_gpu_state": "aside"}
    assert found.value("gpulaunch_gpu_state", **aside) == 1
    assert found.value("gpulaunch_gpu_drained", gpu="1", uuid="GPU-1") == 1
    assert found.value("gpulaunch_gpu_attempts_running", gpu="0", uuid="GPU-0") == 1
    assert found.value("gpulaunch_gpu_oldest_start_timestamp_seconds", gpu="0", uuid="GPU-0") == (
        START + 50
    )
    assert found.labels("gpulaunch_gpu_info")[0] == {
        "gpu": "0", "uuid": "GPU-0", "name": "NVIDIA H200", "simulated": "false"
    }  # fmt: skip


def test_parts_of_one_card_are_told_apart() -> None:
    run = History()
    whole = run.pool[0]
    run.pool = tuple(replace(whole, uuid=f"MIG-{n}", mig=True, part=(n,)) for n in range(3))
    found = told(run.open())
    assert len(found.labels("gpulaunch_gpu_attempts_running")) == 3


def test_samples_are_in_base_units() -> None:
    run = busy()
    found = told(run, CardSample("GPU-0", run.now.utc - 1, 85, 40 << 30, 512.5, 61))
    card = {"gpu": "0", "uuid": "GPU-0"}
    assert found.value("gpulaunch_gpu_utilization_ratio", **card) == 0.85
    assert found.value("gpulaunch_gpu_memory_used_bytes", **card) == 40 << 30
    assert found.value("gpulaunch_gpu_memory_total_bytes", **card) == 80 << 30
    assert found.value("gpulaunch_gpu_power_watts", **card) == 512.5
    assert found.value("gpulaunch_gpu_temperature_celsius", **card) == 61


@pytest.mark.parametrize("missing", MEASURED)
def test_what_was_not_measured_is_absent_and_not_0(missing: str) -> None:
    fields = dict(zip(MEASURED, ("utilization", "memory", "power", "temperature"), strict=True))
    run = busy()
    whole = CardSample("GPU-0", run.now.utc, 0, 0, 0.0, 0)
    found = told(run, replace(whole, **{fields[missing]: None}))
    for name in MEASURED:
        assert (f"gpulaunch_gpu_{name}" in found.families) == (name != missing)


def test_an_old_sample_does_not_pass_for_the_present() -> None:
    run = busy()
    fresh = CardSample("GPU-0", run.now.utc - SAMPLE_MAX_AGE, 85)
    old = CardSample("GPU-1", run.now.utc - SAMPLE_MAX_AGE - 1, 85)
    found = told(run, fresh, old).labels("gpulaunch_gpu_utilization_ratio")
    assert [labels["uuid"] for labels in found] == ["GPU-0"]


def test_pretend_cards_measure_nothing_and_have_no_memory() -> None:
    run = busy(simulated=True)
    found = told(run, CardSample("SIM-0", run.now.utc, 50, 1, 1.0, 1))
    assert not [name for name in found.families if name.endswith(("_ratio", "_bytes", "_watts"))]
    assert "gpulaunch_gpu_temperature_celsius" not in found.families
    assert {labels["simulated"] for labels in found.labels("gpulaunch_gpu_info")} == {"true"}


def test_a_name_of_any_bytes_is_a_label() -> None:
    run = History()
    run.pool = (replace(run.pool[0], name='H200 "\\\n\x00'),)
    run.open('no\udcff utf-8 "quoted" \\ \n \r \x85 \u202e né 蛋白')
    found = told(run)
    assert len(found.text.splitlines()) == len(found.text.split("\n")) - 1
    (who,) = found.labels("gpulaunch_run_info")
    assert who["name"].startswith("no")
    assert "né 蛋白" in who["name"]


def test_interrupted_attempts_are_no_retries_and_lost_ones_are() -> None:
    run = History().open().jobs("a", "b")
    run.start("a", 0).end("a", Interrupted(Quoted("drain"))).add(
        f.JobDelayed("a", Quoted("given back"))
    )
    run.start("a", 0).end("a", Lost(Quoted("no end")), "lost").add(
        f.JobDelayed("a", Quoted("lost"))
    )
    run.start("a", 0).fail("a")
    found = told(run)
    assert found.by("gpulaunch_attempts_total", "outcome") == {
        "interrupted": 1, "lost": 1, "failed": 1
    }  # fmt: skip
    assert found.value("gpulaunch_retries_total") == 1
    run.add(f.JobRequeued("a", Quoted("asked"))).start("a", 0)
    assert told(run).value("gpulaunch_retries_total") == 1


def test_a_resumed_run_counts_on() -> None:
    run = busy()
    before = told(run)
    run.pass_(100).open()  # its supervisor was killed
    between = told(run)
    run.end("c", Lost(Quoted("its supervisor was gone")), "lost").add(
        f.JobDelayed("c", Quoted("lost"))
    )
    run.add(f.JobRequeued("b", Quoted("resume"))).start("b", 0).pass_(5).succeed("b")
    after = told(run)
    counters = [name for name, family in after.families.items() if family.type == "counter"]
    assert len(counters) == 3
    for name in counters:
        for labels in after.labels(f"{name}_total"):
            values = [each.value(f"{name}_total", **labels) for each in (before, between, after)]
            assert values == sorted(values)
    assert after.by("gpulaunch_attempts_total", "outcome") == {
        "succeeded": 2, "failed": 2, "lost": 1
    }  # fmt: skip
    assert after.value("gpulaunch_run_start_timestamp_seconds") == START


def test_cards_and_jobs_that_a_resume_no_longer_has_do_not_count() -> None:
    run = busy()
    run.pool = run.pool[:1]
    found = told(run.open().add(f.JobVanished("d")))
    assert found.by("gpulaunch_gpus", "state") == {"free": 1}
    assert found.value("gpulaunch_queue_length") == 1


def test_a_hundred_thousand_jobs_give_as_many_series_as_three() -> None:
    run = History(16).open().jobs(*"abc")
    few = told(run).series
    run = History(16).open()
    for number in range(100_000):
        run.facts.append((f.JobAdded(f"job-{number}", number % 50, 1, "d"), run.now))
    for number in range(16):
        attempt = AttemptId(f"job-{number}", 1)
        run.facts.append((f.AttemptLaunched(attempt, (f"GPU-{number}",)), run.now))
    tally = tallied(run.facts)
    began = time.process_time()
    found = page(tally, run.now)
    assert time.process_time() - began < 5
    assert found.value("gpulaunch_jobs", state="waiting") == 100_000 - 16
    # One more each: the longest running attempt, of all and of each card.
    assert found.series == few + 17
    assert max(len(labels) for name in found.families for labels in found.labels(name)) <= 4


def test_an_unknown_card_of_a_sample_is_nobodys() -> None:
    run = busy()
    found = told(run, CardSample("GPU-of-others", run.now.utc, 50))
    assert "gpulaunch_gpu_utilization_ratio" not in found.families


def test_a_card_whose_memory_is_not_known_has_none() -> None:
    run = History()
    run.pool = (Gpu("GPU-0", 0, "key/0", "H200", 0),)
    assert "gpulaunch_gpu_memory_total_bytes" not in told(run.open()).families


def test_energy_is_a_counter_in_joules_and_absent_where_it_was_not_measured() -> None:
    tally = tallied([])
    assert "gpulaunch_attempts_energy_joules" not in page(tally, Instant(0.0, 0.0)).families
    found = page(tally, Instant(0.0, 0.0), energy=3600.5)
    assert found.value("gpulaunch_attempts_energy_joules_total") == 3600.5
