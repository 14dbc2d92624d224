"""`ladder:` from outside: less with each retry, and the others of the entry begin there."""

from __future__ import annotations

import pytest

from tests.cli.launcher import Launcher

OUT_OF_MEMORY = "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
EMBED = f"""
    import os, sys
    print(os.environ["GPULAUNCH_STEP"], sys.argv[2], os.environ["CHUNK"])
    if int(sys.argv[2]) > 8:
        print("{OUT_OF_MEMORY}", file=sys.stderr)
        sys.exit(1)
    with open(sys.argv[3] + "/batch-" + sys.argv[2], "w") as file:
        file.write("made")
"""
JOBS = """
    defaults: {retries: {times: 2, on: [gpu_oom]}}
    jobs:
      - name: embed-{{n}}
        matrix: {n: [1, 2, 3, 4]}
        ladder: {batch: [32, 16, 8], chunk: [no, 256, 128]}
        env: {CHUNK: "c{{chunk}}"}
        run: python embed.py {{n}} {{batch}} {{out}}
        outputs: ["{{out}}/batch-{{batch}}"]
"""


@pytest.fixture
def launcher(not_simulated: Launcher) -> Launcher:
    return not_simulated


def test_one_job_finds_the_step_and_the_others_begin_there(launcher: Launcher) -> None:
    launcher.file("embed.py", EMBED)
    launcher.file("jobs.yaml", JOBS)
    result = launcher("run", "jobs.yaml", "--simulate", "1")
    assert result.status == 0, result.err
    assert "tries again at step 2 of 3 (batch=16, chunk=256)" in result.err
    attempts = {name: job["attempts"] for name, job in launcher.jobs().items()}
    steps = {name: [one["step"] for one in made] for name, made in attempts.items()}
    assert steps == {"embed-1": [1, 2, 3], "embed-2": [3], "embed-3": [3], "embed-4": [3]}
    assert attempts["embed-4"][0]["ladder"] == {"batch": "8", "chunk": "128"}
    assert launcher.log("embed-1", 1).splitlines()[0] == "1 32 cno"
    assert launcher.log("embed-4", 1).splitlines() == ["3 8 c128"]
    about = launcher("status", "embed-1").out
    assert "ladder  step 2 of 3 (batch=16, chunk=256)" in about
    assert "ladder: {batch" not in about  # it has one
    assert "step 3 of 3 (batch=8, chunk=128)" in launcher("status", "--all").out
    rows = (launcher.run / "joblog.tsv").read_text()
    assert rows.count("embed-1: ") == 3
    assert "embed.py '2' 8 " in rows
    report = (launcher.run / "report.html").read_text()
    assert "step 3 of 3 (batch=8, chunk=128)" in report


def test_a_retry_by_hand_and_a_new_input_begin_where_the_last_success_was(
    launcher: Launcher,
) -> None:
    launcher.file("embed.py", EMBED)
    launcher.file("jobs.yaml", JOBS.replace("times: 2", "times: 1"))
    assert launcher("run", "jobs.yaml", "--simulate", "1").status == 1
    assert "no job comes further than step 2 by itself" in launcher("check", "jobs.yaml").err
    assert launcher("retry").status == 0
    attempts = {name: job["attempts"] for name, job in launcher.jobs().items()}
    assert [one["step"] for one in attempts["embed-1"]] == [1, 2, 2, 3]
    assert [one["step"] for one in attempts["embed-2"]] == [1, 2, 3]


def test_without_a_ladder_the_advice_names_it(launcher: Launcher) -> None:
    launcher.file("fails.sh", f"echo '{OUT_OF_MEMORY}'; exit 1")
    launcher.file("jobs.yaml", "jobs: [{name: a, run: bash fails.sh}]")
    assert launcher("run", "jobs.yaml", "--simulate", "1").status == 1
    assert "ladder: {batch: [32, 16, 8]}" in launcher("status", "a").out


@pytest.mark.parametrize(
    "worker",
    ['{function: "embed.py:embed"}', "{run: [python, lines.py]}"],
    ids=["function", "program"],
)
def test_a_worker_finds_the_values_in_its_item(launcher: Launcher, worker: str) -> None:
    launcher.file(
        "embed.py",
        """
        import os

        def embed(item):
            print(item.n, item.batch, os.environ["GPULAUNCH_STEP"])
            assert int(item.batch) < 16
        """,
    )
    launcher.file(
        "lines.py",
        """
        import json, os, sys

        answers = os.fdopen(3, "w")
        for line in sys.stdin:
            item = json.loads(line)
            print(item["n"], item["batch"], flush=True)
            answer = {} if int(item["batch"]) < 16 else {"exit": 1}
            print(json.dumps(answer), file=answers, flush=True)
        """,
    )
    launcher.file(
        "jobs.yaml",
        f"""
        jobs:
          - name: embed-{{{{n}}}}
            matrix: {{n: [1, 2, 3, 4, 5]}}
            ladder: {{batch: [32, 16, 8]}}
            retries: 2
            worker: {worker}
        """,
    )
    result = launcher("run", "jobs.yaml", "--simulate", "1")
    assert result.status == 0, result.err
    for number, job in enumerate(launcher.jobs().values(), 1):
        last = [one for one in job["attempts"] if one["started"]][-1]
        assert last["ladder"] == {"batch": "8"}
        assert f"{number} 8" in launcher.log(f"embed-{number}", last["number"])
    assert [one["step"] for one in launcher.jobs()["embed-5"]["attempts"]] == [3]
