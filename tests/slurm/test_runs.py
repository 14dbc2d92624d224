"""Whole runs on a throw-away cluster of two nodes with two cards each, by the installed command."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from gpulaunch.control.client import call
from gpulaunch.core.causes import Quoted
from gpulaunch.core.events import Pause
from tests.cli.launcher import Launcher, Result
from tests.helpers import wait_until
from tests.slurm.cluster import PATIENCE, Cluster
from tests.slurm.conftest import nothing_waits

SLURM = ("--engine", "slurm")


def run(launcher: Launcher, text: str, *options: str) -> Result:
    """The list, to its end."""
    launcher.file("jobs.yaml", text)
    return launcher("run", "jobs.yaml", *SLURM, "--quiet", *options)


def failures(launcher: Launcher) -> dict[str, list[str | None]]:
    """Of each job: the classes of its attempts' failures.

    Without those that were in the queue for nothing, since what they need failed.
    """
    return {
        name: [a["failure"] for a in job["attempts"] if a["state"] != "interrupted"]
        for name, job in launcher.jobs().items()
    }


def places(job: dict[str, Any]) -> list[tuple[str, int]]:
    """Node and number of each card of the job's last attempt."""
    attempt = job["attempts"][-1]
    return [(attempt["node"], gpu["index"]) for gpu in attempt["gpus"]]


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


# ── Cards ───────────────────────────────────────────────────────────────────────────────────────

# Takes its card's file for itself alone: a second job on the same card at once fails.
LOCKED = """
import fcntl, os, sys, time
card = os.environ["CUDA_VISIBLE_DEVICES"]
assert card.isdigit() and card == os.environ["GPULAUNCH_GPU_INDEX"], card
place = os.environ["SLURMD_NODENAME"] + "-" + card
lock = open(f"cards/{place}", "a")
fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
print(place)
time.sleep(0.1)
sys.exit(int(sys.argv[1]) % 2)
"""


@pytest.mark.slow
def test_of_fifty_jobs_no_two_have_one_card_at_once(on_slurm: Launcher) -> None:
    on_slurm.file("job.py", LOCKED)
    (on_slurm.path / "cards").mkdir()
    result = run(
        on_slurm,
        f"""
        jobs:
          - name: j-{{{{item}}}}
            foreach: {{values: [{", ".join(map(str, range(50)))}]}}
            run: [{sys.executable}, -I, -S, job.py, "{{{{item}}}}"]
        """,
    )
    assert result.status == 1, result.err
    status = on_slurm.status()
    assert (status["run"]["counts"]["succeeded"], status["run"]["counts"]["failed"]) == (25, 25)
    seen = set()
    for job in status["jobs"]:
        number = int(job["name"].removeprefix("j-"))
        ((node, index),) = places(job)
        assert job["exit_code"] == number % 2
        assert on_slurm.log(job["name"]) == f"{node}-{index}\n"
        seen.add((node, index))
    assert seen == {("n1", 0), ("n1", 1), ("n2", 0), ("n2", 1)}
    assert len(lines(on_slurm.run / "joblog.tsv")) == 51
    report = (on_slurm.run / "report.html").read_text()
    assert all(f"{node} GPU {index}" in report for node, index in seen)
    left = ("ends", "slurm/tickets", "slurm/stops")
    assert not [path for name in left for path in (on_slurm.run / name).iterdir()]


def test_none_one_or_two_cards_are_what_a_job_sees(on_slurm: Launcher) -> None:
    see = 'echo "[${CUDA_VISIBLE_DEVICES-unset}] $GPULAUNCH_GPU_INDEX {{gpu_index}}"'
    result = run(
        on_slurm,
        f"""
        jobs:
          - {{name: none, gpus: 0, run: '{see}'}}
          - {{name: two, gpus: 2, run: '{see}'}}
          - {{name: one, run: 'echo $GPULAUNCH_GPU_UUID {{{{gpu_uuid}}}}'}}
        """,
    )
    assert result.status == 0, result.err
    jobs = on_slurm.jobs()
    assert on_slurm.log("none").split() == ["[]"]
    assert on_slurm.log("two").split() == ["[0,1]", "0,1", "0,1"]
    assert [index for _, index in places(jobs["two"])] == [0, 1]
    assert len({node for node, _ in places(jobs["two"])}) == 1
    ((node, index),) = places(jobs["one"])
    assert on_slurm.log("one").split() == [f"{node}/{index}"] * 2


# ── Ends ────────────────────────────────────────────────────────────────────────────────────────

ENDS = """
    jobs:
      - {name: ok, run: 'true'}
      - {name: three, run: exit 3}
      - {name: five, run: exit 5, success_codes: [0, 5]}
      - {name: killed, run: 'kill -KILL $$'}
      - {name: slow, run: exec sleep 600, timeout: 1s, grace: 1}
      - {name: silent, run: 'echo once; exec sleep 600', idle_timeout: 1s, grace: 1}
      - {name: empty, run: 'true', outputs: ['{{out}}/x', gone]}
      - {name: again, run: 'echo "try {{attempt}}"; [ {{attempt}} = 3 ]', retries: 2}
      - {name: thrice, run: 'exit {{attempt}}', retries: 2}
      - {name: picky, run: exit 1, retries: {times: 2, on: [timeout]}}
      - {name: absent, run: [/no/such/program]}
      - {name: skipped, needs: [three], run: 'touch never'}
      - {name: deeper, needs: [skipped], run: 'touch never'}
      - {name: ready, needs: [again, five], run: 'true', gpus: 0}
      - {name: whatever, after: [three, skipped, again], run: 'true', gpus: 0}
"""


def test_how_jobs_end_is_told_as_on_one_machine(on_slurm: Launcher) -> None:
    result = run(on_slurm, ENDS)
    assert result.status == 1, result.err
    assert failures(on_slurm) == {
        "ok": [None],
        "three": ["exit"],
        "five": [None],
        "killed": ["signal"],
        "slow": ["timeout"],
        "silent": ["idle_timeout"],
        "empty": ["missing_output"],
        "again": ["exit", "exit", None],
        "thrice": ["exit", "exit", "exit"],
        "picky": ["exit"],
        "absent": ["not_started"],
        "skipped": [],
        "deeper": [],
        "ready": [None],
        "whatever": [None],
    }
    jobs = on_slurm.jobs()
    assert {name for name, job in jobs.items() if job["state"] == "succeeded"} == {
        "ok", "five", "again", "ready", "whatever",
    }  # fmt: skip
    assert {name for name, job in jobs.items() if job["state"] == "skipped"} == {
        "skipped", "deeper",
    }  # fmt: skip
    assert (jobs["three"]["exit_code"], jobs["killed"]["signal"]) == (3, 9)
    assert [a["number"] for a in jobs["thrice"]["attempts"]] == [1, 2, 3]
    assert [a["exit_code"] for a in jobs["thrice"]["attempts"]] == [1, 2, 3]
    assert [on_slurm.log("again", n) for n in (1, 2, 3)] == ["try 1\n", "try 2\n", "try 3\n"]
    assert not (on_slurm.path / "never").exists()
    assert "/no/such/program" in jobs["absent"]["reason"]


def test_what_a_job_finds_is_as_the_file_says(on_slurm: Launcher) -> None:
    on_slurm.environ |= {"FROM_SHELL": "a b", "DROPPED": "x", "RANK": "3"}
    on_slurm.file("vars.env", "FROM_FILE='c d'\n")
    (on_slurm.path / "sub").mkdir()
    see = (
        'echo "$FROM_SHELL|$FROM_FILE|$OWN|${DROPPED-gone}|${RANK-gone}|$PWD|$GPULAUNCH_JOB"'
        '; echo x > "{{out}}/made"; echo {{port}} $MASTER_PORT'
    )
    result = run(
        on_slurm,
        f"""
        jobs:
          - name: see
            run: '{see}'
            cwd: sub
            env_file: vars.env
            env: {{OWN: 'of {{{{job}}}}', DROPPED: null}}
            outputs: ['{{{{out}}}}/made']
          - {{name: next, needs: [see], run: 'cat {{{{run_dir}}}}/results/see/made'}}
        """,
    )
    assert result.status == 0, result.err + on_slurm.log("see")
    first, second = on_slurm.log("see").splitlines()
    assert first == f"a b|c d|of see|gone|gone|{on_slurm.path}/sub|see"
    port, master = map(int, second.split())
    assert 0 < port != master > 0
    assert on_slurm.log("next") == "x\n"
    assert (on_slurm.run / "results" / "see").resolve() == on_slurm.run / "out" / "see.1"


# ── Order ───────────────────────────────────────────────────────────────────────────────────────


STEPS = """
    defaults: {gpus: 0}
    jobs:
      - name: fold-{{item}}-{{n}}
        foreach: {values: [a, b]}
        matrix: {n: [0, 1]}
        run: |
          until [ {{item}}{{n}} != a0 ] || [ -e {{run_dir}}/results/score-b-1 ]; do
            sleep 0.05
          done
          echo {{item}}{{n}} > {{out}}/it
      - name: score-{{item}}-{{n}}
        foreach: {values: [a, b]}
        matrix: {n: [0, 1]}
        needs: ['fold-{{item}}-{{n}}']
        run: cp {{run_dir}}/results/fold-{{item}}-{{n}}/it {{out}}/it
"""


def test_items_follow_each_other_one_by_one(on_slurm: Launcher) -> None:
    """One item's first step waits for another's second."""
    result = run(on_slurm, STEPS)
    assert result.status == 0, result.err
    for name in ("a-0", "a-1", "b-0", "b-1"):
        made = on_slurm.run / "results" / f"score-{name}" / "it"
        assert made.read_text().strip() == name.replace("-", "")


def test_an_item_that_fails_once_is_followed_by_its_own_successor_alone_and_later(
    on_slurm: Launcher,
) -> None:
    result = run(
        on_slurm,
        """
        defaults: {gpus: 0}
        jobs:
          - name: fold-{{n}}
            matrix: {n: [0, 1, 2, 3, 4, 5]}
            retries: 1
            run: '[ {{n}} != 5 ] && [ {{n}}.{{attempt}} != 2.1 ] && echo {{n}} > {{out}}/it'
          - name: score-{{n}}
            matrix: {n: [0, 1, 2, 3, 4, 5]}
            needs: ['fold-{{n}}']
            run: cp {{run_dir}}/results/fold-{{n}}/it {{out}}/it
        """,
    )
    assert result.status == 1, result.err
    states = on_slurm.states()
    assert (states.pop("fold-5"), states.pop("score-5")) == ("failed", "skipped")
    assert set(states.values()) == {"succeeded"}
    attempts = {name: len(job["attempts"]) for name, job in on_slurm.jobs().items()}
    assert (attempts["fold-2"], attempts["score-2"], attempts["score-1"]) == (2, 2, 1)
    lists = [
        json.loads(path.read_text()) for path in (on_slurm.run / "slurm/batches").glob("*.json")
    ]
    assert any(listed["each"] for listed in lists)


def test_tokens_are_held_by_one_job_at_a_time(on_slurm: Launcher) -> None:
    result = run(
        on_slurm,
        """
        limits: {server: 1}
        jobs:
          - name: j-{{n}}
            matrix: {n: [1, 2, 3, 4]}
            gpus: 0
            uses: [server]
            run: 'exec 9> held; flock -n 9; sleep 0.2'
        """,
    )
    assert result.status == 0, result.err


def test_what_matters_more_goes_first(on_slurm: Launcher) -> None:
    result = run(
        on_slurm,
        """
        jobs:
          - {name: low, priority: 1, run: 'echo low >> order'}
          - {name: none, run: 'echo none >> order'}
          - {name: large, cost: 9, run: 'echo large >> order'}
          - {name: high, priority: 5, run: 'echo high >> order'}
        """,
        "--gpus",
        "1",
    )
    assert result.status == 0, result.err
    assert lines(on_slurm.path / "order") == ["high", "low", "large", "none"]


def test_only_what_is_named_runs_with_what_it_needs(on_slurm: Launcher) -> None:
    text = "jobs: [{name: a, run: 'true'}, {name: b, needs: [a], run: 'true'}, {name: c, run: x}]"
    result = run(on_slurm, text, "--only", "b")
    assert result.status == 0, result.err
    assert on_slurm.states() == {"a": "succeeded", "b": "succeeded"}


@pytest.mark.parametrize("option", [("--fail-fast",), ("--max-failures", "1")])
def test_after_failures_nothing_more_is_begun(
    on_slurm: Launcher, cluster: Cluster, option: tuple[str, ...]
) -> None:
    result = run(
        on_slurm,
        """
        jobs:
          - {name: bad, priority: 9, run: exit 1}
          - {name: "long-{{n}}", matrix: {n: [1, 2, 3]}, run: "sleep 2; echo {{n}} >> ran"}
          - {name: "next-{{n}}", matrix: {n: [1, 2]}, needs: ["long-{{n}}"], run: "touch begun"}
        """,
        *option,
    )
    assert result.status == 1, result.err
    assert on_slurm.states()["bad"] == "failed"
    assert not (on_slurm.path / "begun").exists()
    nothing_waits(cluster)


# ── A live run, from another terminal ───────────────────────────────────────────────────────────

LIVE = """
    jobs:
      - {name: long, priority: 9, run: exec sleep 1000, grace: 1}
      - {name: bad, priority: 8, run: '[ -e good ]'}
      - {name: talks, priority: 7, run: 'echo one; until [ -e stop ]; do sleep 0.1; done; echo two'}
      - {name: wide, gpus: 2, run: exec sleep 1000}
      - {name: blocked, needs: [long], run: 'true'}
"""


def test_other_terminals_see_and_change_a_live_run(on_slurm: Launcher) -> None:
    on_slurm.file("jobs.yaml", LIVE)
    with on_slurm.begun("run", "jobs.yaml", *SLURM) as process:
        on_slurm.wait_for("job_settled")
        assert on_slurm.states()["bad"] == "failed"
        wait_until(lambda: lines(on_slurm.run / "logs/talks.1.log"), what="talks talks")
        wait_until(lambda: on_slurm.jobs()["long"]["state"] == "running", what="long runs")
        wait_until(lambda: "(Dependency)" in on_slurm.jobs()["blocked"]["reason"])
        told = json.loads(on_slurm("status", "--json").out)
        jobs = {job["name"]: job for job in told["jobs"]}
        assert told["run"]["state"] == "running"
        assert "needs long, which is running; in Slurm's queue as" in jobs["blocked"]["reason"]
        assert {gpu["node"] for gpu in told["gpus"]} <= {"n1", "n2"}
        assert on_slurm("logs", "talks").out == "one\n"
        runs = {run["dir"]: run for run in json.loads(on_slurm("ps", "--json").out)["runs"]}
        assert runs[str(on_slurm.run)]["pid"] == process.pid
        on_slurm.file("good", "")
        assert on_slurm("retry").status == 0
        wait_until(lambda: on_slurm.states()["bad"] == "succeeded", what="bad is good")
        assert on_slurm("cancel", "-r", on_slurm.run, "long").status == 0
        wait_until(lambda: on_slurm.states()["long"] == "cancelled", what="long is cancelled")
        wait_until(lambda: on_slurm.states()["blocked"] == "skipped", what="blocked is skipped")
        with on_slurm.begun("logs", "talks", "-f") as following:
            assert following.stdout is not None
            assert following.stdout.readline() == "one\n"
            on_slurm.file("stop", "")
            assert following.stdout.read() == "two\n"
        with on_slurm.begun("wait") as waiting:
            assert on_slurm("cancel", "-r", on_slurm.run, "--all").status == 0
            assert waiting.wait(60) == 1
        assert process.wait(60) == 1
    assert on_slurm.states() == {
        "long": "cancelled", "bad": "succeeded", "talks": "succeeded", "wide": "cancelled",
        "blocked": "skipped",
    }  # fmt: skip
    assert not left(on_slurm)


def test_a_paused_run_whose_launcher_is_killed_goes_on_when_it_is_resumed(
    on_slurm: Launcher,
) -> None:
    waits = "until [ -e go ]; do sleep 0.1; done"
    on_slurm.file(
        "jobs.yaml",
        f"jobs: [{{name: 'j-{{{{n}}}}', matrix: {{n: [1, 2, 3, 4, 5]}}, run: '{waits}'}}]",
    )
    with on_slurm.begun("run", "jobs.yaml", *SLURM) as process:
        on_slurm.wait_for("attempt_started", 4)
        call(on_slurm.status()["run"]["id"], Pause(Quoted("tea")))

        def reason() -> str:
            (waiting,) = (j for j in on_slurm.jobs().values() if j["state"] == "waiting")
            return str(waiting["reason"])

        wait_until(lambda: ": held until the run goes on (JobHeld" in reason(), what="it is held")
        assert reason().startswith("paused: tea; in Slurm's queue as ")
        process.kill()
        process.wait()
    on_slurm.file("go", "")
    again = on_slurm("resume", "--quiet")
    assert again.status == 0, again.err
    assert set(on_slurm.states().values()) == {"succeeded"}


def test_a_finished_run_is_gone_on_with(on_slurm: Launcher) -> None:
    text = """
        jobs:
          - {name: a, run: 'echo a >> ran'}
          - {name: b, run: 'echo b >> ran; [ -e good ]'}
          - {name: c, needs: [b], run: 'echo c >> ran'}
    """
    assert run(on_slurm, text).status == 1
    on_slurm.file("good", "")
    on_slurm.file("jobs.yaml", text + "      - {name: d, run: 'echo d >> ran'}\n")
    assert on_slurm("retry", "--quiet").status == 0
    assert sorted(lines(on_slurm.path / "ran")) == ["a", "b", "b", "c"]
    assert on_slurm("resume", "--quiet").status == 0
    assert sorted(lines(on_slurm.path / "ran")) == ["a", "b", "b", "c", "d"]
    assert [a["number"] for a in on_slurm.jobs()["b"]["attempts"]] == [1, 2]


# ── Stopping ────────────────────────────────────────────────────────────────────────────────────

LONG = """
    jobs:
      - name: j-{{item}}
        foreach: {values: [1, 2, 3, 4, 5, 6]}
        grace: 2
        run: setsid sleep 1000 & exec sleep 1000
"""
STUBBORN = """
    jobs:
      - name: j-{{item}}
        foreach: {values: [1, 2, 3, 4, 5, 6]}
        grace: 600
        run: "trap '' TERM INT HUP; setsid sleep 1000 & while :; do sleep 1000; done"
"""


def left(launcher: Launcher) -> list[int]:
    """Processes that have to do with the run: its jobs, their keepers, what started those."""
    where = str(launcher.path).encode()
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError):
            told = Path(f"/proc/{name}/environ").read_bytes()
            told += Path(f"/proc/{name}/cmdline").read_bytes()
            told += os.fsencode(os.readlink(f"/proc/{name}/cwd"))
            if where in told:
                found.append(int(name))
    return found


def check_stopped(launcher: Launcher, cluster: Cluster) -> None:
    """Nothing is left of it, and it can be gone on with."""
    assert not left(launcher)
    nothing_waits(cluster)
    assert launcher.status()["run"]["state"] == "stopped"
    assert set(launcher.states().values()) == {"waiting"}
    launcher.file("jobs.yaml", LONG.replace("setsid sleep 1000 & exec sleep 1000", "'true'"))
    result = launcher("resume", "--quiet")
    assert result.status == 0, result.err
    counts = Counter(len(job["attempts"]) for job in launcher.jobs().values())
    assert counts == {2: 6}


def test_ctrl_c_leaves_no_process_and_nothing_in_the_queue(
    on_slurm: Launcher, cluster: Cluster
) -> None:
    on_slurm.file("jobs.yaml", LONG)
    with on_slurm.begun("run", "jobs.yaml", *SLURM) as process:
        on_slurm.wait_for("attempt_started", 4)
        wait_until(lambda: len(left(on_slurm)) > 8, PATIENCE)  # their programs, too
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
    check_stopped(on_slurm, cluster)


def test_ctrl_c_twice_waits_for_no_grace(on_slurm: Launcher, cluster: Cluster) -> None:
    on_slurm.file("jobs.yaml", STUBBORN)
    with on_slurm.begun("run", "jobs.yaml", *SLURM) as process:
        on_slurm.wait_for("attempt_started", 4)
        wait_until(lambda: len(left(on_slurm)) > 8, PATIENCE)  # their programs, too
        process.send_signal(signal.SIGINT)
        on_slurm.wait_for("stop_asked")
        assert process.poll() is None, "the grace is ten minutes"
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
    check_stopped(on_slurm, cluster)
