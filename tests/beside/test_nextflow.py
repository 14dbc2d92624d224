"""Nextflow with the configuration that the documents show, on pretend cards.

Nextflow is in no package here: a stand-in for its local executor runs the tasks (`nextflow.local`
says how). Where a real one is installed, and starts without a network, the example is run by it as
well; GPULAUNCH_REQUIRE_NEXTFLOW=1 demands that.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from tests.beside.nextflow.local import Settings, Task, accelerators, setting
from tests.beside.workflow import JOB, assert_no_card_twice, is_launcher, leased, records
from tests.cli.launcher import Launcher
from tests.examples.helpers import EXAMPLES
from tests.gpus.fake import FakeDriver
from tests.helpers import wait_until

EXAMPLE = EXAMPLES / "nextflow"
ON_CARD = Settings(before_script=setting(EXAMPLE / "nextflow.config", "beforeScript"))
AS_SHELL = Settings(shell=("gpulaunch", "exec", "--", "bash", "-ue"))
CARDS = 3


@pytest.fixture
def place(on_cards: Launcher, driver: FakeDriver) -> Launcher:
    """A directory with a program for a card, three cards, and `gpulaunch` on PATH."""
    for index in range(CARDS):
        driver.card(index)
    on_cards.file("job.py", JOB)
    own = Path(sys.executable).parent
    on_cards.environ["PATH"] = f"{own}:{os.environ['PATH']}"
    return on_cards


@pytest.fixture
def submitted(place: Launcher) -> Iterator[Callable[..., Task]]:
    """Starts a task; none is left in the end."""
    tasks: list[Task] = []

    def submit(script: str, settings: Settings = ON_CARD, ids: tuple[str, ...] = ()) -> Task:
        tasks.append(Task(place.path / "tasks" / str(len(tasks)), script, settings))
        tasks[-1].submit(place.environ, ids)
        return tasks[-1]

    yield submit
    for task in tasks:
        task.end()


def waits(task: Task) -> bool:
    return "wait" in task.text(".command.log")


def on_card(place: Launcher, name: str) -> str:
    """A task's script that runs until the file `go` is there."""
    path = place.path
    return f"{sys.executable} -S {path}/job.py {path}/{name}.json {path}/go"


def test_forty_tasks_that_wait_at_once_get_a_card_each_and_no_card_twice(
    place: Launcher, submitted: Callable[..., Task]
) -> None:
    tasks = [submitted(on_card(place, f"out-{n}")) for n in range(40)]
    processes = [psutil.Process(task.process.pid) for task in tasks if task.process]

    def all_but_three_wait() -> bool:
        waiting = sum(map(is_launcher, processes))
        return waiting == 40 - CARDS and len(leased(place.environ)) == CARDS

    wait_until(all_but_three_wait, 150)
    place.file("go", "")
    assert [task.wait() for task in tasks] == [0] * 40
    found = records(place.path.glob("out-*.json"))
    assert len(found) == 40
    assert {record["card"] for record in found} == {"0", "1", "2"}
    assert_no_card_twice(found)
    assert not leased(place.environ)


def test_a_status_is_the_script_s_whatever_its_interpreter(submitted: Callable[..., Task]) -> None:
    fails = submitted("exit 7")
    python = submitted(f"#!{sys.executable}\nimport os\nprint(os.environ['CUDA_VISIBLE_DEVICES'])")
    traced = submitted("echo $CUDA_VISIBLE_DEVICES; exit 3", ON_CARD._replace(traced=True))
    assert (fails.wait(), fails.text(".exitcode")) == (7, "7")
    assert (python.wait(), traced.wait()) == (0, 3)
    for task in (python, traced):
        assert task.text(".command.out").strip() in {"0", "1", "2"}


def test_a_task_that_is_cancelled_leaves_nothing_whether_it_waits_or_runs(
    place: Launcher, submitted: Callable[..., Task]
) -> None:
    running = [submitted(on_card(place, f"out-{n}")) for n in range(CARDS)]
    wait_until(lambda: len(leased(place.environ)) == CARDS, 60)
    waiting = [submitted(on_card(place, f"out-{n}")) for n in range(CARDS, CARDS + 4)]
    wait_until(lambda: all(map(waits, waiting)), 60)
    for task in (*waiting, *running):
        task.kill()
    assert [task.wait() for task in waiting] == [143] * 4
    assert all(task.wait() for task in running)
    wait_until(lambda: not leased(place.environ), 60)
    assert not list(place.path.glob("out-*.json"))


def test_a_card_that_nextflow_gave_out_itself_is_the_only_one_that_is_waited_for(
    place: Launcher, submitted: Callable[..., Task]
) -> None:
    place.environ["CUDA_VISIBLE_DEVICES"] = "1,2"
    one, other = accelerators(place.environ)
    first = submitted(on_card(place, "first"), ON_CARD, (one,))
    wait_until(lambda: len(leased(place.environ)) == 1, 60)
    same = submitted(on_card(place, "same"), ON_CARD, (one,))
    wait_until(lambda: waits(same), 60)
    assert "GPU 1 is held by" in same.text(".command.log")
    next_to_it = submitted("echo $CUDA_VISIBLE_DEVICES", ON_CARD, (other,))
    assert (next_to_it.wait(), next_to_it.text(".command.out")) == (0, "2\n")
    place.file("go", "")
    assert (first.wait(), same.wait()) == (0, 0)


def test_as_a_process_s_shell_it_serves_scripts_without_an_interpreter_of_their_own(
    submitted: Callable[..., Task],
) -> None:
    plain = submitted("echo [$CUDA_VISIBLE_DEVICES]; exit 5", AS_SHELL)
    traced = submitted("echo [$CUDA_VISIBLE_DEVICES]; exit 5", AS_SHELL._replace(traced=True))
    own = submitted(
        f"#!{sys.executable}\nimport os\nprint([os.environ.get('CUDA_VISIBLE_DEVICES')])", AS_SHELL
    )
    assert [task.wait() for task in (plain, traced, own)] == [5, 5, 0]
    for task in (plain, traced):
        assert task.text(".command.out").strip() in {"[0]", "[1]", "[2]"}
    assert own.text(".command.out") == "[None]\n", "the documents warn of it: it is on no card"


def test_the_example_s_script_runs_as_its_configuration_says(
    place: Launcher, submitted: Callable[..., Task]
) -> None:
    place.environ["PATH"] = f"{EXAMPLE / 'bin'}:{place.environ['PATH']}"
    process = (EXAMPLE / "main.nf").read_text()
    assert "label 'gpu'" in process
    script = process.split('"""')[1].strip()
    fastas = sorted((EXAMPLE / "inputs").glob("*.fasta"))
    pretend = setting(EXAMPLE / "nextflow.config", "beforeScript", "pretend")
    for before in (ON_CARD.before_script, pretend):
        tasks = [
            submitted(
                script.replace("${fasta.baseName}", fasta.stem).replace("${fasta}", str(fasta)),
                Settings(before_script=before),
            )
            for fasta in fastas
        ]
        assert [task.wait() for task in tasks] == [0] * 3
        for task, fasta in zip(tasks, fastas, strict=True):
            found = json.loads(task.text(f"{fasta.stem}.json"))
            assert found["name"] == fasta.stem
            assert found["card"].startswith("SIM-" if before == pretend else "GPU-")


def test_nextflow_itself_runs_the_example(place: Launcher) -> None:
    place.environ |= {"NXF_OFFLINE": "true", "NXF_HOME": os.path.expanduser("~/.nextflow")}
    if why := not_here(place):
        if os.environ.get("GPULAUNCH_REQUIRE_NEXTFLOW") == "1":
            pytest.fail(f"GPULAUNCH_REQUIRE_NEXTFLOW=1, and {why}")
        pytest.skip(why)
    shutil.copytree(EXAMPLE, place.path / "example")
    place.command = ["nextflow"]
    done = place("run", "example/main.nf", timeout=280)
    assert done.status == 0, done.out + done.err
    found = [json.loads(file.read_text()) for file in place.path.glob("folds/*.json")]
    assert len(found) == 3
    assert all(record["card"].startswith("GPU-") for record in found)
    assert not leased(place.environ)


def not_here(place: Launcher) -> str:
    """Why there is no Nextflow that starts without a network; empty where there is."""
    if shutil.which("nextflow", path=place.environ["PATH"]) is None:
        return "there is no nextflow on PATH"
    line = ["nextflow", "-version"]
    done = subprocess.run(line, env=place.environ, cwd=place.path, capture_output=True, check=False)
    return "" if done.returncode == 0 else "nextflow does not start without a network"
