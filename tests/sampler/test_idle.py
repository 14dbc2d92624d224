"""For how long a job has held its card and computed nothing: what counts, and what never does."""

from __future__ import annotations

from functools import reduce

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpulaunch.observe.sampler.attempts import MOST_UNKNOWN, IdleSample, IdleWatch
from gpulaunch.observe.sampler.driver import CardWork, work_of
from tests.gpus.fake import GIB


def sample(
    span: float = 1.0,
    gap: float = 0.0,
    memory: int | None = GIB,
    work: tuple[float | None, ...] = (0.0,),
    stopped: bool = False,
) -> IdleSample:
    return IdleSample(span, gap, memory, work, stopped)


def watched(*samples: IdleSample) -> IdleWatch:
    return reduce(IdleWatch.after, samples, IdleWatch())


IDLE, BUSY, UNKNOWN = sample(), sample(work=(3.0,)), sample(work=(None,))


@pytest.mark.parametrize(
    ("samples", "idle"),
    [
        ([IDLE] * 30, 30.0),
        ([IDLE] * 30 + [BUSY], 0.0),
        ([IDLE] * 30 + [BUSY] + [IDLE] * 4, 4.0),
        ([sample(memory=0)] * 30, 0.0),  # it holds nothing: it runs on the CPU, or has yet to load
        ([IDLE] * 5 + [sample(memory=0)], 0.0),
        ([sample(memory=None)] * 30, 0.0),  # the driver names no process
        ([UNKNOWN] * 30, 0.0),
        ([IDLE] * 5 + [UNKNOWN] * 30 + [IDLE], 6.0),  # nobody knows of 30 s: they do not count
        ([IDLE] * 5 + [UNKNOWN] * 61 + [IDLE], 1.0),  # it may have computed in a minute
        ([sample(gap=20.0), IDLE], 2.0),  # the sampler was away
        ([IDLE] * 5 + [sample(gap=61.0)], 1.0),
        ([IDLE] * 5 + [sample(gap=3600.0)] * 3, 1.0),
        ([sample(stopped=True)] * 3600, 0.0),  # Ctrl-Z: it cannot compute
        ([IDLE] * 5 + [sample(stopped=True)] * 61 + [IDLE], 1.0),
        ([sample(work=(0.0, 0.0))] * 3, 3.0),
        ([sample(work=(0.0, 9.0))] * 3, 0.0),  # of a wide job, one card works
        ([sample(work=(0.0, None))] * 3, 0.0),  # or may do so
        ([sample(work=(None, 9.0)), IDLE], 1.0),
        ([sample(work=())] * 3, 0.0),  # no card at all
        ([sample(span=2.0)] * 3, 6.0),
    ],
)
def test_only_seconds_count_in_which_it_is_known_to_hold_memory_and_compute_nothing(
    samples: list[IdleSample], idle: float
) -> None:
    assert watched(*samples).idle == idle


SAMPLES = st.builds(
    sample,
    span=st.floats(0, 20),
    gap=st.sampled_from([0.0, 0.0, 0.0, 5.0, 59.0, 61.0, 1e6]),
    memory=st.sampled_from([None, 0, GIB, GIB]),
    work=st.sampled_from([(0.0,), (0.0,), (None,), (5.0,)]),
    stopped=st.booleans(),
)


@given(st.lists(SAMPLES, max_size=60))
def test_idle_time_is_never_more_than_what_idle_samples_stand_for(
    samples: list[IdleSample],
) -> None:
    known = [s for s in samples if s.memory and s.work == (0.0,) and not s.stopped]
    watch = watched(*samples)
    assert watch.idle <= sum(s.span for s in known) + 1e-6
    assert watch.unknown <= MOST_UNKNOWN or watch.idle == 0.0


def test_it_is_known_whether_anything_could_be_judged_and_of_how_long() -> None:
    assert not watched(*[UNKNOWN] * 5).judged
    assert watched(*[UNKNOWN] * 5).lived == 5.0
    assert watched(UNKNOWN, IDLE).judged
    assert watched(sample(memory=0), UNKNOWN).judged
    assert "holds" not in UNKNOWN.why
    assert "hold" in sample(memory=None).why


OWN, OTHER = {41}, {41, 99}


@pytest.mark.parametrize(
    ("card", "there", "work"),
    [
        (None, OWN, None),
        (CardWork(), OWN, None),  # MIG, WSL2: nothing is told
        (CardWork(computed=0), OWN, 0.0),
        (CardWork(computed=0, by={}), OTHER, 0.0),  # nobody computes on a shared card
        (CardWork(computed=70, by={}), OWN, 70),  # it is alone there
        (CardWork(computed=70), OTHER, None),
        (CardWork(computed=70, by={}), OTHER, None),  # the driver is late with its list
        (CardWork(computed=70, by={99: 60}), OTHER, 0.0),  # the other one does it all
        (CardWork(computed=70, by={99: 60, 41: 8}), OTHER, 8.0),
        (CardWork(computed=0, by={41: 5}), OWN, 5.0),  # a decoder, which is no kernel
        (CardWork(computed=5, by={1234: 5}), OWN, 0.0),  # a desktop draws
        (CardWork(computed=70, by={99: 70}, served=True), OTHER, None),  # MPS's server
        (CardWork(computed=0, by={}, served=True), OTHER, 0.0),
    ],
)
def test_what_an_attempt_did_on_a_card_is_its_own_where_the_driver_tells_it_apart(
    card: CardWork | None, there: set[int], work: float | None
) -> None:
    assert work_of(card, OWN, there) == work
