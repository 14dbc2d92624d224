"""The plan, the cards and the runs, as people see them and as JSON."""

from __future__ import annotations

import io
import json
import re
import time
from collections.abc import Mapping, Sequence

import pytest
from msgspec.structs import replace

from gpulaunch.contracts.documents import MachineCard
from gpulaunch.core.model import Demand, Gpu, Instant, Job, RetryPolicy, Service
from gpulaunch.core.template import Slot, Template
from gpulaunch.digest.definition import command
from gpulaunch.digest.plan import plan_json
from gpulaunch.digest.runs import RunRow, runs_json
from gpulaunch.gpus.inventory import unusable, usable
from gpulaunch.gpus.machine import CardReading, Fault, Process
from gpulaunch.gpus.names import Holder, NamedHold
from gpulaunch.views.machine import print_gpus, print_runs
from gpulaunch.views.plain import LinePrinter
from gpulaunch.views.plan import print_plan
from tests.core.world import GIB, pretend_gpus
from tests.views.history import START, gpus
from tests.views.screen import rendered

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


def card(index: int, uuid: str, used: int = 0, *on_it: Process) -> tuple[Gpu, CardReading]:
    gpu = Gpu(uuid, index, "", "NVIDIA H200", 141 << 30)
    return gpu, CardReading(uuid, total=gpu.memory, used=used, processes=on_it)


ON_IT = (Process(4211, "C", 40 << 30, "ann", "python"), Process(9, "C"))
HOLDER = Holder(7, 1000, "ann", run="20261120-074215-a1b2c3")
LOST = Fault("NVIDIA\x1b[2J H200", "lost: the driver does not answer for it", index=2)
FREE = usable(*card(0, "GPU-5f3c"))
USED = usable(*card(1, "GPU-77aa", 41 << 30, *ON_IT), HOLDER)
ROWS: tuple[MachineCard, ...] = (FREE, USED, {**unusable(LOST), "uuid": "GPU-dead"})


def test_cards_with_who_uses_them_who_holds_them_and_their_health() -> None:
    assert rendered(lambda c: print_gpus(c, ROWS), 40) == (
        "GPU 0  NVIDIA H200            0 B of 141 GiB  free\n"
        "       GPU-5f3c\n"
        "GPU 1  NVIDIA H200         41 GiB of 141 GiB  leased\n"
        "       leased by ann (pid 7, run 20261120-074215-a1b2c3)\n"
        "       python (pid 4211) of ann, 40 GiB\n"
        "       pid 9\n"
        "       GPU-77aa\n"
        "GPU 2  NVIDIA\\x1b[2J H200                  ?  lost: the driver does not answer for it\n"
        "       GPU-dead"
    )


def test_a_card_that_is_held_has_the_users_name_for_it_and_its_end() -> None:
    hold = NamedHold("lunch demo", time.time() + 3600.0)
    row = usable(*card(0, "GPU-5f3c"), Holder(7, 1000, "ann", "bash", hold=hold))
    first, second, _ = rendered(lambda c: print_gpus(c, [row]), 40).splitlines()
    assert first.endswith("held")
    assert re.fullmatch(r" +held by ann for 'lunch demo' until \d\d:\d\d \(pid 7\): bash", second)


def test_a_card_whose_memory_is_used_by_nobody_named_is_not_free() -> None:
    why = "5 GiB are in use there by nobody that the driver names"
    unnamed = usable(*card(0, "GPU-5f3c", 5 << 30))
    text = rendered(lambda c: print_gpus(c, [unnamed, USED]), 40)
    assert text.splitlines()[:2] == [
        "GPU 0  NVIDIA H200   5 GiB of 141 GiB  in use",
        f"       {why}",
    ]


def test_a_card_that_the_inherited_mask_leaves_out_says_so() -> None:
    row = usable(*card(0, "GPU-5f3c"), outside="CUDA_VISIBLE_DEVICES=2,3")
    text = rendered(lambda c: print_gpus(c, [row]), 40)
    assert text.splitlines()[1:] == [
        "       not used from here: CUDA_VISIBLE_DEVICES=2,3",
        "       GPU-5f3c",
    ]


def test_simulated_cards_say_so_and_json_has_every_field() -> None:
    gpu, look = card(0, "GPU-5f3c")
    row = usable(replace(gpu, simulated=True), look)
    assert "simulated GPU 0" in rendered(lambda c: print_gpus(c, [row]))
    found = json.loads(json.dumps(USED))
    assert found["users"][0] == {
        "pid": 4211,
        "user": "ann",
        "command": "python",
        "memory": 40 << 30,
    }
    assert found["lease"].startswith("ann (pid 7")


def test_runs_with_how_far_they_are() -> None:
    rows = [
        RunRow(
            "20261120-074215-a1b2c3", 7, "ann", "nanobodies", "/data/gpulaunch-runs/n-1", "running",
            START - 3723, "GPUs 0, 1", True, {"succeeded": 310, "failed": 2, "waiting": 688},
        ),
        RunRow("20261119-010203-ffffff", 8, "bob"),
    ]  # fmt: skip
    assert rendered(lambda c: print_runs(c, rows, Instant(0, START))) == (
        "run                     user  pid     time  jobs                    cards"
        "                  directory\n"
        "nanobodies              ann     7  1:02:03  312 of 1,000, 2 failed  "
        "GPUs 0, 1 (simulated)  /data/gpulaunch-runs/n-1\n"
        "20261119-010203-ffffff  bob     8           ?"
    )
    first = runs_json(rows)["runs"][0]
    assert first["started"] == "2026-11-20T06:40:12.250000Z"
    assert first["counts"] == {"succeeded": 310, "failed": 2, "waiting": 688}


@pytest.mark.parametrize("columns", [40, 80])
def test_runs_on_a_screen_too_narrow_for_columns_have_lines_of_their_own(columns: int) -> None:
    cards = "0, 1, 2, 3, 4, 5, 6, 7"
    rows = [
        RunRow("a", 7, "ann", "x" * 30, "/data/runs/n-1", "running", START - 3, cards, True, {}),
        RunRow("20261119-010203-ffffff", 8, "bob"),
    ]
    assert rendered(lambda c: print_runs(c, rows, Instant(0, START)), columns) == (
        f"{'x' * 30}  ann  pid 7  0:03\n  0 of 0\n  {cards} (simulated)\n  /data/runs/n-1\n"
        "20261119-010203-ffffff  bob  pid 8"
    )


def test_a_pipe_gets_columns_however_long_one_of_them_is() -> None:
    rows = [RunRow("r", 7, "ann", "x", f"/{'d' * 4000}", "running", START)]
    text = rendered(lambda c: print_runs(c, rows, Instant(0, START)))
    assert text.startswith("run  user  pid  time  jobs  cards  directory\nx    ann ")


def test_no_run_is_said_plainly() -> None:
    text = rendered(lambda c: print_runs(c, [], Instant(0, START)))
    assert text == "no run is alive on this machine"


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
