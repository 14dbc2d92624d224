"""A Hydra callback that notes what it is told, by whom, and what a sweep's jobs returned."""

from __future__ import annotations

import os
from typing import Any

from hydra.core.utils import JobReturn, JobStatus
from hydra.experimental.callback import Callback


class Watcher(Callback):
    def __init__(self, file: str) -> None:
        self.file = file

    def note(self, what: str) -> None:
        with open(self.file, "a") as file:
            file.write(f"{what} {os.getpid()}\n")

    def on_multirun_start(self, config: Any, **_: Any) -> None:
        self.note("multirun start")

    def on_job_start(self, config: Any, **_: Any) -> None:
        self.note(f"job start {config.hydra.job.num}")

    def on_job_end(self, config: Any, job_return: JobReturn, **_: Any) -> None:
        status = JobStatus(job_return.status).name
        self.note(f"job end {config.hydra.job.num} {status}")

    def on_multirun_end(self, config: Any, **_: Any) -> None:
        self.note("multirun end")
