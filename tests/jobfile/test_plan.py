"""Jobs that these cards could never run are mistakes of the file, with the line shown."""

from __future__ import annotations

import pytest

from gpulaunch.core.model import Gpu, choose
from tests.jobfile.helpers import plan_of

GB = 10**9


def cards(*memory: int, mig: bool = False) -> list[Gpu]:
    return [
        Gpu(f"GPU-{i}", i, f"k{i}", "card", size * GB, mig=mig) for i, size in enumerate(memory)
    ]


def never(text: str, gpus: list[Gpu], pool: int | None = None) -> list[str]:
    found = plan_of(text).unplaceable(gpus, len(gpus) if pool is None else pool)
    return [one.text.split("\n")[0].removeprefix("jobs.yaml:") for one in found]


def test_everything_fits() -> None:
    assert never("jobs: [{run: x, gpus: 2, gpu_memory: 16GB}]", cards(16, 24)) == []
    assert never("jobs: [{run: x, gpus: 0, cpus: 4}]", []) == []
    assert never("jobs: [{run: x, cpus: 99}]", cards(16)) == []


def test_more_cards_than_the_run_has() -> None:
    assert never("jobs:\n - run: x\n   gpus: 4\n", cards(16, 16), pool=1) == [
        "3:10: jobs[0].gpus: needs 4 cards, the run has 1 (job job-1)"
    ]
    assert never("jobs: [{run: x}]", []) == [
        "1:8: jobs[0].gpus: needs 1 card, the run has 0 (job job-1)"
    ]


def test_each_entry_and_reason_is_said_once() -> None:
    text = "jobs: [{run: x, gpus: 3, foreach: {values: [1, 2, 3]}}]"
    assert len(never(text, cards(16))) == 1


def test_what_the_defaults_ask_for_is_told_there_once_with_a_job_that_has_it() -> None:
    text = (
        "defaults: {gpus: 3, gpu_memory: 20GB}\n"
        "jobs: [{name: a, run: x, gpus: 1}, {name: b, run: x, gpu_memory: 1GB},"
        " {name: c, run: x}, {name: d, run: x, gpus: null, gpu_memory: 30GB}]"
    )
    assert never(text, cards(16, 16)) == [
        "1:18: defaults.gpus: needs 3 cards, the run has 2 (job b)",
        "1:33: defaults.gpu_memory: needs 1 card with 18.6 GiB each; 0 of 2 have that much, the"
        " largest has 14.9 GiB (job a)",
        "2:133: jobs[3].gpu_memory: needs 1 card with 27.9 GiB each; 0 of 2 have that much, the"
        " largest has 14.9 GiB (job d)",
    ]


def test_more_memory_than_any_card_has() -> None:
    assert never("jobs: [{run: x, gpu_memory: 40GB}]", cards(16, 24)) == [
        "1:29: jobs[0].gpu_memory: needs 1 card with 37.3 GiB each; 0 of 2 have that much, the"
        " largest has 22.4 GiB (job job-1)"
    ]
    assert len(never("jobs: [{run: x, gpus: 2, gpu_memory: 20GB}]", cards(16, 24))) == 1


def test_more_host_memory_than_the_run_may_reserve() -> None:
    plan = plan_of("jobs: [{run: x, gpus: 0, memory: 64GB}]")
    (mistake,) = plan.unplaceable([], 0, 32 * GB)
    assert mistake.text.split("\n")[0] == (
        "jobs.yaml:1:34: jobs[0].memory: reserves 59.6 GiB of the host's memory, of which this run"
        " may reserve 29.8 GiB (job job-1)"
    )
    assert plan.unplaceable([], 0, 64 * GB) == plan.unplaceable([], 0) == []


def test_a_service_and_a_job_that_needs_it_reserve_memory_together() -> None:
    plan = plan_of(
        "jobs: [{name: db, run: x, gpus: 0, memory: 40GB, service: {ready: 'tcp:80'}},"
        " {name: a, run: x, gpus: 0, memory: 30GB, needs: [db]}]"
    )
    (mistake,) = plan.unplaceable([], 0, 64 * GB)
    assert "a and the services it needs (db) reserve 65.2 GiB of the host's memory at once" in (
        mistake.text
    )


def test_one_process_uses_one_mig_instance() -> None:
    (line,) = never("jobs: [{run: x, gpus: 2}]", cards(5, 5, mig=True))
    assert "the run has 0 that are not MIG instances" in line


def test_more_tokens_than_there_are() -> None:
    (line,) = never("{limits: {t: 1}, jobs: [{run: x, gpus: 0, uses: [t, t]}]}", [])
    assert "needs 2 of t, its limit is 1" in line


SERVICE = """
limits: {{t: 1}}
jobs:
  - {{name: server, run: x, service: {{ready: "tcp:{{{{port}}}}"}}, {server}}}
  - {{name: beyond, run: x, service: {{ready: "tcp:{{{{port}}}}"}}, needs: server, {beyond}}}
  - {{name: narrow, run: x, needs: beyond}}
  - {{name: wide, run: x, needs: beyond, {wide}}}
"""


def test_services_fit_together_with_the_widest_job_that_needs_them() -> None:
    text = SERVICE.format(server="gpus: 1", beyond="gpus: 0", wide="gpus: 2")
    assert never(text, cards(16, 16, 16)) == []
    (line,) = never(text, cards(16, 16))
    assert line == (
        "7:33: jobs[3].needs: wide and the services it needs (beyond, server) take 3 cards at once,"
        " the run has 2"
    )


def test_jobs_that_share_a_card_with_their_service_need_one() -> None:
    text = SERVICE.format(server="per_gpu: 2", beyond="gpus: 0", wide="per_gpu: 2")
    assert len(never(text, cards(16))) == 1  # narrow, which is alone on its card
    text = text.replace("needs: beyond}", "needs: beyond, per_gpu: 2}")
    assert never(text, cards(16)) == []


def test_a_service_leaves_the_card_that_its_dependent_alone_needs() -> None:
    text = SERVICE.format(server="gpus: 1", beyond="gpus: 0", wide="gpu_memory: 40GB")
    assert never(text, cards(16, 80)) == never(text, cards(80, 16)) == []
    assert "0 of 3 have that much" in " ".join(never(text, cards(16, 16, 16)))


def test_services_hold_their_tokens_meanwhile() -> None:
    text = SERVICE.format(server="uses: t", beyond="gpus: 0", wide="uses: t")
    (line,) = never(text, cards(16, 16))
    assert "hold 2 of t at once, its limit is 1" in line


def test_a_later_mistake_can_be_pointed_at_its_line() -> None:
    plan = plan_of("jobs: [{run: x}]\ngpus: [7]\n")
    assert plan.point(("gpus",), "there is no card 7") == (
        "jobs.yaml:2:7: gpus: there is no card 7\n    gpus: [7]\n          ^"
    )


def test_a_card_of_the_file_that_is_not_there_is_pointed_at() -> None:
    plan = plan_of("gpus: [SIM-1, 1]\njobs: [{run: x}]\n")
    gpus = [Gpu(f"SIM-{i}", i, f"s{i}", "card", GB) for i in range(2)]
    with pytest.raises(LookupError) as caught:
        choose(plan.selection, gpus)
    assert plan.point(("gpus",), str(caught.value)) == (
        "jobs.yaml:1:7: gpus: SIM-1 and 1 are the same card: name it once\n"
        "    gpus: [SIM-1, 1]\n          ^"
    )
