"""Which keepers watch over jobs on this machine, as `gpulaunch doctor` says it."""

from __future__ import annotations

from gpulaunch.gpus.finding import DoctorFinding
from gpulaunch.process.native import choose_keeper


def finding() -> DoctorFinding:
    """Return the finding of `gpulaunch doctor` on the keepers, and why it is these."""
    choice = choose_keeper()
    if choice.reason == "works":
        return DoctorFinding("ok", "jobs are kept by the compiled keepers")
    if choice.reason == "unfit":
        what = f"jobs are kept by Python's keepers: the compiled ones fail ({choice.problem})"
        return DoctorFinding("note", what, "they work as well, with more CPU time per job")
    why = {
        "asked": "GPULAUNCH_KEEPER asks for them",
        "absent": "gpulaunch was installed without the compiled ones (no C compiler, or the pure"
        " wheel)",
    }[choice.reason]
    return DoctorFinding("ok", f"jobs are kept by Python's keepers: {why}")
