"""What a job's command does that gpulaunch cannot keep its promises for: said, never refused.

Two things: programs that only ask a daemon to start something, which is then no descendant of the
job and does not end with it; and commands that set the cards' mask themselves.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from gpulaunch.spec import tree
from gpulaunch.spec.commands import Command, Word, command_of, commands_in, is_plain
from gpulaunch.spec.mistakes import Mistakes
from gpulaunch.spec.source import Source
from gpulaunch.spec.tree import Node
from gpulaunch.spec.values import SHELLS, dialect

SHOWN = 50
MASK = "CUDA_VISIBLE_DEVICES"
_WORTH = re.compile(
    rf"{MASK}|\b(docker|nerdctl|sbatch|srun|salloc|qsub|bsub|systemd-run|at[ \t]+[-0-9nmt])"
)
_HARMLESS = re.compile(r"-1|NoDevFiles|(\{\{[ \t]*(gpu_index|gpu_uuid)[ \t]*\}\},?)*")
_SETTERS = frozenset({"export", "declare", "typeset", "readonly", "local"})
_STARTS = frozenset({"run", "exec", "start", "restart", "up"})
_GROUPS = frozenset({"compose", "container"})
_SLURM = (
    "{} has Slurm start it, not this job: it does not end with the job, and runs on cards that"
    " Slurm chooses; run the program itself"
)
_QUEUE = (
    "{} has another batch system start it, not this job: it does not end with the job, and runs"
    " on cards of its own; run the program itself"
)
_CONTAINER = (
    "{} has a daemon start it, not this job: it does not end with the job and does not see the"
    " job's cards alone; use apptainer or podman, or give it --gpus device=$GPULAUNCH_GPU_UUID"
    " and stop it yourself"
)

Shells: TypeAlias = Mapping[int, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class Finding:
    """`word` is what to point at, for one of two `kind`s."""

    kind: str
    word: Word
    message: str


def warnings_of(source: Source, root: Callable[[], Node], shells: Shells) -> list[str]:
    """Lines like those of mistakes, at most one of each kind for an entry of `jobs:`.

    `shells` are those of the entries that have jobs. The tree is asked for only where a word of
    the text is worth it.
    """
    if not _WORTH.search(source.text):
        return []
    mistakes = Mistakes(source, root())
    told: list[str] = []
    for at, message in _all(mistakes, shells):
        told.append(source.point(*tree.place(at), message))
        if len(told) == SHOWN:
            return [*told, f"{source.name}: and maybe more warnings"]
    return told


def _all(mistakes: Mistakes, shells: Shells) -> Iterator[tuple[int, str]]:
    jobs = mistakes.root.value["jobs"].value if isinstance(mistakes.root.value, dict) else None
    for group, entry in enumerate(jobs if isinstance(jobs, list) else ()):
        run = entry.value.get("run") if isinstance(entry.value, dict) else None
        if run is None or group not in shells:
            continue
        seen: set[str] = set()
        for node, finding, script in _of_run(run, shells[group]):
            if finding.kind not in seen:
                seen.add(finding.kind)
                yield (
                    _place(mistakes, node, finding, script),
                    f"jobs[{group}].run: {finding.message}",
                )


def _place(mistakes: Mistakes, node: Node, finding: Finding, script: str) -> int:
    word = script[finding.word.start : finding.word.end].partition("=")[0]
    pattern = re.compile(rf"(?<!\w){re.escape(word)}(?!\w)")
    number = sum(1 for _ in pattern.finditer(script, 0, finding.word.start))
    return mistakes.inside(node.at, pattern, number)


def _of_run(run: Node, shell: tuple[str, ...]) -> Iterator[tuple[Node, Finding, str]]:
    """(the text's node, finding, the text) of a `run:` in one of its forms."""
    if isinstance(run.value, str):
        kind = dialect(shell)
        if kind is not None and _WORTH.search(run.value):
            for finding in findings(run.value, kind):
                yield run, finding, run.value
    elif isinstance(run.value, list):
        texts = [str(node.value) for node in run.value]
        words = [Word(text, 0, len(text)) for text in texts]
        for finding in _of_command(command_of(words), lambda word: word.text):
            which = next(i for i, word in enumerate(words) if word is finding.word)
            yield run.value[which], finding, texts[which]
        which, kind = _script_in(texts)
        if which:
            for finding in findings(texts[which], kind):
                yield run.value[which], finding, texts[which]


def _script_in(words: list[str]) -> tuple[int, str]:
    """Where the script of `[bash, -c, SCRIPT]` stands, and its dialect; 0 where there is none."""
    name = words[0].rsplit("/", 1)[-1] if words else ""
    flags = [i for i, word in enumerate(words) if re.fullmatch(r"-[a-z]*c", word)]
    if name in SHELLS and flags and flags[0] + 1 < len(words):
        return flags[0] + 1, name
    return 0, ""


def findings(script: str, kind: str) -> Iterator[Finding]:
    """In the order of the script's commands."""
    for command in commands_in(script, kind):
        yield from _of_command(command, lambda word: script[word.start : word.end])


def _of_command(command: Command, typed: Callable[[Word], str]) -> Iterator[Finding]:
    """`typed` is a word as it stands in the text, quotes and all."""
    program = command.program
    said = _daemon(program, [word.text for word in command.arguments])
    if command.name and said:
        yield Finding("daemon", command.name, said)
    for word in (*command.assignments, *(command.arguments if program in _SETTERS else ())):
        if _sets_mask(typed(word)):
            yield Finding(
                "mask",
                word,
                f"{MASK} is set here, over the job's own: it may name another job's card;"
                " leave it out, the job's first card is cuda:0 (gpus: says how many)",
            )
    if program == "unset":
        for word in command.arguments:
            if is_plain(word) and word.text == MASK:
                yield Finding(
                    "mask", word, f"{MASK} is removed here: the job sees other jobs' cards"
                )


def _sets_mask(typed: str) -> bool:
    name, equals, value = typed.partition("=")
    if name != MASK or not equals:
        return False
    bare = value.strip("'\"")
    return not (_HARMLESS.fullmatch(bare) or MASK in bare or "GPULAUNCH_" in bare)


def _daemon(program: str, arguments: list[str]) -> str:
    """Why what this starts is not the job's; empty for everything else."""
    if program in ("docker", "nerdctl", "docker-compose"):
        verb = _verb(arguments)
        return _CONTAINER.format(f"{program} {verb}") if verb else ""
    if program in ("sbatch", "srun", "salloc"):
        return _SLURM.format(program)
    if program in ("qsub", "bsub"):
        return _QUEUE.format(program)
    if program == "systemd-run" and "--scope" not in arguments:
        return "systemd-run has systemd start it, not this job: it does not end with the job"
    if program == "at" and arguments:
        return "at has a daemon start it later: it does not end with the job, nor have its cards"
    return ""


def _verb(arguments: list[str]) -> str:
    """The subcommand that starts something; empty for others, like `docker ps`.

    The value of an option may stand before it: `docker -H tcp://x run`.
    """
    words = [word for word in arguments if not word.startswith("-")]
    depth = 1 + bool(arguments and arguments[0].startswith("-"))
    depth += 2 * (not _GROUPS.isdisjoint(words[:depth]))
    return next((word for word in words[:depth] if word in _STARTS), "")
