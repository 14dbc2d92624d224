"""Affinity for real: pretend cards near one CPU each, and jobs that say where they run."""

from __future__ import annotations

import os
import sys

import pytest

from tests.cli.launcher import UNTIL_GO, Launcher
from tests.gpus.fake import FakeDriver
from tests.helpers import wait_until

CPUS = sorted(os.sched_getaffinity(0))
SHOW = "import os; print(*sorted(os.sched_getaffinity(0)))"
ASK = f'{sys.executable} -c "{SHOW}"'

pytestmark = pytest.mark.skipif(len(CPUS) < 2, reason="one CPU: there is nothing to choose")


@pytest.fixture
def near(driver: FakeDriver, on_cards: Launcher) -> Launcher:
    """Two cards, each near another CPU, on a machine of two NUMA nodes."""
    for n, cpu in enumerate(CPUS[:2]):
        driver.card(n)
        driver.near(n, n, str(cpu))
    driver.nodes("0-1")
    return on_cards


def on(launcher: Launcher, name: str) -> tuple[int, list[int]]:
    """The index of the job's card, and the CPUs that its log names.

    Of the last attempt: an item that waits behind another goes to a worker that is idle sooner.
    """
    attempts = launcher.jobs()[name]["attempts"]
    gpus = attempts[-1]["gpus"]
    log = launcher.log(name, len(attempts))
    return gpus[0]["index"] if gpus else -1, [int(word) for word in log.split()]


def test_jobs_run_near_their_cards_and_none_switches_it_off(near: Launcher) -> None:
    near.file(
        "jobs.yaml",
        f"""
        jobs:
          - {{name: "a-{{{{n}}}}", matrix: {{n: [1, 2, 3, 4]}}, run: '{ASK}; echo'}}
          - {{name: free, affinity: none, run: '{ASK}'}}
          - {{name: wide, gpus: 2, run: '{ASK}'}}
          - {{name: cpu, gpus: 0, run: '{ASK}'}}
          - {{name: many, cpus: 2, run: '{ASK}'}}
        """,
    )
    result = near("run", "jobs.yaml")
    assert result.status == 0, result.err
    seen = [on(near, f"a-{n}") for n in (1, 2, 3, 4)]
    assert {gpu for gpu, _ in seen} == {0, 1}
    assert all(cpus == [CPUS[gpu]] for gpu, cpus in seen), seen
    for name in ("free", "wide", "cpu", "many"):
        assert on(near, name)[1] == CPUS


def test_two_jobs_that_share_a_card_get_a_cpu_each(driver: FakeDriver, on_cards: Launcher) -> None:
    driver.card(0)
    driver.near(0, -1, f"{CPUS[0]},{CPUS[1]}")
    wait = f"touch {{{{job}}}}.up; {UNTIL_GO}"
    on_cards.file(
        "jobs.yaml",
        f"""
        per_gpu: 2
        defaults: {{affinity: card}}
        jobs:
          - {{name: "a-{{{{n}}}}", matrix: {{n: [1, 2]}}, run: '{ASK}; {wait}'}}
          - {{name: "b-{{{{n}}}}", matrix: {{n: [1, 2, 3]}}, after: ["a-*"], run: '{ASK}'}}
        """,
    )
    with on_cards.begun("run", "jobs.yaml") as run:
        for name in ("a-1.up", "a-2.up"):
            wait_until((on_cards.path / name).exists, 60, name)
        on_cards.file("go", "")
        assert run.wait(60) == 0
    assert sorted(on(on_cards, f"a-{n}")[1] for n in (1, 2)) == [[CPUS[0]], [CPUS[1]]]
    assert {len(on(on_cards, f"b-{n}")[1]) for n in (1, 2, 3)} == {1}


def test_workers_that_share_a_card_keep_their_parts(driver: FakeDriver, on_cards: Launcher) -> None:
    driver.card(0)
    driver.near(0, -1, f"{CPUS[0]},{CPUS[1]}")
    on_cards.file("work.py", "import os\ndef do(item):\n    print(*os.sched_getaffinity(0))\n")
    on_cards.file(
        "jobs.yaml",
        """
        per_gpu: 2
        jobs:
          - {name: "a-{{n}}", matrix: {n: [1, 2, 3, 4, 5, 6]}, worker: "work.py:do", affinity: card}
        """,
    )
    assert on_cards("run", "jobs.yaml").status == 0
    assert {len(on(on_cards, f"a-{n}")[1]) for n in range(1, 7)} == {1}


def test_a_job_that_is_forked_from_a_preloaded_interpreter_runs_near_its_card(
    near: Launcher,
) -> None:
    near.file("script.py", f"import json\n{SHOW}\n")
    near.file(
        "jobs.yaml",
        f"""
        jobs:
          - name: a-{{{{n}}}}
            matrix: {{n: [1, 2, 3]}}
            preload: [json]
            run: [{sys.executable}, script.py]
        """,
    )
    assert near("run", "jobs.yaml").status == 0
    seen = [on(near, f"a-{n}") for n in (1, 2, 3)]
    assert all(cpus == [CPUS[gpu]] for gpu, cpus in seen), seen


def test_exec_becomes_a_command_near_its_card(near: Launcher) -> None:
    for n in (0, 1):
        shown = near("exec", "--gpus", f"{n},", "--", sys.executable, "-c", SHOW)
        assert shown.out.split() == [str(CPUS[n])], shown.err
    free = near("exec", "--affinity", "none", "--", sys.executable, "-c", SHOW)
    assert free.out.split() == [str(cpu) for cpu in CPUS]


def test_a_held_card_s_command_runs_near_the_card(near: Launcher) -> None:
    for more in ((), ("--for", "1m")):
        held = near("hold", "--gpus", "1,", *more, "--", sys.executable, "-c", SHOW)
        assert held.out.split() == [str(CPUS[1])], held.err


def test_a_launcher_that_may_use_one_cpu_alone_gives_that(near: Launcher) -> None:
    near.command = ["taskset", "-c", str(CPUS[1]), *near.command]
    near.file("jobs.yaml", f"jobs: [{{name: 'a-{{{{n}}}}', matrix: {{n: [1, 2]}}, run: '{ASK}'}}]")
    assert near("run", "jobs.yaml").status == 0
    assert [on(near, f"a-{n}")[1] for n in (1, 2)] == [[CPUS[1]]] * 2


# ── What is shown of it ─────────────────────────────────────────────────────────────────────────


def test_cards_are_shown_with_what_is_near_them(driver: FakeDriver, near: Launcher) -> None:
    driver.card(0, links="00000000:02:00.0")
    shown = near("gpus").out
    assert f"compute capability 8.0 · near CPUs {CPUS[0]}, NUMA node 0 · NVLink to GPU 1" in shown
    near.file("jobs.yaml", "jobs: [{name: a, cpus: 2, run: 'true'}, {name: b, run: 'true'}]")
    checked = near("check", "jobs.yaml")
    assert (
        f"GPU 0 near CPUs {CPUS[0]}, NUMA node 0; GPU 1 near CPUs {CPUS[1]}, NUMA node 1\n"
        "NVLink between GPUs 0, 1\n"
    ) in checked.out
    assert "affinity: a: cpus: 2 is more than the 1 CPU near a card, so it runs on all" in (
        checked.err
    )


def test_affinity_that_nothing_is_known_for_is_told(driver: FakeDriver, on_cards: Launcher) -> None:
    driver.card(0)
    on_cards.file("jobs.yaml", "jobs: [{affinity: card, run: 'true'}]")
    assert "affinity: which CPUs are near GPU 0 is not known here" in (
        on_cards("check", "jobs.yaml").err
    )


# ── Which model ─────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def mixed(driver: FakeDriver, on_cards: Launcher) -> Launcher:
    driver.card(0)
    driver.card(1, name="NVIDIA L40S", capability="8.9")
    return on_cards


def test_jobs_run_on_the_model_that_they_name(mixed: Launcher) -> None:
    mixed.file(
        "jobs.yaml",
        """
        jobs:
          - {name: "a-{{card}}", matrix: {card: ["*A100*", "*l40s"]}, card: "{{card}}", run: "true"}
          - {name: b, compute: 8.5, run: "true"}
        """.replace("{{card}}", "{{model}}").replace("matrix: {card:", "matrix: {model:"),
    )
    assert mixed("run", "jobs.yaml").status == 0
    jobs = mixed.jobs()
    used = {name: job["attempts"][0]["gpus"][0]["index"] for name, job in jobs.items()}
    assert used == {"a-*A100*": 0, "a-*l40s": 1, "b": 1}


def test_a_model_that_is_not_there_is_a_mistake_of_the_file(mixed: Launcher) -> None:
    mixed.file("jobs.yaml", "jobs:\n  - {run: x, card: L40S}\n  - {run: x, compute: 9}\n")
    checked = mixed("check", "jobs.yaml")
    assert checked.status == 2
    assert (
        "jobs.yaml:2:20: jobs[0].card: needs 1 card of the model L40S; none of the run's 2 fits:"
        ' NVIDIA A100-SXM4-80GB, NVIDIA L40S; did you mean "*L40S*"? (job job-1)' in checked.err
    )
    assert (
        "jobs.yaml:3:23: jobs[1].compute: needs 1 card with compute capability 9.0 or more; none of"
        " the run's 2 fits: NVIDIA A100-SXM4-80GB (8.0), NVIDIA L40S (8.9) (job job-2)"
    ) in checked.err


def test_exec_and_map_take_the_model_as_an_option(mixed: Launcher) -> None:
    for option in (("--card", "*L40S*"), ("--compute", "8.9")):
        assert mixed("exec", *option, "--", "printenv", "GPULAUNCH_GPU_INDEX").out == "1\n"
    refused = mixed("exec", "--card", "*H100*", "--", "true")
    assert (refused.status, "the run has none; its cards are NVIDIA A100" in refused.err) == (
        125,
        True,
    )
    wrong = mixed("exec", "--compute", "new", "--", "true")
    assert "--compute: expected a compute capability like 8.0, found 'new'" in wrong.err
    empty = mixed("map", "--card", "", "true", ":::", "a")
    assert (empty.status, "card" in empty.err) == (2, True), "an empty variable is no wish for any"
    run = mixed("map", "--card", "*L40S*", "echo $GPULAUNCH_GPU_INDEX #", ":::", "a", "b")
    assert run.status == 0, run.err
    assert {mixed.log(name) for name in mixed.jobs()} == {"1\n"}


def test_pretend_cards_are_of_any_model(launcher: Launcher) -> None:
    launcher.file("jobs.yaml", "jobs: [{name: a, card: '*H100*', compute: 9.0, run: 'true'}]")
    checked = launcher("check", "jobs.yaml", "--simulate", "1")
    assert "card:, compute: pretend cards are of any model and capability" in checked.err
    assert launcher("run", "jobs.yaml", "--simulate", "1").status == 0


def test_a_command_that_is_added_says_its_model_and_its_affinity(near: Launcher) -> None:
    near.file("jobs.yaml", f"jobs: [{{name: first, run: '{UNTIL_GO}'}}]")
    with near.begun("run", "jobs.yaml") as run:
        wait_until(lambda: near.path.joinpath("gpulaunch-runs/latest").exists(), 60, "a run")
        refused = near("add", "--card", "*H100*", "--", "true")
        assert refused.status == 2
        assert "needs 1 card of the model *H100*; none of the run's 2 fits" in refused.err
        wrong = near("add", "--compute", "x", "--", "true")
        assert "--compute: expected a compute capability like 8.0, found 'x'" in wrong.err
        show = ("--", sys.executable, "-c", SHOW)
        added = near("add", "--name", "own", "--card", "*A100*", "--affinity", "none", *show)
        assert (added.status, added.out) == (0, "own\n"), added.err
        near.file("go", "")
        assert run.wait(60) == 0
    assert on(near, "own")[1] == CPUS
