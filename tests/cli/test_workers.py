"""`worker:` from outside: a folder of items through one process a card."""

from __future__ import annotations

import json
import os
import signal
from collections import Counter
from pathlib import Path

import pytest

from tests.cli.launcher import Launcher
from tests.faults.test_stopping import alive, run_id
from tests.helpers import wait_until

FOLD = """
    import os, signal, time

    def load():
        print("loaded in", os.getpid())
        return os.getpid()

    def predict(model, item):
        print(item.job, item.n, model, item.gpu_index)
        with open(item.out + "/made", "w") as file:
            file.write(item.n)
        if item.n == os.environ.get("BAD"):
            os.kill(os.getpid(), signal.SIGSEGV)
        if item.n == os.environ.get("LONG"):
            time.sleep(1000)
"""


@pytest.fixture
def launcher(not_simulated: Launcher) -> Launcher:
    return not_simulated


def entry(count: int, **more: str) -> str:
    numbers = ", ".join(map(str, range(count)))
    extra = "".join(f"\n            {key}: {value}" for key, value in more.items())
    return f"""
        jobs:
          - name: fold-{{{{n}}}}
            matrix: {{n: [{numbers}]}}
            worker: {{function: "fold.py:predict", load: "fold.py:load"}}
            outputs: ["{{{{out}}}}/made"]{extra}
    """


def test_five_hundred_items_on_four_cards_take_four_processes(launcher: Launcher) -> None:
    launcher.file("fold.py", FOLD)
    launcher.file("jobs.yaml", entry(500))
    result = launcher("run", "jobs.yaml", "--simulate", "4")
    assert result.status == 0, result.err
    by_card: Counter[tuple[str, str]] = Counter()
    loads = 0
    attempts = {name: job["attempts"] for name, job in launcher.jobs().items()}
    for number in range(500):
        begun = [one["number"] for one in attempts[f"fold-{number}"] if one["started"]]
        assert len(begun) == 1
        *first, last = launcher.log(f"fold-{number}", *begun).splitlines()
        name, item, pid, card = last.split()
        assert (name, item) == (f"fold-{number}", str(number))
        assert [line.split()[-1] for line in first] in ([], [pid])
        loads += bool(first)
        by_card[card, pid] += 1
        made = launcher.run / "results" / name / "made"
        assert made.read_text() == str(number)
    assert sorted(card for card, _ in by_card) == ["0", "1", "2", "3"]
    assert loads == 4
    assert len(launcher.events("worker_left")) == len(launcher.events("worker_gone")) == 4
    table = (launcher.run / "joblog.tsv").read_text().splitlines()
    assert table[1].endswith(f"worker {launcher.path}/fold.py:predict")


def test_a_crash_costs_one_item_which_is_retried_in_a_fresh_process(launcher: Launcher) -> None:
    launcher.file("fold.py", FOLD.replace('"BAD")', '"BAD") and item.attempt == "1"'))
    launcher.file("jobs.yaml", entry(6, env="{BAD: 3}", retries="1"))
    result = launcher("run", "jobs.yaml", "--simulate", "1")
    assert result.status == 0, result.err
    attempts = {name: job["attempts"] for name, job in launcher.jobs().items()}
    begun = [sum(bool(one["started"]) for one in attempts[f"fold-{n}"]) for n in range(6)]
    assert begun == [1, 1, 1, 2, 1, 1]
    ends = {
        line["job"]: line for line in launcher.events("attempt_ended") if line["end"].get("failure")
    }
    assert ends.keys() == {"fold-3"}
    fresh = [(f"fold-{n}", attempts[f"fold-{n}"][-1]["number"]) for n in (3, 4)]
    assert any("loaded" in launcher.log(*one) for one in fresh)


def test_workers_that_end_at_once_are_given_up_item_by_item(launcher: Launcher) -> None:
    """The last item is behind one whose end leaves no job ready, so that its card goes back."""
    launcher.file(
        "jobs.yaml",
        """
        jobs:
          - name: w-{{item}}
            foreach: {values: [1, 2, 3]}
            worker: {run: [sh, -c, 'sleep 0.1; exit 3']}
        """,
    )
    for number in range(5):
        result = launcher("run", "jobs.yaml", "--simulate", "1", "--new", timeout=30)
        assert result.status == 1, number
    assert set(launcher.states().values()) == {"failed"}


def test_one_item_that_hangs_is_timed_out_alone(launcher: Launcher) -> None:
    launcher.file("fold.py", FOLD)
    launcher.file("jobs.yaml", entry(4, env="{LONG: 1}", timeout="3s", grace="0.2"))
    result = launcher("run", "jobs.yaml", "--simulate", "1")
    assert result.status == 1
    states = launcher.states()
    assert states.pop("fold-1") == "failed"
    assert set(states.values()) == {"succeeded"}


def test_it_waits_for_items_that_are_made_one_after_the_other(launcher: Launcher) -> None:
    launcher.file("fold.py", FOLD)
    launcher.file(
        "jobs.yaml",
        """
        limits: {one: 1}
        jobs:
          - {name: "msa-{{n}}", matrix: {n: [0, 1, 2, 3]}, gpus: 0, uses: one, run: sleep 0.2}
          - name: fold-{{n}}
            matrix: {n: [0, 1, 2, 3]}
            needs: ["msa-{{n}}"]
            worker: {function: "fold.py:predict", load: "fold.py:load"}
        """,
    )
    result = launcher("run", "jobs.yaml", "--simulate", "1")
    assert result.status == 0, result.err
    logs = "".join(launcher.log(f"fold-{n}") for n in range(4))
    assert logs.count("loaded") == 1
    workers = [a["worker"] for job in launcher.jobs().values() for a in job["attempts"]]
    assert set(workers) == {None, "fold-0.1"}


def test_killed_with_live_workers_the_supervisor_leaves_nobody(launcher: Launcher) -> None:
    launcher.file("fold.py", FOLD)
    launcher.file("jobs.yaml", entry(40, env="{LONG: 20}", grace="0.5"))
    with launcher.begun("run", "jobs.yaml", "--simulate", "3") as process:
        launcher.wait_for("job_settled", 30)
        run = run_id(launcher)
        assert alive(run)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    wait_until(lambda: not alive(run), 30, "every process of the run gone")
    text = (launcher.path / "jobs.yaml").read_text().replace("LONG: 20", "LONG: none")
    launcher.file("jobs.yaml", text)
    result = launcher("resume", "--simulate", "3")
    assert result.status == 0, result.err
    assert set(launcher.states().values()) == {"succeeded"}


def test_the_plan_shows_what_a_worker_is_called_with(launcher: Launcher) -> None:
    launcher.file("fold.py", FOLD)
    launcher.file("jobs.yaml", entry(5))
    result = launcher("check", "jobs.yaml")
    assert "in a worker" in result.out
    assert "$ fold.py:predict(fold-0)" in result.out
    plan = json.loads(launcher("check", "jobs.yaml", "--json").out)
    worker = plan["jobs"][0]["worker"]
    assert worker["function"] == f"{launcher.path}/fold.py:predict"
    assert worker["key"] == plan["jobs"][4]["worker"]["key"]


def test_what_is_suspect_in_the_functions_file_is_found(launcher: Launcher) -> None:
    launcher.file("fold.py", "import torch\ndef predict(item):\n    torch.zeros(1).to('cuda:1')\n")
    launcher.file("jobs.yaml", "jobs: [{name: a, worker: 'fold.py:predict'}]")
    result = launcher("check", "jobs.yaml")
    assert "fold.py:3" in result.out + result.err


def test_explain_works_in_a_worker(launcher: Launcher) -> None:
    fake = Path(__file__).parents[1] / "explain" / "faketorch"
    launcher.file(
        "fold.py",
        """
        import torch
        def predict(item):
            raise RuntimeError(
                "Expected all tensors to be on the same device, but found at least two devices,"
                " cuda:0 and cpu!"
            )
        """,
    )
    launcher.file(
        "jobs.yaml",
        f"""
        jobs:
          - {{name: a, worker: 'fold.py:predict', explain: true, env: {{PYTHONPATH: {fake}}}}}
        """,
    )
    assert launcher("run", "jobs.yaml", "--simulate", "1").status == 1
    log = launcher.log("a")
    assert "RuntimeError: Expected all tensors" in log
    assert "agent" not in log


def test_the_log_of_a_job_is_that_of_its_newest_attempt_that_began(launcher: Launcher) -> None:
    launcher.file(
        "fold.py",
        f"""
        import os, time
        def predict(item):
            print("at", item.n, item.attempt)
            while item.n == "1" and not os.path.exists("{launcher.path}/go"):
                time.sleep(0.01)
            return item.n == "1"
        """,
    )
    launcher.file(
        "jobs.yaml",
        """
        jobs:
          - name: fold-{{n}}
            matrix: {n: [0, 1]}
            worker: fold.py:predict
            retries: {times: 1, delay: 0.2s}
        """,
    )
    with launcher.begun("run", "jobs.yaml", "--simulate", "1", "--quiet") as process:
        launcher.wait_for("attempt_launched", 3)
        assert launcher("cancel", "fold-0").status == 0
        wait_until(lambda: launcher.states()["fold-0"] == "cancelled")
        (launcher.path / "go").touch()
        process.wait()
    (second,) = launcher.events("attempt_launched")[2:]
    assert (second["job"], second["behind"]) == ("fold-0", {"job": "fold-1", "number": 1})
    assert launcher("logs", "fold-0").out.startswith("at 0 1\n")
    assert "0:00" not in next(
        line for line in launcher("status", "--all").out.splitlines() if "fold-0" in line
    )
