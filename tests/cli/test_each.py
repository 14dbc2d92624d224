"""`gpulaunch each`: one command on every card."""

from __future__ import annotations

import os
from itertools import pairwise
from textwrap import dedent

import pytest

from tests.cli.launcher import UNTIL_GO, Launcher
from tests.examples.helpers import ROOT
from tests.gpus.fake import GIB, FakeDriver
from tests.helpers import wait_until

SEEN = "echo $CUDA_VISIBLE_DEVICES $GPULAUNCH_GPU_INDEX {{item}}"


@pytest.fixture
def three(driver: FakeDriver, on_cards: Launcher) -> Launcher:
    for index in range(3):
        driver.card(index)
    return on_cards


def cards(launcher: Launcher) -> dict[str, list[int]]:
    """The card of each attempt, by job."""
    jobs = launcher.jobs()
    return {
        name: [gpu["index"] for attempt in job["attempts"] for gpu in attempt["gpus"]]
        for name, job in jobs.items()
    }


def test_the_command_runs_once_on_every_card_as_its_cuda_0(three: Launcher) -> None:
    result = three("each", "--", f"{SEEN} {{{{gpu}}}}")
    assert result.status == 0, result.err
    assert cards(three) == {"card-0": [0], "card-1": [1], "card-2": [2]}
    assert [three.log(f"card-{n}") for n in range(3)] == [f"{n} {n} {n} 0\n" for n in range(3)]


def test_a_quick_copy_does_not_take_the_card_of_one_that_waits(
    three: Launcher, driver: FakeDriver
) -> None:
    """Card 1 is somebody else's until the other copies have ended."""
    three.environ.pop("GPULAUNCH_LEASED")  # inside a job nobody is a stranger
    for index in range(3):
        driver.card(index, bus=f"0000{os.getpid() % 0xFFFF:04x}:{index + 1:02x}:00.0")
    driver.process(1, os.getpid(), 3 * GIB)
    with three.begun("each", "--", SEEN) as process:
        three.wait_for("job_settled", 2)
        assert three.states() == dict(zip(NAMES, ENDED, strict=True))
        told = three("status", "card-1").out
        assert "waits for its own card: GPU 1 is in use: " in told
        driver.no_processes()
        assert process.wait(60) == 0
    assert cards(three) == {"card-0": [0], "card-1": [1], "card-2": [2]}


NAMES, ENDED = ("card-0", "card-1", "card-2"), ("succeeded", "waiting", "succeeded")


def test_a_copy_is_restarted_on_its_own_card_after_the_named_classes_alone(three: Launcher) -> None:
    script = "case {{item}} in 0) exit 3;; 1) kill -9 $$;; 2) [ {{attempt}} = 2 ] || exit 3;; esac"
    result = three("each", "--retries", "2", "--on", "exit,gpu_lost", "--", script)
    assert result.status == 1, result.err
    assert cards(three) == {"card-0": [0, 0, 0], "card-1": [1], "card-2": [2, 2]}
    assert three.states() == {"card-0": "failed", "card-1": "failed", "card-2": "succeeded"}


def test_one_that_names_classes_or_a_pause_alone_is_restarted_once(three: Launcher) -> None:
    assert three("each", "--gpus", "0,", "--delay", "0s", "--", "exit 3").status == 1
    assert cards(three) == {"card-0": [0, 0]}


def test_chosen_cards_have_it_and_resume_goes_on_with_those(three: Launcher) -> None:
    assert three("each", "--gpus", "0,2", "--", "[ -e go ]").status == 1
    assert three.states() == {"card-0": "failed", "card-2": "failed"}
    (three.path / "go").touch()
    result = three("resume")
    assert result.status == 0, result.err
    assert cards(three) == {"card-0": [0, 0], "card-2": [2, 2]}


def test_a_number_of_cards_says_not_which(three: Launcher) -> None:
    result = three("each", "--gpus", "2", "--", "true")
    assert result.status == 2
    assert result.err == (
        "gpulaunch: --gpus: the run takes any 2 of 3 cards, and only once it has them it is known"
        " which: name them (gpus: [0, 2], --gpus 0,2), or take all\n"
    )


def test_a_card_that_is_not_there_is_told(three: Launcher) -> None:
    result = three("each", "--gpus", "7,", "--", "true")
    assert (result.status, result.err) == (
        2,
        "gpulaunch: --gpus: there is no card 7 (cards here: 0, 1, 2)\n",
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--on", "sun", "--", "true"], "--on: unknown failure class 'sun' (known: "),
        (["--timeout", "soon", "--", "true"], "--timeout: expected a duration"),
        (["--mount", "/x", "--", "true"], "--mount /x goes with --container IMAGE"),
        (["--retires", "2", "--", "true"], "there is no option --retires"),
        (["--", "nothing-like-this", "x"], "CMD: "),
        ([], "Missing argument 'CMD...'"),
    ],
)
def test_mistakes_have_a_line(three: Launcher, words: list[str], message: str) -> None:
    result = three("each", *words)
    assert result.status == 2
    assert message in result.err
    assert "Traceback" not in result.err


def test_without_a_card_it_says_so(driver: FakeDriver, on_cards: Launcher) -> None:
    result = on_cards("each", "--", "true")
    assert result.status == 3
    assert "1 card needed, and there is none here" in result.err


def test_a_job_file_s_copies_run_beside_its_other_jobs(three: Launcher) -> None:
    three.file(
        "jobs.yaml",
        f"""
        jobs:
          - {{name: "serve-{{{{item}}}}", foreach: cards, per_gpu: 2,
             service: {{ready: "tcp:{{{{port}}}}"}}, run: "python3 -m http.server {{{{port}}}}"}}
          - name: "ask-{{{{item}}}}"
            foreach: cards
            per_gpu: 2
            needs: ["serve-{{{{item}}}}"]
            run: '{SEEN}'
        """,
    )
    result = three("run", "jobs.yaml")
    assert result.status == 0, result.err
    assert {name: where for name, where in cards(three).items() if "ask" in name} == {
        f"ask-{n}": [n] for n in range(3)
    }
    plan = three("check", "jobs.yaml").out
    assert "one on each card" in plan


def test_reload_and_add_know_the_live_run_s_cards(three: Launcher) -> None:
    three.file("jobs.yaml", f"jobs: [{{name: stay, run: '{UNTIL_GO}'}}]")
    with three.begun("run", "jobs.yaml", "--gpus", "0,2") as process:
        three.wait_for("attempt_started")
        three.file(
            "jobs.yaml",
            f"""
            jobs:
              - {{name: stay, run: '{UNTIL_GO}'}}
              - {{name: "a{{{{item}}}}", foreach: cards, run: '{SEEN}'}}
            """,
        )
        assert three("reload").status == 0
        entry = f"{{name: 'b{{{{item}}}}', foreach: cards, run: '{SEEN}'}}"
        more = three.file("more.yaml", f"jobs: [{entry}]")
        added = three("add", more)
        assert added.out.split() == ["b0", "b2"], added.err
        (three.path / "go").touch()
        assert process.wait(60) == 0
    where = cards(three)
    assert {name: where[name] for name in ("a0", "a2", "b0", "b2")} == {
        "a0": [0], "a2": [2], "b0": [0], "b2": [2],
    }  # fmt: skip


def test_a_cluster_does_not_know_the_cards(three: Launcher) -> None:
    three.file("jobs.yaml", "jobs: [{foreach: cards, run: x}]")
    told = three("check", "jobs.yaml", "--engine", "slurm")
    assert told.status == 2
    assert "a cluster chooses the cards" in told.err


FOR_EACH_CARD = """
    jobs:
      - {name: "agent-{{item}}", foreach: cards, run: echo}
      - {name: last, gpus: 0, needs: ["agent-*"], run: echo}
"""


@pytest.mark.parametrize("selection", ["all", "2", "[1, 3]"])
def test_check_shows_such_a_list_for_one_card_where_there_is_none(
    driver: FakeDriver, on_cards: Launcher, selection: str
) -> None:
    on_cards.file("jobs.yaml", f"gpus: {selection}\n{dedent(FOR_EACH_CARD)}")
    plan = on_cards("check", "jobs.yaml")
    assert plan.status == 0, plan.err
    assert "2 jobs on no card" in plan.out
    assert "agent-0  1 job · 1 card · on its own card" in plan.out
    assert "and foreach: cards is shown for one (see --simulate N)\n" in plan.err
    assert on_cards("run", "jobs.yaml").status == (2 if "[" in selection else 3)


def test_a_live_run_without_a_card_takes_no_such_list(
    driver: FakeDriver, on_cards: Launcher
) -> None:
    on_cards.file("jobs.yaml", f"jobs: [{{name: stay, gpus: 0, run: '{UNTIL_GO}'}}]")
    with on_cards.begun("run", "jobs.yaml") as process:
        on_cards.wait_for("attempt_started")
        told = on_cards("add", on_cards.file("more.yaml", dedent(FOR_EACH_CARD)))
        assert told.status == 2
        assert "jobs[0].foreach: the run has no card" in told.err
        (on_cards.path / "go").touch()
        assert process.wait(60) == 0


AGENT = """#!/bin/sh
# Stands in for `wandb agent SWEEP`: takes runs from the directory SWEEP until there is none, each a
# program of its own, and ends with 0 then. The first of all ends with 1.
[ "$1" = agent ] || exit 2
if [ ! -e reached ] && mkdir reached; then
    echo "wandb: ERROR Sweep LAB/PROJECT/SWEEP is not ready" >&2
    exit 1
fi
for run in "$2"/*; do
    mv "$run" taken/ 2>/dev/null || continue
    echo "$CUDA_VISIBLE_DEVICES $(date +%s%N)" > "seen/$(basename "$run")"
    [ "$(ls seen | wc -l)" -ge 3 ] || until [ -e go ]; do sleep 0.02; done
    date +%s%N >> "seen/$(basename "$run")"
done
"""


def test_agents_of_a_sweep_take_its_runs_one_at_a_time_on_each_card(three: Launcher) -> None:
    """The recipe as it stands, with a stand-in for W&B's own agent: its sweeps need a server."""
    three.file("bin/wandb", AGENT).chmod(0o755)
    three.environ["PATH"] = f"{three.path / 'bin'}:{three.environ['PATH']}"
    for name in ("LAB/PROJECT/SWEEP", "taken", "seen"):
        (three.path / name).mkdir(parents=True)
    for number in range(12):
        three.file(f"LAB/PROJECT/SWEEP/run-{number:02}", "")
    recipe = (ROOT / "configs/wandb-agents.yaml").read_text()
    three.file("agents.yaml", recipe.replace("delay: 30s", "delay: 0s"))
    with three.begun("run", "agents.yaml") as process:
        wait_until(lambda: len(list((three.path / "seen").iterdir())) >= 3)
        (three.path / "go").touch()  # all three agents have a run each
        assert process.wait(60) == 0
    assert sum(len(job["attempts"]) for job in three.jobs().values()) == 4
    failed = {a["failure"] for job in three.jobs().values() for a in job["attempts"]}
    assert failed == {None, "exit"}
    spans: dict[str, list[tuple[int, int]]] = {}
    for seen in sorted((three.path / "seen").iterdir()):
        card, begun, ended = seen.read_text().split()
        spans.setdefault(card, []).append((int(begun), int(ended)))
    assert set(spans) == {"0", "1", "2"}
    assert sum(map(len, spans.values())) == 12
    for some in spans.values():
        assert all(one[1] <= other[0] for one, other in pairwise(sorted(some)))
