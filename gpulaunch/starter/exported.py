"""What `gpulaunch export` wrote for Slurm, back as the jobs that it was made of.

    fold.tasks:  GPULAUNCH_JOB=fold-a item_path=...
    submit.sh:   id_x=$(submit --dependency=... x.sh)

An entry for each job, under its own name: which pattern the names came from is in no export.
"""

from __future__ import annotations

import itertools
import posixpath
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from msgspec.structs import replace

from gpulaunch.jobfile.convert import MASKS
from gpulaunch.jobfile.engines import NAMED
from gpulaunch.starter.emit import escaped
from gpulaunch.starter.entry import Read, StarterEntry, Untranslatable
from gpulaunch.starter.pieces import Piece, inner
from gpulaunch.starter.shell import Script, above, walk, words_of
from gpulaunch.starter.unfold.slurm import BatchOptions

if TYPE_CHECKING:
    from tree_sitter import Node

_MADE = "by `gpulaunch export`"
_SUBMITTED = re.compile(
    r'(\w+)=\$\(submit (?:--dependency="([^"]*)" )?(?:--array=(\S+) )?(\S+)\.sh\)'
)
_OUTPUT = re.compile(
    r'\[ "\$status" != 0 \] \|\| (?:\[ -s (.*?) \]|compgen -G (.*?) >/dev/null) \|\|'
)
_CODES = re.compile(r'case "\$status" in ([\d|]+)\)')
_GPUS = re.compile(r"^#SBATCH --gpus-per-node=(?:(.+):)?(\d+)$", re.MULTILINE)
_MEM = re.compile(r"^#SBATCH --mem=(\d+)M$", re.MULTILINE)
_OF_FIELDS = frozenset(
    {
        *("job-name", "array", "nodes", "ntasks", "gpus-per-node", "cpus-per-task", "time"),
        *("open-mode", "output"),
    }
)
"""Options of sbatch that an export makes of a job's fields, and for itself."""
_INPUTS = "cuts its inputs out of other files (fasta:, batch:): keep the job file it came from"
_SHELL = ["bash", "-eo", "pipefail", "-c"]
_OF_THE_INTERPRETER = frozenset({"PATH", "CONDA_DEFAULT_ENV", "VIRTUAL_ENV", "CONDA_PREFIX"})
_AT_START = {
    "GPULAUNCH_OUT": "out",
    "GPULAUNCH_KEEP": "keep",
    "GPULAUNCH_RUN_DIR": "run_dir",
    "GPULAUNCH_LOG": "log",
    "GPULAUNCH_PORT": "port",
    "GPULAUNCH_ATTEMPT": "attempt",
    "GPULAUNCH_GPU_INDEX": "gpu_index",
    "GPULAUNCH_JOB": "job",
}
_VARIABLE = re.compile(r"\$\{(\w+)\}")
_CODED = re.compile(r"((?:\\x[0-9a-fA-F]{2})+)|\\(.)")
_LETTERS = {"n": "\n", "t": "\t", "r": "\r"}


def _filled(known: str) -> str:
    """Return a text of the script for a field in which placeholders work."""

    def variable(match: re.Match[str]) -> str:
        name = match.group(1)
        return f"{{{{{_AT_START[name]}}}}}" if name in _AT_START else match.group()

    return _VARIABLE.sub(variable, escaped(known))


def _plain(pieces: Sequence[Piece], values: Mapping[str, str]) -> str:
    """Return what a word comes to where no shell reads it. `values` are those of variables."""
    out = ""
    for piece in pieces:
        if isinstance(piece, str):
            out += _filled(piece)
        elif (match := _VARIABLE.fullmatch(piece.text)) is None:
            raise Untranslatable(f"holds {piece.text}, which no export has")
        elif match.group(1) in _AT_START:
            out += _filled(piece.text)
        else:
            out += escaped(values.get(match.group(1), ""))
    return out


def is_export(script: str) -> bool:
    """Tell whether a script says of itself that it is an export."""
    return any(line.startswith("#") and _MADE in line for line in script.split("\n")[:3])


def entries_of(script: str, read: Read) -> list[StarterEntry]:
    """Return the jobs of an export, in its order. Raises Untranslatable."""
    found = list(_submitted(script, read))
    if not found:
        raise Untranslatable("an export without a job")
    return found


# ── What was submitted ──────────────────────────────────────────────────────────────────────────


def _extra(text: str, outputs: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """Fields that are told by more than a word: as YAML."""
    found: list[tuple[str, str]] = []
    tries = re.search(r"^for GPULAUNCH_ATTEMPT in (.*); do$", text, re.MULTILINE)
    delay = re.search(r"^  \[ .* \] \|\| sleep ([\d.]+)$", text, re.MULTILINE)
    if tries and (times := int(tries.group(1).rstrip(")").split()[-1]) - 1):
        told = f"{{times: {times}, delay: {delay.group(1)}s}}" if delay else str(times)
        found.append(("retries", told))
    if codes := _CODES.search(text):
        found.append(("success_codes", f"[{codes.group(1).replace('|', ', ')}]"))
    if outputs:
        found.append(("outputs", _listed(outputs)))
    if settings := _settings(text):
        told = ", ".join(f"{key}: {words}" for key, words in settings.items())
        found.append(("engine", f"{{slurm: {{{told}}}}}"))
    return tuple(found)


def _listed(texts: Sequence[str]) -> str:
    return f"[{', '.join(map(_quoted, texts))}]"


def _quoted(text: str) -> str:
    return '"' + re.sub(r'([\\"])', r"\\\1", text) + '"'


def _settings(text: str) -> dict[str, str]:
    """Return what Slurm is told beside a job's own fields, by key, as YAML."""
    lines = itertools.takewhile(lambda line: line.startswith("#"), text.split("\n"))
    words = [shlex.split(line)[1] for line in lines if line.startswith("#SBATCH ")]
    found, extra = dict[str, str](), list[str]()
    if (gpus := _GPUS.search(text)) and gpus[1]:
        found["gres"] = _quoted(gpus[1])
    for word in words:
        word = word.replace(r"\\", "\\")  # which sbatch takes for an escape in any quotes
        name, _, value = word.removeprefix("--").partition("=")
        if name in NAMED:
            found[name] = _quoted(value)
        elif name not in _OF_FIELDS and not _MEM.fullmatch(f"#SBATCH {word}"):
            extra.append(word)
    return {**found, "extra": _listed(extra)} if extra else found


def _submitted(script: str, read: Read) -> Iterator[StarterEntry]:
    made: dict[str, Mapping[int, str]] = {}
    """By the variable of a submission: the names of its jobs, by task."""
    for line in script.split("\n"):
        match = _SUBMITTED.fullmatch(line)
        if match is None:
            continue
        variable, waits, array, unit = match.groups()
        text = read(f"{unit}.sh")
        if text is None:
            raise Untranslatable(f"submits {unit}.sh, which cannot be read here")
        entries = dict(enumerate(_of_unit(unit, text, read)))
        tasks = BatchOptions({"--array": array}).tasks() if array else entries
        chosen = sorted(map(int, tasks))
        made[variable] = {task: entries[task].name for task in chosen}
        for task in chosen:
            needs, after = _waited(waits or "", made, task)
            yield replace(entries[task], needs=needs, after=after)


def _cd(line: str) -> str:
    return shlex.split(line.removesuffix(" || exit"))[2]


def _waited(
    waits: str, made: Mapping[str, Mapping[int, str]], task: int
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    needs: list[str] = []
    after: list[str] = []
    for wait in waits.split(",") if waits else []:
        kind, *jobs = wait.split(":")
        for job in jobs:
            match = re.fullmatch(r"\$\{?(\w+)\}(?:_(\d+))?|\$(\w+)", job)
            if match is None:
                continue
            names = made[match.group(1) or match.group(3)]
            chosen = [int(match.group(2))] if match.group(2) else list(names)
            chosen = [task] if kind == "aftercorr" else chosen
            (after if kind == "afterany" else needs).extend(names[one] for one in chosen)
    return tuple(dict.fromkeys(needs)), tuple(dict.fromkeys(after))


def _of_unit(unit: str, text: str, read: Read) -> Iterator[StarterEntry]:
    table = read(f"{unit}.tasks") if f"{unit}.tasks" in text else None
    single = re.search(r"^export (GPULAUNCH_JOB=.*)$", text, re.MULTILINE)
    rows = table.splitlines() if table else [single.group(1)] if single else []
    lines = text.split("\n")
    at = next(at for at, line in enumerate(lines) if line.strip() == "status=$?")
    gpus = _GPUS.search(text)
    cpus = re.search(r"^#SBATCH --cpus-per-task=(\d+)$", text, re.MULTILINE)
    memory = [("memory", f"{megabytes}MiB") for megabytes in _MEM.findall(text)]
    for row in rows:
        values = _row(row)
        if "item_input" in values:
            raise Untranslatable(_INPUTS)
        cwd = values.get("item_cwd") or [_cd(line) for line in lines if line[:6] == "cd -- "][-1]
        entry = _entry(values["GPULAUNCH_JOB"], lines[at - 1].strip(), values, cwd)
        own = {name: value for name, value in values.items() if name.startswith("item_")}
        used = {name: escaped(own[name]) for name in own if f"${{{name}}}" in lines[at - 1]}
        extra = (*memory, *_extra(text, _outputs_in(lines, values)))
        yield replace(
            entry,
            gpus=int(gpus.group(2)) if gpus else 0,
            cpus=cpus.group(1) if cpus else None,
            env={**used, **entry.env},
            extra=entry.extra + extra,
        )


def _row(row: str) -> dict[str, str]:
    script = Script(f"export {row}")
    return {
        script.part(node, "name"): _verbatim(script, node.child_by_field_name("value"))
        for node in walk(script.root)
        if node.type == "variable_assignment"
    }


def _verbatim(script: Script, value: Node | None) -> str:
    pieces = _read(script, value) if value is not None else []
    return "".join(piece for piece in pieces if isinstance(piece, str))


def _outputs_in(lines: Sequence[str], values: Mapping[str, str]) -> list[str]:
    found = []
    for line in lines:
        if match := _OUTPUT.match(line.strip()):
            script = Script(f"x {match.group(1) or match.group(2)}")
            word = words_of(script.root.children[0])[1]
            found.append(_plain(_read(script, word), values))
    return found


# ── A job's line ────────────────────────────────────────────────────────────────────────────────


def _entry(name: str, line: str, values: Mapping[str, str], base: str | None) -> StarterEntry:
    """Return the job whose command is the last one on a line, and stands in no `$(...)`."""
    script = Script(line)
    commands = [
        node
        for node in walk(script.root)
        if node.type == "command" and "command_substitution" not in (o.type for o in above(node))
    ]
    if not commands:
        raise Untranslatable(f"has no command for {name}")
    command = commands[-1]
    cwd = _cd(script.text(commands[0])) if script.text(commands[0])[:6] == "cd -- " else base
    assigned = _assigned(script, command)
    texts = {
        key: _plain(_read(script, value), values)
        for key, value in assigned.items()
        if key not in MASKS and key not in _OF_THE_INTERPRETER
    }
    venv = _verbatim(script, assigned.get("VIRTUAL_ENV"))
    conda = _verbatim(script, assigned.get("CONDA_PREFIX"))
    words, extra = words_of(command), []
    if [script.text(word) for word in words[:2]] == ["timeout", "-k"]:
        grace, timeout = script.text(words[2]), script.text(words[3])
        extra = [("timeout", f"{timeout}s"), *([("grace", f"{grace}s")] if grace != "10" else [])]
        words = words[4:]
    if [script.text(word) for word in words[:4]] == _SHELL and len(words) == 5:
        pieces = _read(script, words[4])
        run = "".join(piece if isinstance(piece, str) else piece.text for piece in pieces)
    else:
        run = script.slice(words[0].start_byte, words[-1].end_byte)
        if "PATH" in assigned and not (venv or conda):
            run = f"PATH={script.text(assigned['PATH'])} {run}"
    return StarterEntry(
        name=escaped(name),
        run=_filled(run.rstrip("\n")),
        cwd=None if cwd is None else escaped(posixpath.normpath(cwd)),
        env=texts,
        venv=venv or None,
        conda=conda or None,
        extra=tuple(extra),
    )


def _assigned(script: Script, command: Node) -> dict[str, Node]:
    nodes = [node for node in command.children if node.type == "variable_assignment"]
    values = [(script.part(node, "name"), node.child_by_field_name("value")) for node in nodes]
    return {name: value for name, value in values if value is not None}


def _read(script: Script, node: Node) -> list[Piece]:
    """Return a word's pieces, `$'...'` too, which the exporter writes for control characters."""
    if node.type == "ansi_c_string":
        return [_CODED.sub(_decoded, script.text(node)[2:-1])]
    if node.type == "concatenation":
        return [piece for child in node.children for piece in _read(script, child)]
    return inner(script, node)


def _decoded(match: re.Match[str]) -> str:
    codes, letter = match.groups()
    if codes is None:
        return _LETTERS.get(letter, letter)
    return bytes.fromhex(codes.replace("\\x", "")).decode(errors="surrogateescape")
