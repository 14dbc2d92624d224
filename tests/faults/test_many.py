"""A long list: every job on exactly one card, no card twice at once, every record right."""

from __future__ import annotations

import sys

from tests.cli.launcher import Launcher

# Takes its card's file for itself alone: a second job on the same card at once fails.
JOB = """
import fcntl, os, sys
card = os.environ["CUDA_VISIBLE_DEVICES"]
assert card.isdigit() and card == os.environ["GPULAUNCH_GPU_INDEX"], card
lock = open(f"{sys.argv[1]}/card-{card}", "a")
fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
print(f"job {sys.argv[2]} on {card}")
sys.exit(int(sys.argv[2]) % 4)
"""


def test_four_hundred_jobs_on_eight_cards(launcher: Launcher) -> None:
    launcher.file("job.py", JOB)
    (launcher.path / "cards").mkdir()
    values = ", ".join(str(n) for n in range(400))
    launcher.file(
        "jobs.yaml",
        f"""
        jobs:
          - name: j-{{{{item}}}}
            foreach: {{values: [{values}]}}
            run: [{sys.executable}, -I, -S, job.py, cards, "{{{{item}}}}"]
        """,
    )
    result = launcher("run", "jobs.yaml", "--simulate", "8", "--quiet", timeout=280)
    assert result.status == 1, result.err[-2000:]
    status = launcher.status()
    assert status["run"]["counts"] == {
        "waiting": 0, "running": 0, "succeeded": 100, "failed": 300, "cancelled": 0, "skipped": 0,
    }  # fmt: skip
    seen = set()
    for job in status["jobs"]:
        number = int(job["name"].removeprefix("j-"))
        (attempt,) = job["attempts"]
        (gpu,) = attempt["gpus"]
        assert job["exit_code"] == number % 4
        assert launcher.log(job["name"]) == f"job {number} on {gpu['index']}\n"
        seen.add(gpu["index"])
    assert seen == set(range(8))
    rows = (launcher.run / "joblog.tsv").read_text().splitlines()
    assert len(rows) == 401
    assert not list((launcher.run / "ends").iterdir())
