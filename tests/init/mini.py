"""Runs a job file's jobs as soon as what they need has ended, on as many cards as they want.

The least that runs a job file, so that hundreds of small ones can be run in a test.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from gpulaunch.core.model import Job
from gpulaunch.core.template import Text, render
from gpulaunch.jobfile.file_keys import Surroundings
from gpulaunch.jobfile.load import load_text


def started(job: Job) -> int:
    """Start a job, and return its process's ID."""
    run = job.run
    assert not isinstance(run, tuple)
    cards = ",".join(map(str, range(job.demand.gpus)))
    own = {name: rendered(text) for name, text in job.env.items()}
    environ = {**os.environ, **own, "CUDA_VISIBLE_DEVICES": cards}
    argv = ["bash", "-eo", "pipefail", "-c", render(run, {})]
    return os.spawnvpe(os.P_NOWAIT, argv[0], argv, environ)


def rendered(text: Text | None) -> str:
    return render(text, {}) if text is not None else ""


def main(name: str) -> int:
    path = Path(name).absolute()
    data = path.read_bytes()
    plan = load_text(data, Surroundings({}), name=path.name, base=path.parent)
    waiting, running, ended = list(plan.jobs), dict[int, str](), dict[str, bool]()
    while waiting or running:
        for job in list(waiting):
            if all(one in ended for one in (*job.needs, *job.after)):
                waiting.remove(job)
                if all(ended[one] for one in job.needs):
                    running[started(job)] = job.name
                else:
                    ended[job.name] = False
        if running:
            pid, status = os.wait()
            ended[running.pop(pid)] = status == 0
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
