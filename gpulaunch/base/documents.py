"""The types of the JSON that commands print and that the tools of `gpulaunch mcp` answer.

`schemas` says what holds for all of them. Where a command prints the same, a tool takes its
document, with how much there is where an answer shows a part of it: a program that reads is to get
no more than it asked for.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Final, Literal, TypedDict

from gpulaunch.core.model import (
    AttemptState,
    ContainerEngine,
    GpuState,
    JobState,
    PinState,
    RunState,
)

Version = Annotated[Literal[1], "the version of this document"]
Bytes = int
Seconds = float
PerCent = float
Joules = float
Time = str

# ── status ──────────────────────────────────────────────────────────────────────────────────────


class SecondsLeft(TypedDict):
    """The time that a live run will probably still take lies between two bounds."""

    low: Annotated[int, "at least, in seconds"]
    high: Annotated[int, "at most, in seconds"]


class RunImage(TypedDict):
    """An image of the containers that the run's jobs run in."""

    image: Annotated[str, "as the job file names it; a file by its absolute path"]
    engine: Annotated[ContainerEngine, "what runs its containers"]
    id: Annotated[str, "what was run: a digest, or a file's path"]
    digest: Annotated[str, "of its content; empty where the engine tells none"]


class CodeChange(TypedDict):
    """A script of the run's jobs, or what it imports, that changed while some were to come."""

    path: Annotated[str, "below the job file's directory, else absolute"]
    at: Annotated[Time, "when that was, or was seen; of several changes the last"]
    started: Annotated[int, "how many of its jobs had been started by then"]
    jobs: Annotated[int, "of how many"]


class RunHeader(TypedDict):
    """The run as a whole."""

    id: Annotated[str, "by which commands find the run too"]
    name: Annotated[str, "the run's name"]
    dir: Annotated[str, "its directory"]
    state: Annotated[RunState, "interrupted: its launcher is gone without having ended it"]
    suspended: Annotated[bool, "whether its launcher is stopped or frozen, and so does nothing"]
    reason: Annotated[str, "why it ended so, in words"]
    started: Annotated[Time | None, "when it was begun"]
    ended: Annotated[Time | None, "when it was over"]
    seconds: Annotated[Seconds | None, "how long it has lasted since it was begun or resumed last"]
    simulated: Annotated[bool, "whether its cards are pretend ones"]
    counts: Annotated[dict[JobState, int], "how many jobs there are in each state"]
    vanished: Annotated[int, "how many jobs are no longer in the job file, and are not run"]
    images: Annotated[
        list[RunImage], "the images of its jobs' containers, as far as they are known"
    ]
    code_changes: Annotated[list[CodeChange], "scripts that changed while it lived"]
    energy: Annotated[Joules | None, "of all its attempts, as far as it was measured"]
    seconds_left: Annotated[SecondsLeft | None, "of a live run"]
    next_command: Annotated[str | None, "the command that goes on with it"]


class OnNode(TypedDict, total=False):
    """What a card of a cluster has besides."""

    node: Annotated[str, "the machine of a cluster that the card is in; left out for this machine"]


class RunCard(OnNode):
    """A card of the run."""

    index: Annotated[int, "the driver's number of the card"]
    uuid: Annotated[str, "which it keeps"]
    name: Annotated[str, "its model"]
    memory: Annotated[Bytes, "its size, in bytes; 0: not known"]
    unified: Annotated[bool, "whether its memory is the host's"]
    simulated: Annotated[bool, "whether it is a pretend one"]
    state: Annotated[GpuState, "where it is in a card's life"]
    reason: Annotated[str, "why, in words"]
    drained: Annotated[bool, "whether a person gave it back to the others"]
    jobs: Annotated[list[str], "the names of the jobs on it"]


class AttemptCard(TypedDict):
    """A card that an attempt has or had."""

    index: Annotated[int | None, "the driver's number of the card"]
    uuid: Annotated[str, "which it keeps"]


class QueuedAttempt(TypedDict, total=False):
    """What an attempt on a cluster has besides."""

    queue_id: Annotated[str, "the cluster's name for it; left out on this machine"]
    node: Annotated[str, "the machine where it started; left out on this machine"]


class Use(TypedDict):
    """What an attempt used."""

    peak_gpu_memory: Annotated[Bytes | None, "of its own processes on its cards, in bytes"]
    mean_gpu_memory: Annotated[Bytes | None, "the same over its time, in bytes"]
    peak_card_memory: Annotated[Bytes | None, "used of its cards, by whomever, in bytes"]
    peak_gpu_utilization: Annotated[PerCent | None, "of its cards, in per cent"]
    mean_gpu_utilization: Annotated[PerCent | None, "of its cards, in per cent"]
    gpu_seconds: Annotated[Seconds | None, "seconds times cards"]
    cpu_seconds: Annotated[Seconds | None, "CPU time of its processes"]
    peak_resident: Annotated[Bytes | None, "the machine's memory that its processes had, in bytes"]
    energy: Annotated[Joules | None, "of its cards while it ran, or its share of that, in joules"]
    touched_gpu: Annotated[bool | None, "whether a process of it was ever seen on its cards"]
    pin: Annotated[PinState | None, "whether its processes were on its own cards"]
    pin_reason: Annotated[str, "why, in words"]


class AttemptWarning(TypedDict):
    """The signal that an attempt was sent before its end."""

    at: Annotated[Time, "when"]
    signal: Annotated[str, "its name, without SIG"]
    processes: Annotated[int, "how many of its processes took it; 0: none, and none was sent it"]
    why: Annotated[Literal["timeout", "stop"], "its timeout was near, or it was to stop"]


class Attempt(QueuedAttempt, Use):
    """One start of a job."""

    number: Annotated[int, "counted from 1"]
    state: Annotated[AttemptState, "what became of it"]
    gpus: Annotated[list[AttemptCard], "its cards"]
    pid: Annotated[int | None, "its process"]
    started: Annotated[Time | None, "when it began"]
    ended: Annotated[Time | None, "when it was over"]
    seconds: Annotated[Seconds | None, "how long it lasted"]
    exit_code: Annotated[int | None, "with which its main process exited"]
    signal: Annotated[int | None, "that killed its main process"]
    failure: Annotated[str | None, "its failure class"]
    evidence: Annotated[str, "what shows the class"]
    advice: Annotated[str, "what to do"]
    left_behind: Annotated[int, "processes that outlived its main one and were killed"]
    reports: Annotated[list[str], "what the driver said of its cards meanwhile"]
    warned: Annotated[AttemptWarning | None, "the warning that it was sent before its end"]
    idle: Annotated[Seconds | None, "for how long it held its cards unused when that was said"]
    worker: Annotated[str | None, "the attempt in whose process it ran, if that is another one"]
    step: Annotated[int | None, "of its ladder, counted from 1; null: it has none"]
    ladder: Annotated[dict[str, str], "the values of that step"]
    promised_gpu_memory: Annotated[Bytes | None, "of its card's memory, beside others, in bytes"]
    log: Annotated[str, "the path of its log"]
    out: Annotated[str | None, "the path of its {{out}}, where there is one"]


class AskedJob(TypedDict, total=False):
    """What a job that was asked for has besides."""

    definition: Annotated[
        PlanJob,
        "what it asks for, as `check --json` has it; left out where all jobs are told, and where it"
        " is not known any more",
    ]


class RunJob(AskedJob):
    """A job of the run."""

    name: Annotated[str, "the job's name"]
    state: Annotated[JobState, "where it is in its life"]
    reason: Annotated[str, "why it waits, is in doubt, failed or was skipped, in words"]
    params: Annotated[dict[str, str], "the values that foreach and matrix gave it"]
    not_before: Annotated[Time | None, "it does not start before this"]
    exit_code: Annotated[int | None, "of its last attempt"]
    signal: Annotated[int | None, "of its last attempt"]
    failure: Annotated[str | None, "the failure class of its last attempt"]
    evidence: Annotated[str, "what shows the class"]
    note: Annotated[str, "the last note on its last attempt, such as an error in a success's log"]
    keep: Annotated[str | None, "the path of its {{keep}}, where there is one"]
    energy: Annotated[Joules | None, "of all its attempts, as far as it was measured"]
    attempts: Annotated[list[Attempt], "the first one first"]


class StatusDocument(TypedDict):
    """What `gpulaunch status --json` prints."""

    schema: Version
    run: Annotated[RunHeader, "the run"]
    gpus: Annotated[list[RunCard], "its cards"]
    jobs: Annotated[list[RunJob], "its jobs, or those asked for"]


# ── check, and --dry-run of run and map ─────────────────────────────────────────────────────────


class PlanCard(TypedDict):
    """A card that the run could have."""

    index: Annotated[int, "the driver's number of the card"]
    uuid: Annotated[str, "which it keeps"]
    name: Annotated[str, "its model"]
    memory: Annotated[Bytes, "its size, in bytes; 0: not known"]
    unified: Annotated[bool, "whether its memory is the host's"]
    compute: Annotated[str, "its compute capability, 8.0; empty: not known"]
    numa: Annotated[int | None, "the NUMA node near it"]
    cpus: Annotated[str, "the CPUs near it, 0-31,64-95; empty: not known"]
    linked: Annotated[list[int], "the indices of the cards that NVLink joins it with"]


class PlanWorker(TypedDict):
    """The process that takes one job after the other."""

    key: Annotated[str, "jobs of one key may follow each other in one process"]
    function: Annotated[str | None, "what it calls for each job; null: it is a program"]
    load: Annotated[str | None, "what it calls first"]
    items: Annotated[int | None, "after how many jobs it is replaced"]
    memory: Annotated[Bytes | None, "above how many bytes it is replaced"]
    load_timeout: Annotated[Seconds | None, "seconds until its first job may begin"]


class PlanMount(TypedDict):
    """A file or directory that appears in a job's container."""

    source: Annotated[str, "where it is"]
    target: Annotated[str, "where it appears"]
    read_only: Annotated[bool, "whether it cannot be written inside"]


class PlanContainer(TypedDict):
    """The container that a job runs in."""

    image: Annotated[str, "a name, or a file's absolute path"]
    engine: Annotated[ContainerEngine | None, "null: one that fits and is there"]
    mounts: Annotated[list[PlanMount], "beside the job's own directory and the run's"]
    args: Annotated[list[str], "options of the engine's own"]
    user: Annotated[str, "image, UID or UID:GID; empty: the caller"]
    pull: Annotated[Literal["missing", "never", "always"], "when the engine pulls it"]


class PlanWarning(TypedDict):
    """The signal that a job is sent before its timeout."""

    signal: Annotated[str, "its name, without SIG"]
    before: Annotated[Seconds, "how many seconds before"]


class PlanJob(TypedDict):
    """A job of the plan; its environment is left out."""

    name: Annotated[str, "the job's name"]
    group: Annotated[int, "its entry in the job file, counted from 0"]
    params: Annotated[dict[str, str], "the values that foreach and matrix gave it"]
    run: Annotated[str, "its command; what is known only at its start stands as {{out}}"]
    worker: Annotated[PlanWorker | None, "null: it has a process of its own"]
    container: Annotated[PlanContainer | None, "null: it runs on the machine itself"]
    cwd: Annotated[str, "its working directory"]
    gpus: Annotated[int, "cards at once"]
    gpu_memory: Annotated[Bytes | None, "bytes that have to be free on each card"]
    memory: Annotated[Bytes | None, "bytes of the host's memory that it reserves"]
    card: Annotated[str, "the glob that the name of its cards fits; empty: any"]
    compute: Annotated[str, "the least compute capability of its cards; empty: any"]
    learned_gpu_memory: Annotated[Bytes | None, "bytes that such jobs took in earlier runs at most"]
    per_gpu: Annotated[int | None, "how many such jobs share a card; null: as memory allows"]
    share: Annotated[bool, "whether it shares its card with any that say so"]
    mps: Annotated[bool, "whether they share it through CUDA's Multi-Process Service"]
    cpus: Annotated[int | None, "CPUs that it asks for"]
    affinity: Annotated[
        Literal["card", "none"] | None,
        "whether it runs near its card; null: where there is more than one NUMA node",
    ]
    uses: Annotated[list[str], "the tokens that it takes"]
    needs: Annotated[list[str], "the jobs that have to succeed first"]
    after: Annotated[list[str], "the jobs that have to end first"]
    priority: Annotated[int, "higher goes first"]
    cost: Annotated[float, "larger goes first, within a priority"]
    expected_seconds: Annotated[Seconds | None, "how long it took in an earlier run"]
    not_before: Annotated[Time | None, "it does not start before this"]
    timeout: Annotated[Seconds | None, "seconds that it may take"]
    idle_timeout: Annotated[Seconds | None, "seconds that it may be silent"]
    gpu_idle: Annotated[Seconds | None, "seconds that it may hold memory and compute nothing"]
    grace: Annotated[Seconds, "seconds between SIGTERM and SIGKILL"]
    warn: Annotated[PlanWarning | None, "the signal before its timeout"]
    preemptible: Annotated[bool, "whether it gives its cards up to launchers that have none"]
    retries: Annotated[int, "how often it may go again"]
    ladder: Annotated[dict[str, list[str]], "values that change with retries, step by step"]
    outputs: Annotated[list[str], "the files that it has to leave"]
    service: Annotated[bool, "whether it runs for other jobs, as long as these need it"]
    engine: Annotated[dict[str, dict[str, list[str]]], "by engine and key, what the engine is told"]


class ScriptWarning(TypedDict):
    """A place in a job's command or script that does not suit its cards."""

    path: Annotated[str, "the file"]
    line: Annotated[int, "counted from 1"]
    column: Annotated[int, "counted from 1"]
    rule: Annotated[str, "the rule of the lint"]
    why: Annotated[str, "what is wrong, in words"]
    mend: Annotated[str, "what to do, in words"]


class PlanDocument(TypedDict):
    """What `check --json` prints, and `--dry-run --json` of `run` and `map`."""

    schema: Version
    name: Annotated[str, "the run's name"]
    engine: Annotated[str, "what starts the jobs: local or slurm"]
    cards: Annotated[str, "on what the jobs run, in words"]
    simulated: Annotated[bool, "whether the cards are pretend ones"]
    gpus: Annotated[list[PlanCard], "the cards, where they are known"]
    limits: Annotated[dict[str, int], "how many of each token may be taken at once"]
    jobs: Annotated[list[PlanJob], "the jobs, in the order of the file"]
    notify: Annotated[list[str], "who is told, and when, in words"]
    warnings: Annotated[list[ScriptWarning], "what the lint found"]


# ── gpus and ps ─────────────────────────────────────────────────────────────────────────────────


class CardUser(TypedDict):
    """A process on a card."""

    pid: Annotated[int, "the process"]
    user: Annotated[str | None, "whose it is"]
    command: Annotated[str | None, "its name"]
    memory: Annotated[Bytes | None, "what it has on the card, in bytes"]


class CardHold(TypedDict):
    """A person's hold of a card, by `gpulaunch hold`."""

    user: Annotated[str, "whose it is"]
    pid: Annotated[int, "the process that has it; 0 where it is another container's"]
    name: Annotated[str, "what it is for, as it was named; empty for no name"]
    until: Annotated[Time | None, "when it ends, if that is known"]


class MachineCard(TypedDict):
    """A card of this machine, as it is now."""

    index: Annotated[int, "as --gpus takes it; -1: it has none"]
    uuid: Annotated[str, "which it keeps"]
    name: Annotated[str, "its model"]
    memory: Annotated[Bytes | None, "its size, in bytes; of unified memory the host's"]
    used: Annotated[Bytes | None, "what is in use of it, by these processes if it is unified"]
    free: Annotated[Bytes | None, "what is free of it, in bytes"]
    unified: Annotated[bool, "whether its memory is the host's"]
    users: Annotated[list[CardUser], "who is on it"]
    lease: Annotated[str | None, "who holds its lease, in words; null: nobody"]
    hold: Annotated[CardHold | None, "the hold that the lease is, if it is one"]
    health: Annotated[str, "ok, or what is wrong, in words"]
    simulated: Annotated[bool, "whether it is a pretend one"]
    compute: Annotated[str, "its compute capability, 8.0; empty: not known"]
    numa: Annotated[int | None, "the NUMA node near it"]
    cpus: Annotated[str, "the CPUs near it, 0-31,64-95; empty: not known"]
    linked: Annotated[list[int], "the indices of the cards that NVLink joins it with"]
    state: Annotated[str | None, "what keeps a launcher off though nobody holds it, in words"]
    option: Annotated[str | None, "the option with which a launcher takes it all the same"]
    outside: Annotated[str, "the mask, or the configuration, that leaves it out; empty: it is in"]
    last: Annotated[str, "what in the configuration has it used last; empty: nothing"]


class CardsDocument(TypedDict):
    """What `gpus --json` prints."""

    schema: Version
    gpus: Annotated[list[MachineCard], "the machine's cards"]


class LiveRun(TypedDict):
    """A run that is alive; of another user's only `id`, `pid` and `user` are known."""

    id: Annotated[str, "the run's id"]
    name: Annotated[str | None, "the run's name"]
    dir: Annotated[str | None, "its directory"]
    state: Annotated[RunState, "another than running: it is over and writes its report"]
    started: Annotated[Time | None, "when it was begun"]
    pid: Annotated[int, "its launcher"]
    suspended: Annotated[bool, "whether its launcher is stopped or frozen, and so does nothing"]
    user: Annotated[str, "whose it is"]
    simulated: Annotated[bool, "whether its cards are pretend ones"]
    counts: Annotated[dict[JobState, int] | None, "how many jobs there are in each state"]


class RunsDocument(TypedDict):
    """What `ps --json` prints."""

    schema: Version
    runs: Annotated[list[LiveRun], "the runs alive on this machine"]


# ── doctor ──────────────────────────────────────────────────────────────────────────────────────

DoctorLevel = Literal["ok", "note", "warning", "error"]


class MachineFinding(TypedDict):
    """What was found out about this machine."""

    level: Annotated[DoctorLevel, "error: no job can run; warning: some may not; note: no harm"]
    what: Annotated[str, "what was found, in words"]
    advice: Annotated[str, "what to do; may be empty"]


class DoctorDocument(TypedDict):
    """What `doctor --json` prints."""

    schema: Version
    findings: Annotated[list[MachineFinding], "those about the driver first"]


# ── config ──────────────────────────────────────────────────────────────────────────────────────


class ConfigSetting(TypedDict):
    """A setting that is in force."""

    key: Annotated[str, "its key, dotted: gpus.never, slurm.partition"]
    value: Annotated[str, "its value, in words"]
    source: Annotated[str, "FILE:LINE, a variable of the environment, or default"]


class FileMistake(TypedDict):
    """A mistake of a job file, or of a configuration file."""

    file: Annotated[str, "the file"]
    line: Annotated[int | None, "from 1; null: it has no place"]
    column: Annotated[int | None, "from 1; null: it has no place"]
    field: Annotated[str, "the key, as jobs[0].gpus; empty: the file itself"]
    message: Annotated[str, "what is wrong, and what was expected"]


class ConfigDocument(TypedDict):
    """What `config --json` prints."""

    schema: Version
    files: Annotated[list[str], "the configuration files that are there"]
    settings: Annotated[list[ConfigSetting], "every setting, those of several values repeatedly"]
    mistakes: Annotated[list[FileMistake], "what is wrong in the files"]


# ── add and reload ──────────────────────────────────────────────────────────────────────────────


class AddedDocument(TypedDict):
    """What `add --json` prints."""

    schema: Version
    run: Annotated[str, "the directory of the run that has the jobs now"]
    names: Annotated[list[str], "the names of the jobs that were added"]


class ReloadChange(TypedDict):
    """What a reload changes, by names of jobs."""

    new: Annotated[list[str], "they join"]
    changed: Annotated[list[str], "they wait, and are otherwise from now on"]
    withdrawn: Annotated[list[str], "they waited, and are taken out"]
    running: Annotated[list[str], "they are otherwise from their next attempt on"]
    over: Annotated[list[str], "they are defined otherwise, and stay as they are"]
    gone: Annotated[list[str], "they run or are over, and are no longer in the file"]


class ReloadDocument(TypedDict):
    """What `reload --json` prints."""

    schema: Version
    run: Annotated[str, "the run's directory"]
    change: Annotated[ReloadChange, "what changes, with --dry-run: would change"]
    notes: Annotated[list[str], "what of the job file the run does not take up, in words"]


# ── a failure ───────────────────────────────────────────────────────────────────────────────────


class FailureDocument(TypedDict):
    """What a command prints with `--json` where it failed, on one line."""

    schema: Version
    error: Annotated[str, "why, in words, and what to do"]
    status: Annotated[int, "its exit status"]
    mistakes: Annotated[list[FileMistake], "of a job file, or of the configuration"]


# ── results ─────────────────────────────────────────────────────────────────────────────────────


class TabledRun(TypedDict):
    """A run whose jobs are in the table."""

    run: Annotated[str, "what the rows call it: its directory's name, or the path where two agree"]
    id: Annotated[str, "by which commands find the run too"]
    name: Annotated[str, "the run's name"]
    dir: Annotated[str, "its directory"]
    state: Annotated[RunState, "interrupted: its launcher is gone without having ended it"]
    simulated: Annotated[bool, "whether its cards are pretend ones"]


class TabledColumn(TypedDict):
    """A column of the table; its values are of one type, or null."""

    name: Annotated[str, "its name, by which each row has its value"]
    source: Annotated[str, "job: what gpulaunch knows; params: foreach and matrix; else the file"]
    type: Annotated[
        Literal["boolean", "integer", "number", "text"],
        "text where values are of several types, each as CSV has it",
    ]


class ResultsDocument(TypedDict):
    """What `gpulaunch results --json` prints."""

    schema: Version
    runs: Annotated[list[TabledRun], "the runs"]
    columns: Annotated[list[TabledColumn], "the columns, in their order"]
    rows: Annotated[
        list[dict[str, str | int | float | bool | None]],
        "a job each, by column; NaN and infinity, which JSON has not, are null",
    ]


# ── clean ───────────────────────────────────────────────────────────────────────────────────────


class CleanedDirectory(TypedDict):
    """A directory that is to be removed, or was."""

    path: Annotated[str, "where it is, or was"]
    job: Annotated[str | None, "whose {{out}} it is; null: a whole run, or a leftover"]
    attempt: Annotated[int | None, "of which attempt; null likewise"]
    bytes: Annotated[Bytes, "what it takes of the disk"]
    freed: Annotated[Bytes, "how much of that is free now"]
    left: Annotated[str, "why it, or some of it, is still there, in words; empty: it is not"]


class CleanedRun(TypedDict):
    """A run that was looked at."""

    id: Annotated[str, "the run's id; empty where it was left without a look at its journal"]
    name: Annotated[str, "its name; empty likewise"]
    dir: Annotated[str, "its directory"]
    state: Annotated[RunState | None, "its state; null likewise"]
    left: Annotated[str, "why nothing of it goes, in words; empty: something may"]
    removes: Annotated[list[CleanedDirectory], "what of it is to go"]


class CleanDocument(TypedDict):
    """What `clean --json` prints."""

    schema: Version
    dry_run: Annotated[bool, "nothing was removed: freed is 0 and left empty throughout"]
    whole_runs: Annotated[bool, "whether runs go, and not what their attempts left"]
    runs: Annotated[list[CleanedRun], "the runs, newest first"]
    leftovers: Annotated[list[CleanedDirectory], "of an earlier clean that was cut short"]
    bytes: Annotated[Bytes, "what all that may go takes"]
    freed: Annotated[Bytes, "how much of it is free now"]


DOCUMENTS: Final[Mapping[str, type]] = {
    "status": StatusDocument,
    "check": PlanDocument,
    "gpus": CardsDocument,
    "ps": RunsDocument,
    "doctor": DoctorDocument,
    "config": ConfigDocument,
    "results": ResultsDocument,
    "clean": CleanDocument,
    "add": AddedDocument,
    "reload": ReloadDocument,
    "failure": FailureDocument,
}
"""By command, what it prints with `--json`; of any command that failed, `failure`."""


# ── Tools of `gpulaunch mcp` ──────────────────────────────────────────────────────────────────────


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
