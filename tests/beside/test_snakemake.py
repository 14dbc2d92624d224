"""Snakemake whose rules have `gpulaunch exec` before their commands, on pretend cards."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from pathlib import Path

import pytest

from tests.beside.workflow import (
    JOB,
    assert_no_card_twice,
    at_work,
    begun,
    launchers,
    leased,
    of_session,
    records,
)
from tests.cli.launcher import Launcher
from tests.examples.helpers import EXAMPLES
from tests.gpus.fake import FakeDriver
from tests.helpers import wait_until

FORTY = f"""
rule all:
    input: expand("out/{{n}}.json", n=range(40))
rule fold:
    output: "out/{{n}}.json"
    resources: gpu=1
    shell: "gpulaunch exec -- {sys.executable} -S job.py {{output}} go"
"""
CARDS = 3


@pytest.fixture
def snakemake(on_cards: Launcher, driver: FakeDriver, beside: Path) -> Launcher:
    """Snakemake in a directory with a program for a card, on three cards."""
    for index in range(CARDS):
        driver.card(index)
    on_cards.file("job.py", JOB)
    on_cards.file("Snakefile", FORTY)
    on_cards.command = [str(beside / "snakemake"), "--quiet", "all"]
    on_cards.environ["PATH"] = f"{beside}:{os.environ['PATH']}"
    return on_cards


def all_wait(snakemake: Launcher, leader: int, many: int) -> None:
    """Wait until a job runs on every card, and so many launchers wait for a card.

    A launcher that has a card and has not become its job yet looks like a launcher that waits.
    """

    def so_many() -> bool:
        counts = len(leased(snakemake.environ)), len(at_work(leader)), len(launchers(leader))
        return counts == (CARDS, CARDS, many)

    wait_until(so_many, 150, f"{many} that wait")


def test_forty_jobs_that_wait_at_once_get_a_card_each_and_no_card_twice(
    snakemake: Launcher,
) -> None:
    with begun(snakemake, "-j", "40") as process:
        all_wait(snakemake, process.pid, 40 - CARDS)
        # One that has just come looks at the cards by a process of its own.
        wait_until(lambda: not any(one.children() for one in launchers(process.pid)))
        snakemake.file("go", "")
        assert process.wait(240) == 0
    found = records(snakemake.path.glob("out/*.json"))
    assert len(found) == 40
    assert {record["card"] for record in found} == {"0", "1", "2"}
    assert_no_card_twice(found)
    assert not leased(snakemake.environ)


def test_a_resource_keeps_what_could_only_wait_with_snakemake(snakemake: Launcher) -> None:
    with begun(snakemake, "-j", "40", "--resources", f"gpu={CARDS}") as process:
        all_wait(snakemake, process.pid, 0)
        process.send_signal(signal.SIGTERM)  # no new ones; those that run may finish
        snakemake.file("go", "")
        process.wait(120)
        wait_until(lambda: not of_session(process.pid))
    assert len(list(snakemake.path.glob("out/*.json"))) == CARDS
    assert not leased(snakemake.environ)


def test_ctrl_c_leaves_no_process_and_no_lease(snakemake: Launcher) -> None:
    with begun(snakemake, "-j", "40") as process:
        all_wait(snakemake, process.pid, 40 - CARDS)
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does
        assert process.wait(120) != 0
        wait_until(lambda: not of_session(process.pid))
    assert not leased(snakemake.environ)
    assert not list(snakemake.path.glob("out/*.json"))


def test_failures_keep_their_status_and_are_retried_and_the_others_go_on(
    snakemake: Launcher,
) -> None:
    snakemake.file("twice", "test $1 -gt 1 && touch $2")
    snakemake.file(
        "Snakefile",
        """
        rule all:
            input: "flaky", "fails", "dies", "well"
        rule flaky:
            output: "flaky"
            retries: 1
            resources: tried=lambda wildcards, attempt: attempt
            shell: "gpulaunch exec -- bash twice {resources.tried} {output}"
        rule fails:
            output: "fails"
            shell: "gpulaunch exec -- bash -c 'exit 7'"
        rule dies:
            output: "dies"
            shell: "gpulaunch exec -- bash -c 'kill -KILL $$'"
        rule well:
            output: "well"
            shell: "gpulaunch exec -- touch {output}"
        """,
    )
    snakemake.command = snakemake.command[:1]
    done = snakemake("-j", "4", "--keep-going")
    assert done.status == 1
    assert "returned non-zero exit status 7" in done.err
    assert "died with <Signals.SIGKILL: 9>" in done.err
    made = {name for name in ("flaky", "fails", "dies", "well") if (snakemake.path / name).exists()}
    assert made == {"flaky", "well"}
    assert not leased(snakemake.environ)


def test_a_shell_of_its_own_puts_a_whole_script_on_one_card(snakemake: Launcher) -> None:
    shutil.copy(EXAMPLES / "snakemake/gpu-bash", snakemake.path)
    snakemake.file(
        "Snakefile",
        """
        rule lines:
            output: "lines"
            resources: shell_exec="./gpu-bash"
            shell:
                '''
                for n in 1 2 3; do
                    echo $GPULAUNCH_GPU_UUID $CUDA_VISIBLE_DEVICES
                done | sort -u > {output}
                '''
        """,
    )
    done = snakemake("-j", "2")
    assert done.status == 0, done.err
    (line,) = (snakemake.path / "lines").read_text().splitlines()
    assert line.split()[1] in {"0", "1", "2"}


@pytest.mark.parametrize("cards", ["GPU-", "SIM-"])
def test_the_example_runs_as_its_first_lines_say(snakemake: Launcher, cards: str) -> None:
    shutil.copytree(EXAMPLES / "snakemake", snakemake.path, dirs_exist_ok=True)
    words = {
        "GPU-": ("-j", "40", "--resources", "gpu=4"),
        "SIM-": ("-j", "2", "--config", "simulate=2"),
    }
    done = snakemake(*words[cards])
    assert done.status == 0, done.err
    found = [json.loads(file.read_text()) for file in snakemake.path.glob("folds/*.json")]
    assert len(found) == 3
    assert all(record["card"].startswith(cards) for record in found)
    longest = max(found, key=lambda record: record["length"])
    assert longest["name"] in (snakemake.path / "longest.txt").read_text()
    assert (
        f"{longest['length']} residues"
        in (snakemake.path / "logs" / f"{longest['name']}.log").read_text()
    )
