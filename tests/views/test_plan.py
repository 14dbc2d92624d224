"""The plan, as people see it and as JSON."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from gpulaunch.core.model import Demand, Gpu, Job, RetryPolicy, Service
from gpulaunch.core.template import Slot, Template
from gpulaunch.observe.present.plan import command, plan_json
from gpulaunch.observe.terminal.plan import print_plan
from gpulaunch.observe.terminal.terminal import LinePrinter
from tests.core.world import GIB, pretend_gpus
from tests.views.history import gpus

OUT = Slot("out", "bare")


def jobs() -> list[Job]:
    fold = [
        Job(
            name=f"fold-{n}",
            run=Template((f"chai-lab fold /data/{n}.fasta ", OUT)),
            demand=Demand(uses=("msa_server",), gpu_memory=16 << 30),
            timeout=7200.0,
            retry=RetryPolicy(times=1),
        )
        for n in range(1000)
    ]
    score = [
        Job(f"score-{n}", ("python", "score.py", "a b", Template((OUT,))), 1, needs=(f"fold-{n}",))
        for n in range(2)
    ]
    big = Job("evo2-40b", "set -x\n  python x.py \x1b[2J\n", 2, demand=Demand(gpus=2))
    server = Job("msa", "serve", 3, demand=Demand(gpus=0, cpus=4), service=Service("tcp:1"))
    return [*fold, *score, big, server]


def shown(
    name: str, cards: str, limits: Mapping[str, int], jobs: Sequence[Job], engine: str = "local"
) -> str:
    stream = io.StringIO()
    print_plan(LinePrinter(stream, {}), name, cards, limits, jobs, engine)
    return stream.getvalue()


def plan() -> str:
    return shown("nanobodies", "2 of 8 simulated cards, any", {"msa_server": 1}, jobs())


def test_a_plan_shows_each_group_with_its_first_commands() -> None:
    assert plan() == (
        "nanobodies  1,004 jobs on 2 of 8 simulated cards, any\n"
        "at most at once: msa_server 1\n"
        "\n"
        "  fold-0 … fold-999  1,000 jobs · 1 card each · 16 GiB free on the card"
        " · uses msa_server · timeout 2 h · 1 retry\n"
        "    $ chai-lab fold /data/0.fasta {{out}}\n"
        "    $ chai-lab fold /data/1.fasta {{out}}\n"
        "    $ chai-lab fold /data/2.fasta {{out}}\n"
        "    and 997 more\n"
        "\n"
        "  score-0 … score-1  2 jobs · 1 card each · needs item by item (fold-0 …)\n"
        "    $ python score.py 'a b' {{out}}\n"
        "    $ python score.py 'a b' {{out}}\n"
        "\n"
        "  evo2-40b  1 job · 2 cards\n"
        "    $ set -x ⏎ python x.py \\x1b[2J\n"
        "\n"
        "  msa  1 job · no card · 4 CPUs · a service, ready within 30 min\n"
        "    $ serve\n"
    )


def test_a_group_whose_jobs_differ_shows_from_least_to_most() -> None:
    group = [
        Job("a", "x", demand=Demand(gpu_memory=8 << 30, cpus=1), timeout=1800.0),
        Job("b", "x", demand=Demand(gpu_memory=40 << 30, cpus=4, uses=("msa",)), timeout=7200.0),
        Job("c", "x", demand=Demand(per_gpu=2), retry=RetryPolicy(times=2), timeout=7200.0),
    ]
    text = shown("n", "1 card", {}, group)
    assert text.splitlines()[2] == (
        "  a … c  3 jobs · 1 card each · 8 GiB to 40 GiB free on the card (not all)"
        " · 2 share a card (not all) · 1 CPU to 4 CPUs (not all) · uses others, some of them"
        " · timeout 30 min to 2 h · 2 retries (not all)"
    )


def test_a_plan_shows_what_its_engine_is_told_and_no_other_engine() -> None:
    told = {"slurm": {"partition": ("gpu",), "extra": ("--mem=64G",)}}
    group = [Job("a", "x", engine=told)]
    text = shown("n", "Slurm", {}, group, "slurm")
    assert text.splitlines()[0] == "n  1 job on Slurm"
    assert "a  1 job · 1 card · tells it partition gpu, --mem=64G" in text
    assert "partition" not in shown("n", "1 card", {}, group)
    assert plan_json("n", "Slurm", (), {}, group, "slurm")["jobs"][0]["engine"] == {
        "slurm": {"partition": ["gpu"], "extra": ["--mem=64G"]}
    }


def test_a_plan_is_json_too_without_environments() -> None:
    secret = replace(jobs()[0], env={"TOKEN": "hunter2"})
    found = plan_json("n", "all 2 cards", gpus(2), {"x": 1}, [secret])
    assert "hunter2" not in json.dumps(found)
    assert found["cards"] == "all 2 cards"
    assert found["jobs"][0]["run"] == "chai-lab fold /data/0.fasta {{out}}"
    assert found["jobs"][0]["gpu_memory"] == 16 << 30
    assert [gpu["index"] for gpu in found["gpus"]] == [0, 1]


def test_a_value_with_braces_is_not_taken_for_a_slot() -> None:
    assert command(("echo", "{{out}}", Template(("-o", OUT)))) == "echo '{{out}}' -o{{out}}"


def test_a_group_that_shares_says_what_is_promised_what_was_learned_and_how_many_fit() -> None:
    cards = pretend_gpus(2)

    def line(*group: Job, gpus: Sequence[Gpu] = cards) -> str:
        stream = io.StringIO()
        print_plan(LinePrinter(stream, {}), "n", "2 cards", {}, group, gpus=gpus)
        return stream.getvalue().splitlines()[3].strip()

    sized = Job("a", "x", demand=Demand(gpu_memory=20 * GIB, per_gpu=0, share=True))
    assert line(sized) == "shares its card: 20 GiB promised; 4 fit on a card"
    bounded = replace(sized, demand=replace(sized.demand, per_gpu=2))
    assert line(bounded) == "shares its card: 20 GiB promised; 2 fit on a card"
    unknown = Job("a", "x", demand=Demand(per_gpu=0, share=True, kind=0))
    assert line(unknown).startswith("shares its card once it is known what it takes")
    learned = replace(unknown, learned=10 * GIB)
    told = "shares its card: 12 GiB promised (10 GiB at most in earlier runs)"
    assert line(learned) == f"{told}; 6 fit on a card"
    assert line(learned, gpus=()) == told
