"""`foreach: cards`: a job for each of the run's cards."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Sequence

import pytest

from gpulaunch.base.errors import JobFileError, NoCardsError
from gpulaunch.core.model import ALL, Gpu, Selection
from gpulaunch.jobfile.file_keys import STAND_IN, CardsOfRun, Surroundings
from gpulaunch.jobfile.load import load_text
from gpulaunch.jobfile.plan import Plan
from tests.jobfile.helpers import GOOD, mistakes_of

A100 = Gpu("GPU-a", 0, "a", "NVIDIA A100", 1, compute=(8, 0))
L40S = Gpu("GPU-l", 2, "l", "NVIDIA L40S", 1, compute=(8, 9))
PARTS = tuple(
    Gpu(f"MIG-{n}", 0, f"MIG-{n}", "NVIDIA A100 MIG", 1, mig=True, part=(n, 0)) for n in (1, 2)
)


def has(*gpus: Gpu) -> CardsOfRun:
    return lambda selection: gpus


TWO = has(A100, L40S)


def plan_on(text: str, cards: CardsOfRun | None = TWO) -> Plan:
    data = textwrap.dedent(text).encode()
    environ = {"HOME": "/nonexistent", "PATH": os.defpath}
    return load_text(data, Surroundings(environ, cards=cards), name="jobs.yaml", base=GOOD)


def refused(text: str, cards: CardsOfRun | None = TWO) -> list[str]:
    with pytest.raises(JobFileError) as caught:
        plan_on(text, cards)
    return [one.split("\n")[0].removeprefix("jobs.yaml:") for one in caught.value.mistakes]


def test_each_card_has_a_job_of_its_own() -> None:
    plan = plan_on(
        "jobs: [{name: agent, foreach: cards, run: 'x {{item}} {{index}} {{gpu_uuid}}'}]"
    )
    assert [job.name for job in plan.jobs] == ["agent-0", "agent-2"]
    assert [job.demand.own_gpu for job in plan.jobs] == ["GPU-a", "GPU-l"]
    assert [dict(job.params) for job in plan.jobs] == [{"card": "0"}, {"card": "2"}]
    assert plan.sources == ()


def test_names_needs_and_matrix_go_by_the_card() -> None:
    plan = plan_on(
        """
        jobs:
          - {name: "serve-{{item}}", foreach: cards, service: {ready: "tcp:{{port}}"}, run: x}
          - name: "ask-{{item}}-{{n}}"
            foreach: cards
            matrix: {n: [1, 2]}
            per_gpu: 2
            needs: ["serve-{{item}}"]
            run: x
        """
    )
    asks = {job.name: (job.needs, job.demand.own_gpu) for job in plan.jobs[2:]}
    assert asks["ask-0-1"] == (("serve-0",), "GPU-a")
    assert asks["ask-2-2"] == (("serve-2",), "GPU-l")
    assert len(asks) == 4


def test_only_cards_of_the_asked_kind_have_one() -> None:
    of_a_kind = "jobs: [{name: 'a{{item}}', foreach: cards, run: x, compute: 8.9}]"
    assert [job.name for job in plan_on(of_a_kind).jobs] == ["a2"]
    assert refused("jobs: [{foreach: cards, run: x, card: '*H100*'}]") == [
        "1:18: jobs[0].foreach: none of the run's 2 cards is of that kind"
    ]


def test_instances_of_one_card_are_told_apart() -> None:
    plan = plan_on("jobs: [{name: 'a{{item}}', foreach: cards, run: x}]", has(*PARTS))
    assert [job.name for job in plan.jobs] == ["a0-1.0", "a0-2.0"]


def test_another_card_of_the_same_number_is_another_job_to_resume() -> None:
    text = "jobs: [{name: a, foreach: cards, run: x}]"
    digests = [plan_on(text, has(gpu)).jobs[0].digest for gpu in (A100, L40S, A100)]
    assert digests[0] == digests[2] != digests[1]


def test_the_file_s_own_selection_says_which_cards() -> None:
    asked: list[Selection] = []

    def cards(selection: Selection) -> Sequence[Gpu]:
        asked.append(selection)
        return (L40S,)

    plan_on("{gpus: [2], jobs: [{foreach: cards, run: x}]}", cards)
    plan_on("jobs: [{foreach: cards, run: x}]", cards)
    assert asked == [Selection(which=("2",)), ALL]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("foreach: cards, run: x, gpus: 2", "gpus: foreach: cards gives each job the one card"),
        ("foreach: cards, run: x, gpus: 0", "gpus: foreach: cards gives each job the one card"),
        ("foreach: cards, run: x, batch: 2", "batch: batch needs foreach: over files, not cards:"),
        ("foreach: cards, run: 'x {{path}}'", "run: unknown placeholder {{path}}"),
        ("foreach: cards, run: x, matrix: {item: [1]}", "matrix.item: the name item is reserved"),
    ],
)
def test_mistakes_are_told(text: str, message: str) -> None:
    (told,) = refused(f"jobs: [{{{text}}}]")
    assert f": jobs[0].{message}" in told


def test_where_the_cards_are_not_known_the_reason_is_told() -> None:
    text = "jobs: [{foreach: cards, run: x}]"
    assert mistakes_of(text) == [
        "1:18: jobs[0].foreach: its cards are known only on the machine that runs the list"
    ]

    def unknown(selection: Selection) -> Sequence[Gpu]:
        raise LookupError("which they are is not known")

    assert refused(text, unknown) == ["1:18: jobs[0].foreach: which they are is not known"]


def test_a_machine_without_cards_is_told_after_the_file_s_own_mistakes() -> None:
    def none(selection: Selection) -> Sequence[Gpu]:
        raise NoCardsError("1 card needed")

    needs = "{name: last, run: x, gpus: 0, needs: ['agent-*']}"
    good = f"jobs: [{{name: 'agent-{{{{item}}}}', foreach: cards, run: x}}, {needs}]"
    with pytest.raises(NoCardsError):
        plan_on(good, none)
    (told,) = refused(f"{{what: 1, {good}}}", none)
    assert told.startswith("1:2: what: unknown key")
    (told,) = refused("jobs: [{foreach: cards, run: x, memory: '{{item}} elephants'}]", none)
    assert "jobs[0].memory: expected a size with its unit" in told


def test_a_list_that_is_only_looked_at_has_a_job_that_stands_for_those_of_the_cards() -> None:
    plan = plan_on(
        """
        jobs:
          - {name: "agent-{{item}}", foreach: cards, card: "*H100*", run: "x {{item}}"}
          - {name: last, gpus: 0, needs: [agent-7, "agent-*"], run: x}
        """,
        has(),
    )
    assert [(job.name, job.run, job.needs) for job in plan.jobs] == [
        ("agent-0", "x '0'", ()),
        ("last", "x", ("agent-0",)),
    ]
    assert plan.jobs[0].demand.own_gpu == STAND_IN


def test_a_file_called_cards_is_named_by_its_path() -> None:
    text = "jobs: [{foreach: ./list.txt, run: x}]"
    assert [job.demand.own_gpu for job in plan_on(text).jobs] == [""]
