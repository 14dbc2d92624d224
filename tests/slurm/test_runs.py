"""Whole runs on a throw-away cluster of two nodes with two cards each, by the installed command."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from collections import Counter
from contextlib import suppress
from hashlib import md5
from pathlib import Path
from typing import Any

import pytest

from gpulaunch.core.causes import Quoted
from gpulaunch.core.events import Pause
from gpulaunch.run.control_client import call
from tests.cli.launcher import UNTIL_GO, Launcher, Result
from tests.helpers import wait_until
from tests.slurm.cluster import PATIENCE, Cluster
from tests.slurm.conftest import MakeCluster, launcher_on, nothing_waits

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


# ── Files ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("cycle", ["0.3", "60"])
def test_no_file_that_is_left_is_empty(on_slurm: Launcher, cycle: str) -> None:
    on_slurm.environ["GPULAUNCH_SLURM_CYCLE"] = cycle  # the queue may not be looked at any more
    jobs = 'jobs: [{name: "mute-{{n}}", matrix: {n: [1, 2, 3]}, gpus: 0, run: ["true"]}]'
    assert run(on_slurm, jobs).status == 0
    left = [path for path in (on_slurm.path / "gpulaunch-runs").rglob("*") if path.is_file()]
    assert [path for path in left if not path.stat().st_size] == []
    one = on_slurm("logs", "mute-1")
    assert (one.status, one.out) == (0, "")
    assert "mute-1.1.log is empty" in one.err
    every = on_slurm("logs")
    assert (every.status, every.err, every.out.count("==> mute-")) == (0, "", 3)
    none = on_slurm("logs", "mute-1", "--attempt", "2")
    assert (none.status, "there is no log" in none.err) == (2, True)


# ── A list that lives ───────────────────────────────────────────────────────────────────────────


def test_added_jobs_are_further_arrays_with_their_adders_environment(on_slurm: Launcher) -> None:
    on_slurm.file("jobs.yaml", f"jobs: [{{name: long, gpus: 0, run: '{UNTIL_GO}'}}]")
    with on_slurm.begun("run", "jobs.yaml", *SLURM, "--quiet") as process:
        on_slurm.wait_for("attempt_started")
        for value in ("one", "two"):
            run = "printf %s $MINE | md5sum"  # the report shows what a job prints
            job = f"{{name: '{value}-{{{{n}}}}', matrix: {{n: [1, 2]}}, gpus: 0, run: {run}}}"
            on_slurm.file("more.yaml", f"jobs: [{job}]")
            adder = Launcher(on_slurm.path, on_slurm.environ | {"MINE": f"secret-{value}"})
            assert adder("add", "more.yaml").out == f"{value}-1\n{value}-2\n"
        on_slurm.wait_for("attempt_ended", 4)
        on_slurm.file("go", "")
        assert process.wait(PATIENCE) == 0
    for job in ("one-1", "one-2", "two-1", "two-2"):
        assert on_slurm.log(job).split()[0] == md5(f"secret-{job[:3]}".encode()).hexdigest()
    for path in on_slurm.run.rglob("*"):
        if path.is_file() and path.parent.name != "logs":
            assert b"secret-" not in path.read_bytes(), path


def test_a_reload_takes_jobs_out_of_slurms_queue_and_puts_changed_ones_in_again(
    on_slurm: Launcher,
) -> None:
    text = f"""
        limits: {{one: 1}}
        jobs:
          - {{name: long, gpus: 0, run: '{UNTIL_GO}'}}
          - {{name: changed, needs: [long], gpus: 0, run: echo before}}
          - {{name: gone, needs: [long], gpus: 0, run: echo gone}}
    """
    on_slurm.file("jobs.yaml", text)
    with on_slurm.begun("run", "jobs.yaml", *SLURM, "--quiet") as process:
        on_slurm.wait_for("attempt_queued", 3)
        text = text.replace("echo before", "echo after")
        kept = [line for line in text.splitlines() if "gone" not in line]
        on_slurm.file("jobs.yaml", "\n".join(kept))
        result = on_slurm("reload")
        assert result.status == 0, result.err
        assert "1 job changed: changed" in result.err
        assert "1 job withdrawn: gone" in result.err
        wait_until(lambda: on_slurm.states()["gone"] == "cancelled", PATIENCE)
        on_slurm.file("go", "")
        assert process.wait(PATIENCE) == 0
    states = on_slurm.states()
    assert (states["changed"], states["gone"]) == ("succeeded", "cancelled")
    number = on_slurm.jobs()["changed"]["attempts"][-1]["number"]
    assert on_slurm.log("changed", number) == "after\n"


# ── Cards ───────────────────────────────────────────────────────────────────────────────────────

# Takes the files of its cards for itself alone: a second job on one of them at once fails.
LOCKED = """
import fcntl, os, sys, time
mask = os.environ["CUDA_VISIBLE_DEVICES"]
assert mask == os.environ["GPULAUNCH_GPU_INDEX"] == sys.argv[2], mask
places = [os.environ["SLURMD_NODENAME"] + "-" + card for card in mask.split(",")]
locks = [open(f"cards/{place}", "a") for place in places]
for lock in locks:
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
print(*places)
time.sleep(0.1)
sys.exit(int(sys.argv[1]) % 2)
"""
LOCKS = f'[{sys.executable}, -I, -S, job.py, "{{{{n}}}}", "{{{{gpu_index}}}}"]'
MANY = f"""
    jobs:
      - {{name: "one-{{{{n}}}}", matrix: {{n: {[*range(40)]}}}, run: {LOCKS}}}
      - {{name: "two-{{{{n}}}}", matrix: {{n: [0, 1, 2, 3]}}, gpus: 2, run: {LOCKS}}}
      - name: none
        gpus: 0
        run: 'echo "[${{CUDA_VISIBLE_DEVICES-unset}}] $GPULAUNCH_GPU_INDEX {{{{gpu_index}}}}"'
      - {{name: uuid, run: 'echo $GPULAUNCH_GPU_UUID {{{{gpu_uuid}}}}'}}
"""


@pytest.mark.slow
def test_each_job_has_the_cards_that_it_asked_for_and_none_is_anothers_at_once(
    on_slurm: Launcher,
) -> None:
    on_slurm.file("job.py", LOCKED)
    (on_slurm.path / "cards").mkdir()
    result = run(on_slurm, MANY)
    assert result.status == 1, result.err
    jobs, seen = on_slurm.jobs(), Counter[tuple[str, int]]()
    for kind, count, cards in (("one", 40, 1), ("two", 4, 2)):
        for number in range(count):
            name = f"{kind}-{number}"
            assert jobs[name]["exit_code"] == number % 2, (name, on_slurm.log(name))
            mine = places(jobs[name])
            assert (len(mine), len({node for node, _ in mine})) == (cards, 1), name
            assert on_slurm.log(name).split() == [f"{node}-{index}" for node, index in mine]
            seen.update(mine)
    assert set(seen) == {("n1", 0), ("n1", 1), ("n2", 0), ("n2", 1)}
    assert on_slurm.log("none").split() == ["[]"]
    ((node, index),) = places(jobs["uuid"])
    assert on_slurm.log("uuid").split() == [f"{node}/{index}"] * 2
    check_what_is_left(on_slurm, jobs=46, places=set(seen))
    listed = (on_slurm.run / "slurm/batches").glob("*.json")
    together = [len(json.loads(path.read_text())["attempts"]) for path in listed]
    assert sorted(together) == [1, 4, 41], "jobs alike are one array"


def check_what_is_left(launcher: Launcher, jobs: int, places: set[tuple[str, int]]) -> None:
    """The table and the report tell of all; what only a run under way needs is gone."""
    assert len(lines(launcher.run / "joblog.tsv")) == jobs + 1
    report = (launcher.run / "report.html").read_text()
    assert all(f"{node} GPU {index}" in report for node, index in places)
    gone = ("ends", "slurm/tickets", "slurm/stops")
    assert not [path for name in gone for path in (launcher.run / name).iterdir()]


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
      - name: "--wrap=x 'ü' $(touch never)|b"
        run: 'echo "$GPULAUNCH_JOB"'
      - name: see
        run: |
          echo "$FROM_SHELL|$FROM_FILE|$OWN|${DROPPED-gone}|${RANK-gone}|$PWD|$GPULAUNCH_JOB"
          echo x > "{{out}}/made"
          echo {{port}} $MASTER_PORT
        cwd: sub
        env_file: vars.env
        env: {OWN: 'of {{job}}', DROPPED: null}
        outputs: ['{{out}}/made']
      - {name: next, needs: [see], run: 'cat {{run_dir}}/results/see/made'}
"""
HOSTILE = "--wrap=x 'ü' $(touch never)|b"


def test_how_jobs_end_and_what_they_find_is_as_on_one_machine(on_slurm: Launcher) -> None:
    on_slurm.environ |= {"FROM_SHELL": "a b", "DROPPED": "x", "RANK": "3"}
    on_slurm.file("vars.env", "FROM_FILE='c d'\n")
    (on_slurm.path / "sub").mkdir()
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
        HOSTILE: [None],
        "see": [None],
        "next": [None],
    }
    jobs = on_slurm.jobs()
    assert {name for name, job in jobs.items() if job["state"] == "succeeded"} == {
        "ok", "five", "again", "ready", "whatever", HOSTILE, "see", "next",
    }  # fmt: skip
    assert {name for name, job in jobs.items() if job["state"] == "skipped"} == {
        "skipped", "deeper",
    }  # fmt: skip
    assert (jobs["three"]["exit_code"], jobs["killed"]["signal"]) == (3, 9)
    assert [a["number"] for a in jobs["thrice"]["attempts"]] == [1, 2, 3]
    assert [a["exit_code"] for a in jobs["thrice"]["attempts"]] == [1, 2, 3]
    assert [on_slurm.log("again", n) for n in (1, 2, 3)] == ["try 1\n", "try 2\n", "try 3\n"]
    assert "/no/such/program" in jobs["absent"]["reason"]
    assert on_slurm.log(HOSTILE) == f"{HOSTILE}\n"
    assert not (on_slurm.path / "never").exists()
    check_what_was_found(on_slurm)


def check_what_was_found(launcher: Launcher) -> None:
    first, second = launcher.log("see").splitlines()
    assert first == f"a b|c d|of see|gone|gone|{launcher.path}/sub|see"
    port, master = map(int, second.split())
    assert 0 < port != master > 0
    assert launcher.log("next") == "x\n"
    assert (launcher.run / "results" / "see").resolve() == launcher.run / "out" / "see.1"


LIMITED = f"""
    defaults: {{gpus: 0, engine: {{slurm: {{partition: brief}}}}}}
    jobs:
      - {{name: limited, run: "echo epoch 3; exec sleep 300"}}
      - {{name: heeds, run: "trap 'exit 0' TERM; {UNTIL_GO}"}}
      - {{name: own, run: sleep 300, timeout: 0.5, engine: {{slurm: {{partition: main}}}}}}
"""


@pytest.mark.slow
def test_slurms_time_limit_and_the_jobs_own_are_told_apart_each_with_its_length(
    own_cluster: MakeCluster, tmp_path: Path
) -> None:
    """Slurm tells a job a minute before, which is most of this limit."""
    cluster = own_cluster(nodes=1)
    cluster.command("scontrol", "create", "partitionname=brief", "nodes=ALL", "maxtime=1")
    launcher = launcher_on(cluster, tmp_path)
    assert run(launcher, LIMITED).status == 1
    jobs = launcher.jobs()
    assert {name: job["failure"] for name, job in jobs.items()} == dict.fromkeys(jobs, "timeout")
    limit = "Slurm's time limit of 60 s (its partition's, or --time) ended it"
    assert jobs["limited"]["reason"] == f"{limit}: epoch 3"
    assert jobs["heeds"]["reason"].startswith(limit)
    assert jobs["own"]["reason"] == "ran longer than its timeout of 0.5 s"


# ── Order ───────────────────────────────────────────────────────────────────────────────────────

# Of `fold` and `score`, one item's first step waits for another's second.
ORDER = """
    limits: {server: 2}
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
      - name: dock-{{n}}
        matrix: {n: [0, 1, 2, 3, 4, 5]}
        retries: 1
        run: '[ {{n}} != 5 ] && [ {{n}}.{{attempt}} != 2.1 ] && echo {{n}} > {{out}}/it'
      - name: rank-{{n}}
        matrix: {n: [0, 1, 2, 3, 4, 5]}
        needs: ['dock-{{n}}']
        run: cp {{run_dir}}/results/dock-{{n}}/it {{out}}/it
      - name: ask-{{n}}
        matrix: {n: [1, 2, 3, 4, 5, 6]}
        uses: [server]
        run: |
          mkdir at-work/{{n}}
          ls at-work | wc -l
          sleep 0.3
          rmdir at-work/{{n}}
"""


def test_items_follow_each_other_one_by_one_and_tokens_are_never_too_many(
    on_slurm: Launcher,
) -> None:
    (on_slurm.path / "at-work").mkdir()
    result = run(on_slurm, ORDER)
    assert result.status == 1, result.err
    for name in ("a-0", "a-1", "b-0", "b-1"):
        made = on_slurm.run / "results" / f"score-{name}" / "it"
        assert made.read_text().strip() == name.replace("-", "")
    states = on_slurm.states()
    assert (states.pop("dock-5"), states.pop("rank-5")) == ("failed", "skipped")
    assert set(states.values()) == {"succeeded"}
    attempts = {name: len(job["attempts"]) for name, job in on_slurm.jobs().items()}
    assert (attempts["dock-2"], attempts["rank-2"], attempts["rank-1"]) == (2, 2, 1)
    listed = (on_slurm.run / "slurm/batches").glob("*.json")
    assert any(json.loads(path.read_text())["each"] for path in listed), "array behind array"
    assert max(int(on_slurm.log(f"ask-{n}")) for n in range(1, 7)) == 2


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
        check_a_pause_holds(on_slurm, "blocked")
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


def check_a_pause_holds(launcher: Launcher, waiting: str) -> None:
    """What waits in Slurm's queue, until the run goes on."""
    run, held = launcher.status()["run"]["id"], ": held until the run goes on (JobHeld"
    call(run, Pause(Quoted("tea")))
    wait_until(lambda: held in launcher.jobs()[waiting]["reason"], what="it is held")
    assert launcher.jobs()[waiting]["reason"].startswith("paused: tea; ")
    call(run, Pause(None))
    wait_until(lambda: "(Dependency)" in launcher.jobs()[waiting]["reason"], what="it is not")


# ── Stopping ────────────────────────────────────────────────────────────────────────────────────

HIDING = """
    defaults: {grace: 600}
    jobs:
      - {name: heeds, run: "exec sleep 1000"}
      - {name: deaf, run: "trap '' TERM INT HUP; while :; do sleep 1000; done"}
      - {name: apart, grace: 1, run: "setsid sleep 1000 & (setsid sleep 1000 &); exec sleep 1000"}
      - {name: bare, grace: 1, run: "setsid env -i sleep 1000 & exec env -i sleep 1000"}
      - {name: asleep, grace: 1, gpus: 0, run: "kill -STOP $$"}
      - {name: waits, run: "exec sleep 1000"}
"""


@pytest.mark.slow
def test_cancel_and_ctrl_c_leave_no_process_however_a_job_hides_and_nothing_in_the_queue(
    on_slurm: Launcher, cluster: Cluster
) -> None:
    """A second Ctrl-C waits for no grace."""
    on_slurm.file("jobs.yaml", HIDING)
    with on_slurm.begun("run", "jobs.yaml", *SLURM) as process:
        on_slurm.wait_for("attempt_started", 5)
        wait_until(lambda: len(left(on_slurm)) > 10, PATIENCE)  # their programs, too
        for name in ("apart", "asleep"):
            assert on_slurm("cancel", "-r", on_slurm.run, name).status == 0
        wait_until(lambda: on_slurm.states()["asleep"] == "cancelled", PATIENCE)
        wait_until(lambda: on_slurm.states()["apart"] == "cancelled", PATIENCE)
        on_slurm.wait_for("attempt_started", 6)  # on the card that came free
        process.send_signal(signal.SIGINT)
        on_slurm.wait_for("attempt_ended", 5)
        assert process.poll() is None, "the grace of one is ten minutes"
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
    assert not left(on_slurm)
    nothing_waits(cluster)
    assert on_slurm.status()["run"]["state"] == "stopped"
    assert Counter(on_slurm.states().values()) == {"cancelled": 2, "waiting": 4}
    on_slurm.file("jobs.yaml", re.sub('run: ".*"', "run: 'true'", HIDING))
    result = on_slurm("resume", "--quiet")
    assert result.status == 0, result.err
    assert [len(job["attempts"]) for job in on_slurm.jobs().values()] == [2] * 6


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
