"""What a job of a long list costs in memory, from the file's text to a run that has it waiting."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

from gpulaunch.core.events import Submitted
from gpulaunch.core.model import Gpu, Instant
from gpulaunch.core.run import Run
from gpulaunch.jobfile.file_keys import Surroundings
from gpulaunch.jobfile.load import load_text

GPU = Gpu("GPU-0", 0, "sim/0", "a card", 80 << 30)
TEXT = "jobs: [{{name: 'j-{{{{index}}}}', run: 'true', foreach: {{values: [{}]}}}}]"
JOBS = 2_000
BYTES = 1_350
"""Of a job: with the program's own 45 MB, a hundred thousand stay below 200 MB."""


def test_a_job_of_a_long_list_takes_little_memory(tmp_path: Path) -> None:
    def plan(jobs: int) -> Submitted:
        text = TEXT.format(", ".join(map(str, range(jobs)))).encode()
        return Submitted(load_text(text, Surroundings({}), name="jobs.yaml", base=tmp_path).jobs)

    Run([GPU]).handle([plan(1)], Instant(1.0, 1.0))  # what is imported once is not counted
    tracemalloc.start(1)
    try:
        run = Run([GPU])
        results = run.handle([plan(JOBS)], Instant(1.0, 1.0))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(results) > JOBS
    assert peak / JOBS < BYTES
