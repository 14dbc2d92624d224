"""Words that people bring along from other tools, and what is meant by them here.

Read only for a word that is no command: nothing here may stand in the way of one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import get_close_matches

_STARTS = "gpulaunch run JOBS starts a list, gpulaunch exec -- CMD one command"
_STOPS = "gpulaunch cancel JOB stops jobs, gpulaunch cancel --all the run; in its terminal, Ctrl-C"
_LISTS = "gpulaunch status lists a run's jobs, gpulaunch ps the live runs"
_AGAIN = (
    "gpulaunch retry runs again what failed, gpulaunch resume all that has not succeeded,"
    " gpulaunch run --new everything"
)
_PAUSES = (
    "gpulaunch drain starts no more jobs and lets the running ones finish (--now interrupts them,"
    " --off goes on)"
)
_UNPAUSES = "gpulaunch drain --off uses drained cards again, gpulaunch resume goes on with a run"
_REMOVES = (
    "a run is its directory under gpulaunch-runs, gone with rm -r once it has ended; a job of a"
    " live run goes with gpulaunch cancel JOB"
)
_ADDS = "add jobs to the job file, and gpulaunch resume runs what is new in it"
_CARDS = "gpulaunch gpus shows the cards, who uses them and who leases them"
_READS = "gpulaunch logs shows a job's output, and follows it with -f"
_WATCHES = "gpulaunch top shows a run on the whole screen, gpulaunch logs -f follows its output"
_CHECKS = "gpulaunch check JOBS validates a job file and prints its plan"
_ITEMS = "gpulaunch map CMD ::: ITEM ... runs one job an item"

_MEANT = {
    _STARTS: "start submit launch srun go up new spawn qsub batch sub train predict python"
    " bash reserve lease lock",
    _STOPS: "kill stop abort terminate interrupt scancel qdel quit end down killall del",
    _LISTS: "list ls queue squeue qstat jobs runs show info history stat tasks",
    _AGAIN: "rerun restart requeue redo again repeat continue",
    _PAUSES: "pause suspend hold freeze",
    _UNPAUSES: "unpause release unhold thaw undrain",
    _REMOVES: "rm remove delete prune clean clear purge flush gc forget",
    _ADDS: "add append enqueue push put",
    _CARDS: "sinfo nvidia-smi smi cards devices nodes gpu workers free",
    _READS: "log tail cat output stdout stderr less print",
    _WATCHES: "watch attach follow monitor dashboard htop nvtop ui view",
    _CHECKS: "validate lint plan dry-run dryrun verify test",
    _ITEMS: "parallel xargs foreach each array sweep",
    "gpulaunch run --engine slurm JOBS hands the list to Slurm": "sbatch slurm",
    "gpulaunch init SCRIPT makes a job file of a shell script": "import convert translate create",
    "gpulaunch wait returns when a run has ended, with its status": "join block sync",
    "gpulaunch -h lists the commands, gpulaunch COMMAND -h explains one": "help man usage",
    "gpulaunch --version": "version",
    "there is none: gpulaunch run works without a daemon, and --detach leaves the terminal": (
        "daemon server serve worker service"
    ),
}
NEAR = 0.72
"""How alike (0 to 1) a spelling must be to be named: a wrong guess costs more than none."""
HABITS: Mapping[str, str] = {word: text for text, words in _MEANT.items() for word in words.split()}


def instead_of(word: str, commands: Sequence[str]) -> str:
    """Return the end of a line about an unknown command: our name for it, or a near spelling."""
    if ours := HABITS.get(word.lower()):
        return f": {ours}"
    # In a short word, swapped letters lower the likeness much: rnu is run.
    turned = [command for command in commands if sorted(command) == sorted(word.lower())]
    near = turned or get_close_matches(word, commands, 1, NEAR)
    return f"; did you mean {near[0]!r}?" if near else "; `gpulaunch -h` lists them"
