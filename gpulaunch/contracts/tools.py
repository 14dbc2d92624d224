"""The types of what the tools of `gpulaunch mcp` answer; see the package for what holds for all.

Where a command prints the same, its document is taken, with how much there is where an answer shows
a part of it: a program that reads is to get no more than it asked for.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Final, TypedDict

from gpulaunch.contracts.documents import (
    AddedDocument,
    CardsDocument,
    PlanDocument,
    ResultsDocument,
    RunCard,
    RunHeader,
    RunJob,
    Seconds,
    Version,
)
from gpulaunch.core.model import AttemptState, JobState, RunState


class WithNotes(TypedDict):
    """What an answer has besides."""

    notes: Annotated[list[str], "what a person should know of it, in words"]


class PlanPage(PlanDocument, WithNotes):
    """What the tool `check` answers: the plan, and its first jobs and warnings."""

    total_jobs: Annotated[int, "how many jobs the plan has; `jobs` are the first of them"]
    total_warnings: Annotated[int, "how many places the lint found; `warnings` are the first"]


class StartedDocument(WithNotes):
    """What the tool `run` answers, once the run is recorded and goes on by itself."""

    schema: Version
    run: Annotated[str, "its directory, by which other tools find it"]
    job_file: Annotated[str, "the job file, which `retry` reads again"]


class AddedPage(AddedDocument, WithNotes):
    """What the tool `add` answers, once the jobs are recorded."""

    total: Annotated[int, "how many jobs were added; `names` are the first of them"]


class JobLine(TypedDict):
    """A job of the run, in short; the tool `why` tells all of it."""

    name: Annotated[str, "the job's name"]
    state: Annotated[JobState, "where it is in its life"]
    reason: Annotated[str, "why it waits, is in doubt, failed or was skipped, in words"]
    failure: Annotated[str | None, "the failure class of its last attempt"]
    exit_code: Annotated[int | None, "of its last attempt"]
    attempts: Annotated[int, "how often it was started"]
    gpus: Annotated[list[int | None], "the indices of the cards of its last attempt"]
    seconds: Annotated[Seconds | None, "how long its last attempt lasted"]
    log: Annotated[str | None, "the path of its last attempt's log; null: it was never started"]


class StatusPage(WithNotes):
    """What the tool `status` answers: the run, and a part of its jobs."""

    schema: Version
    run: Annotated[RunHeader, "the run, with the counts of all its jobs"]
    gpus: Annotated[list[RunCard], "its cards"]
    jobs: Annotated[list[JobLine], "failed ones first, then those that run, wait, are over"]
    total: Annotated[int, "how many jobs were meant; `jobs` are the first of them"]


class JobDocument(WithNotes):
    """What the tool `why` answers: a job, and how its log ends."""

    schema: Version
    run: Annotated[str, "the run's directory"]
    state: Annotated[RunState, "the run's"]
    command: Annotated[str, "what it runs; empty: not known any more"]
    job: Annotated[RunJob, "the job, with its newest attempts"]
    total_attempts: Annotated[int, "how often it was started; its `attempts` are the last of them"]
    log_end: Annotated[list[str], "the last lines of its newest log that say something"]


class LogEnd(TypedDict):
    """The end of a job's log, as a terminal would show it."""

    job: Annotated[str, "the job's name"]
    attempt: Annotated[int, "the number of the attempt that wrote it"]
    state: Annotated[AttemptState, "what became of that"]
    path: Annotated[str, "the file"]
    text: Annotated[str, "its last lines"]
    cut: Annotated[bool, "whether the file has more before them"]


class LogsDocument(WithNotes):
    """What the tool `logs` answers."""

    schema: Version
    run: Annotated[str, "the run's directory"]
    logs: Annotated[list[LogEnd], "the ends of the logs"]
    total: Annotated[int, "how many logs were meant; `logs` are the first of them"]


class RetriedDocument(WithNotes):
    """What the tool `retry` answers; `notes` say which jobs go again."""

    schema: Version
    run: Annotated[str, "the run's directory"]
    was_alive: Annotated[bool, "whether the jobs joined a live run; otherwise it was gone on with"]


class CancelledDocument(WithNotes):
    """What the tool `cancel` answers, once the run ends these jobs."""

    schema: Version
    run: Annotated[str, "the run's directory"]
    names: Annotated[list[str], "the jobs; empty where the whole run was meant"]
    total: Annotated[int | None, "how many jobs; null: all of the run; `names` are the first"]


class CardsPage(CardsDocument, WithNotes):
    """What the tool `gpus` answers."""


class ResultsPage(ResultsDocument, WithNotes):
    """What the tool `results` answers: the table, and the first of its rows."""

    total: Annotated[int, "how many rows the table has; `rows` are the first"]


TOOL_DOCUMENTS: Final[Mapping[str, type]] = {
    "check": PlanPage,
    "run": StartedDocument,
    "add": AddedPage,
    "status": StatusPage,
    "why": JobDocument,
    "logs": LogsDocument,
    "results": ResultsPage,
    "retry": RetriedDocument,
    "cancel": CancelledDocument,
    "gpus": CardsPage,
}
"""By tool, what it answers."""
