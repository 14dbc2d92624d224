"""What came of a sweep's jobs: what each returned or raised, or how it ended without."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from hydra.core.utils import JobReturn, JobStatus
from hydra.errors import CompactHydraException

from gpulaunch.base.wording import job_reason, run_reason
from gpulaunch.core.ledger import JobRecord
from gpulaunch.executor import RemoteTraceback, transfer
from hydra_plugins.hydra_gpulaunch_launcher import _job

if TYPE_CHECKING:
    from gpulaunch.run.options import RunEnd


class JobFailedError(CompactHydraException):
    """A job came to an end without having raised or returned anything. Hydra prints its text."""


def job_return(end: RunEnd, name: str, number: int, overrides: Sequence[str]) -> JobReturn:
    """Return what the job of that name came to, as Hydra has it; `number` is Hydra's."""
    record = end.ledger.jobs.get(name)
    returned, why = _read(record, end)
    succeeded = record is not None and record.state == "succeeded"
    if returned is not None and succeeded == (returned.status == JobStatus.COMPLETED):
        return returned
    task = name.rpartition("-")[0]
    returned = JobReturn(overrides=overrides, status=JobStatus.FAILED, task_name=task)
    returned.return_value = JobFailedError(f"job #{number} {_told(record, end, why)}")
    return returned


def _read(record: JobRecord | None, end: RunEnd) -> tuple[JobReturn | None, str]:
    """Return what the job's last attempt returned or raised; None, and why it cannot be had."""
    if record is None or not record.attempts:
        return None, ""
    path = end.run.out(record.attempts[-1].id) / _job.RETURNED
    try:
        returned, trace = transfer.unpacked(path.read_bytes())
    except FileNotFoundError:
        return None, ""
    except Exception as error:
        return None, f"; what it returned cannot be read here: {error!r}"
    # From 1.4 on Hydra keeps the traceback itself.
    if trace and getattr(returned, "_remote_traceback", None) is None:
        returned._return_value.__cause__ = RemoteTraceback(trace)
    return returned, ""


def _told(record: JobRecord | None, end: RunEnd, why: str) -> str:
    """Return what became of a job without a return: `failed: ran longer than ...; log: ...`."""
    if record is None or record.state == "waiting":
        reason = run_reason(end.ledger.reason)
        return f"was not run to its end{reason and ': '}{reason}"
    reason = job_reason(record.reason)
    told = f"{record.state}: {reason}" if reason not in ("", record.state) else record.state
    log = f"; log: {end.run.log(record.attempts[-1].id)}" if record.attempts else ""
    return f"{told}{why}{log}"
