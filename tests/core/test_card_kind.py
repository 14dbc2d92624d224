"""Which cards a job takes: of a model, or one card alone."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from gpulaunch.base.wording import job_reason
from gpulaunch.core.events import Cancel
from gpulaunch.core.model import Demand, Gpu
from gpulaunch.core.placement import is_kind
from gpulaunch.core.retry import RetryContext, choose_placement
from tests.core.table import Table, job, service
from tests.core.world import GIB

A100 = Gpu("GPU-0", 0, "0", "NVIDIA A100-SXM4-80GB", 80 * GIB, compute=(8, 0))
L40S = Gpu("GPU-1", 1, "1", "NVIDIA L40S", 48 * GIB, compute=(8, 9))
H100 = Gpu("GPU-2", 2, "2", "NVIDIA H100 80GB HBM3", 80 * GIB, compute=(9, 0))
ALL = (A100, L40S, H100)


@pytest.mark.parametrize(
    ("demand", "fit"),
    [
        (Demand(), ALL),
        (Demand(card="*A100*"), (A100,)),
        (Demand(card="nvidia l40s"), (L40S,)),
        (Demand(card="A100"), ()),
        (Demand(card="*[AH]100*"), (A100, H100)),
        (Demand(compute=(8, 0)), ALL),
        (Demand(compute=(8, 9)), (L40S, H100)),
        (Demand(compute=(10, 0)), ()),
        (Demand(card="*100*", compute=(8, 6)), (H100,)),
    ],
)
def test_a_card_fits_by_its_name_and_by_what_it_can(demand: Demand, fit: tuple[Gpu, ...]) -> None:
    assert tuple(gpu for gpu in ALL if is_kind(gpu, demand)) == fit


def test_a_card_of_unknown_capability_is_none_that_a_job_may_need() -> None:
    unknown = replace(H100, compute=())
    assert not is_kind(unknown, Demand(compute=(1, 0)))
    assert is_kind(unknown, Demand(card="*H100*"))


def test_a_pretend_card_is_of_any_kind() -> None:
    pretend = Gpu("SIM-0", 0, "sim", "simulated", GIB, simulated=True)
    assert is_kind(pretend, Demand(card="*H100*", compute=(9, 0)))


def test_jobs_run_on_cards_of_their_kind_alone() -> None:
    table = Table(gpus=ALL)
    asked = table.submit(job("new", compute=(9, 0)), job("l40s", card="*L40S*"))
    assert sorted(asked) == ["acquire 1", "acquire 2"]
    assert table.granted(2, 1) == ["launch new.1 on 2", "launch l40s.1 on 1"]


def test_a_job_waits_for_its_kind_and_says_so() -> None:
    table = Table(gpus=ALL)
    table.submit(job("a", card="*H100*"), job("b", card="*H100*"))
    table.granted(2)
    assert job_reason(table.run.why_waiting("b")) == (
        "waits for a card of the model *H100*: GPUs 0, 1 are of another kind; GPU 2 is busy with a"
        " (0:00)"
    )


def test_a_kind_that_is_not_there_is_never_waited_for() -> None:
    table = Table(gpus=ALL)
    table.submit(job("a", gpus=2, compute=(8, 9), card="*L40S*"))
    assert table.run.finished
    assert job_reason(table.run.ledger.jobs["a"].reason) == (
        "never started: needs 2 cards of the model *L40S* with compute capability 8.9 or more, the"
        " run has 1; its cards are NVIDIA A100-SXM4-80GB (8.0), NVIDIA L40S (8.9), NVIDIA H100 80GB"
        " HBM3 (9.0)"
    )


def test_the_only_card_of_a_kind_being_set_aside_ends_the_waiting() -> None:
    table = Table(gpus=ALL)
    table.submit(job("a", card="*H100*"))
    table.sick(2)
    assert table.run.finished
    assert table.run.ledger.jobs["a"].state == "failed"


def test_a_service_and_its_job_of_different_kinds_find_room_under_a_limit() -> None:
    table = Table(gpus=ALL, limit=2)
    lines = table.submit(
        service("serve", card="*L40S*"), job("ask", compute=(9, 0), needs=("serve",))
    )
    assert lines == ["acquire 1"]


def test_a_service_leaves_the_card_that_its_jobs_cannot_do_without() -> None:
    table = Table(gpus=ALL)
    assert table.submit(service("serve"), job("ask", card="*A100*", needs=("serve",))) == [
        "acquire 1"
    ]
    large, small = replace(A100, rank=0), replace(L40S, rank=1)
    table = Table(gpus=(large, small))
    asks = job("ask", gpu_memory=large.memory, needs=("serve",))
    assert table.submit(service("serve"), asks) == ["acquire 1"], "though it is used last"
    table = Table(gpus=ALL)
    two = (job("ask", card="*A100*", needs=("serve",)), service("serve", card="*A100*"))
    assert table.submit(*two) == [], "there is none left for it"


def test_out_of_memory_goes_to_a_larger_card_of_the_kind_alone() -> None:
    ground = RetryContext(used=(L40S,), others=(A100, L40S, H100))
    there = choose_placement("gpu_oom", Demand(compute=(9, 0)), ground)
    assert not isinstance(there, str)
    assert there.demand.gpu_memory > L40S.memory
    assert choose_placement("gpu_oom", Demand(card="*L40S*"), ground) == "no_larger"
    assert choose_placement("wrong_arch", Demand(card="*L40S*"), ground) == "no_other_kind"


def test_a_service_waits_for_a_card_of_the_kind_that_its_job_takes() -> None:
    table = Table(gpus=ALL)
    first = job("first", card="*H100*")
    table.submit(
        service("serve", card="*L40S*"), job("ask", card="*H100*", needs=("serve",)), first
    )
    table.occupied(2)
    table.asked(Cancel(("first",)))
    assert table.granted(1) == ["release 1"], "it would serve nobody"
    assert table.timer("gpu/2", 2.0) == ["acquire 2"], "which nothing of its own kind asks for"
    assert table.granted(2) == ["acquire 1", "release 2"]
    assert table.granted(1) == ["launch serve.1 on 1"]


# ── One card alone ──────────────────────────────────────────────────────────────────────────────


def test_a_job_for_one_card_runs_there_alone_and_waits_for_it() -> None:
    table = Table(gpus=ALL)
    asked = table.submit(
        job("a", own_gpu="GPU-1"), job("b", own_gpu="GPU-1"), job("c", own_gpu="GPU-2")
    )
    assert sorted(asked) == ["acquire 1", "acquire 2"]
    assert table.granted(2, 1) == ["launch c.1 on 2", "launch a.1 on 1"]
    assert job_reason(table.run.why_waiting("b")) == (
        "waits for its own card: GPU 1 is busy with a (0:00)"
    )
    table.started("a.1")
    assert table.ended("a.1") == ["drain 1"]
    assert table.drained(1) == ["launch b.1 on 1"]


def test_a_job_whose_own_card_is_set_aside_ends_and_says_so() -> None:
    table = Table(gpus=ALL)
    table.submit(job("a", own_gpu="GPU-1"), job("b", own_gpu="GPU-2"))
    table.sick(1)
    assert table.state("a") == (
        "failed: never started: needs its own card, GPU-1, which was set aside: fell off the bus"
    )
    assert table.granted(2) == ["launch b.1 on 2"]


def test_a_simulated_card_is_no_other_than_it_is() -> None:
    pretend = Gpu("SIM-0", 0, "sim", "simulated", GIB, simulated=True)
    assert is_kind(pretend, Demand(own_gpu="SIM-0"))
    assert not is_kind(pretend, Demand(own_gpu="SIM-1"))


def test_out_of_memory_of_a_job_for_one_card_is_no_reason_to_go_elsewhere() -> None:
    ground = RetryContext(used=(L40S,), others=(A100, L40S, H100))
    assert choose_placement("gpu_oom", Demand(own_gpu="GPU-1"), ground) == "no_larger"


def test_a_service_and_a_job_for_one_card_find_room_however_they_are_ordered() -> None:
    table = Table(gpus=(L40S, A100))
    share = {"share": True, "per_gpu": 2}
    table.submit(service("serve", own_gpu="GPU-1", **share), job("ask", needs=("serve",), **share))
    assert table.granted(1) == ["launch serve.1 on 1"]
