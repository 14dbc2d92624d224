"""Commands in strings: `bash -c`, `eval`; and those that are handed to Slurm: sbatch, srun."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from gpulaunch.starter.entry import Read, Untranslatable
from gpulaunch.starter.mask import MASK
from gpulaunch.starter.pieces import Outer, Piece, handed, inner, script_of
from gpulaunch.starter.shell import (
    OF_WRAPPER,
    Script,
    forks,
    lone,
    walk,
    words_of,
    wrappers_of,
)
from gpulaunch.starter.unfold import slurm
from gpulaunch.starter.unfold.calls import Arguments, called

if TYPE_CHECKING:
    from tree_sitter import Node

_SHELLS = frozenset({"bash", "sh", "zsh", "dash", "ksh"})
_FLAGS = re.compile(r"-[a-z]*c")
_GOES = frozenset({"nohup", "env", "setsid", "exec", "command", "time"})
_VALUE = r"(?:\$\(\([^)]*\)\)|\$\{[^}]*\}|[^\s;&|()'\"\\]|\\\$)*"
_TYPED_MASK = re.compile(rf"(?:export\s+)?{MASK}=({_VALUE})\s*(?:;|&&)?\s*")
# fmt: off
_SERVED_BY = frozenset({
    "xargs", "parallel", "env_parallel", "tmux", "screen", "docker", "ssh", "mpirun", "mpiexec",
    "horovodrun", "srun",
})
# fmt: on
_SERVED = re.compile(r"\b(?:parallel|xargs|sbatch|srun|tmux|screen)\b")
_OF_SLURM = re.compile(
    rf"\bSLURM_(?!ARRAY_TASK_ID\b|CPUS_PER_TASK\b|JOB_NAME\b)\w+|\bsrun\b|{MASK}="
)


def of_shell(script: Script, node: Node) -> str | None:
    """`bash -c '...'` without the shell, where its string chooses cards or starts several things.

    None where it may stay. Raises Untranslatable.
    """
    words = words_of(node)
    texts = [script.text(word) for word in words]
    found = (
        at
        for at in range(len(words) - 2)
        if texts[at].rpartition("/")[2] in _SHELLS and _FLAGS.fullmatch(texts[at + 1])
    )
    at = next(found, None)
    if at is None or not _SERVED_BY.isdisjoint(texts[:at]):
        return None
    pieces = _known(script, node, inner(script, words[at + 2]))
    text = script_of(pieces)
    if not (MASK in text or _SERVED.search(text) or forks(Script(text).root)):
        return None
    wrappers = [word for word in texts[:at] if not OF_WRAPPER.fullmatch(word)]
    if any(word not in _GOES for word in wrappers):
        return _hoisted(script, node, words[at + 2])
    arguments = words[at + 3 :]
    zero = script.text(arguments[0]) if arguments else "bash"
    body = called(text, Arguments(script, arguments[1:], zero))
    stops = "-" if "e" in texts[at + 1] else "+"  # the script's own `set -e` ends at its door
    return f"( set {stops}e; {_assigned(script, node, texts[:at])}{body}\n)"


def _assigned(script: Script, node: Node, words: Sequence[str]) -> str:
    """Return what stood before the shell as variables of its environment."""
    before = [script.text(one) for one in node.children if one.type == "variable_assignment"]
    before += [word for word in words if re.match(r"[A-Za-z_]\w*=", word)]
    return f"export {' '.join(before)}; " if before else ""


def _hoisted(script: Script, node: Node, string: Node) -> str:
    """Move a string's mask in front of the command: `timeout 2h bash -c 'MASK=0 x'`."""
    text = script.text(string)
    found = list(_TYPED_MASK.finditer(text))
    if len(found) != 1 or text.count(f"{MASK}=") != 1:
        raise Untranslatable("has several masks in a string, behind another program")
    value = found[0].group(1).replace("\\$", "$")
    cut = text[: found[0].start()] + text[found[0].end() :]
    start = script.slice(node.start_byte, string.start_byte)
    return f"{MASK}={value} {start}{cut}{script.slice(string.end_byte, node.end_byte)}"


def of_eval(script: Script, node: Node) -> str | None:
    """`eval "..."` as what it says. Raises Untranslatable where that is in no string here."""
    words = words_of(node)[1:]
    if not words or "conda" in script.text(node) or "$(" in script.text(node):
        return None
    pieces = _known(script, node, handed(script, words))
    if not any(isinstance(piece, str) and piece.strip() for piece in pieces):
        raise Untranslatable("only the shell can know what this runs")
    return f"( {script_of(pieces)}\n)"


def _known(script: Script, node: Node, pieces: list[Piece]) -> list[Piece]:
    """Return a lone variable as the text that was assigned to it."""
    outers = [piece for piece in pieces if piece != ""]
    if len(outers) != 1 or not isinstance(outers[0], Outer):
        return pieces
    name = lone(outers[0].text)
    found: Node | None = None
    for one in walk(script.root):
        before = one.type == "variable_assignment" and one.start_byte < node.start_byte
        if before and name == script.part(one, "name"):
            found = one.child_by_field_name("value")
    return inner(script, found) if found is not None else pieces


# ── Slurm ───────────────────────────────────────────────────────────────────────────────────────


def of_srun(script: Script, node: Node, tasks: int) -> tuple[str, list[tuple[str, str]]]:
    """`srun --gres=gpu:1 x` as `x` with its cards, and what of it is not taken over."""
    words = words_of(node)
    at = wrappers_of(script.words(node)) + 1
    asked, rest = slurm.asked([_bare(script.text(word)) for word in words[at:]])
    count = asked.options.get("--ntasks", str(tasks))
    if not count.isdigit() or int(count) > 1:
        raise Untranslatable(f"srun starts {count} copies of it; a job is one process tree")
    if not rest or "--pty" in asked.options:
        raise Untranslatable("srun: a job has no terminal")
    before = script.slice(node.start_byte, words[at - 1].start_byte)
    gpus = f"{slurm.mask_of(asked.gpus())} " if asked.gpus() else ""
    command = script.slice(words[len(words) - len(rest)].start_byte, node.end_byte)
    return f"{before}{gpus}{command}", asked.told


def of_sbatch(script: Script, node: Node, read: Read) -> tuple[str, list[tuple[str, str]]]:
    """`sbatch job.sh a` as `bash job.sh a` in the background, with what both ask Slurm for."""
    words = words_of(node)
    first = wrappers_of(script.words(node)) + 1
    options, rest = slurm.asked([_bare(script.text(word)) for word in words[first:]])
    told = [pair for pair in options.told if not pair[0].startswith("--dependency=")]
    wrap = _wrapped(script, words[first:])
    if wrap is None:
        if not rest:
            raise Untranslatable("sbatch reads its script from standard input: write it to a file")
        options = _of_file(rest[0], options, read)
        arguments = [script.text(word) for word in words[len(words) - len(rest) + 1 :]]
        wrap = " ".join(["bash", rest[0], *arguments])
    wrap = " ".join([*_exports(options), wrap])
    lines = _waits(options) + options.lines()
    if tasks := options.tasks():
        body = f"( {lines}{slurm.TASK}=${slurm.TASK} {wrap} ) &"
        return f"for {slurm.TASK} in {' '.join(tasks)}; do {body} done", told
    return f"( {lines}{wrap}\n)", told


def _bare(text: str) -> str:
    return re.sub(r"[\"']", "", text)


def _wrapped(script: Script, words: Sequence[Node]) -> str | None:
    for at, word in enumerate(words):
        if script.text(word) == "--wrap" and at + 1 < len(words):
            return script_of(inner(script, words[at + 1]))
        if script.text(word).startswith("--wrap="):
            return script_of(inner(script, word)).partition("=")[2]
    return None


def _of_file(path: str, options: slurm.BatchOptions, read: Read) -> slurm.BatchOptions:
    """Return the script's own options under those of the command line. Raises Untranslatable."""
    text = None if "$" in path else read(path)
    if text is None:
        raise Untranslatable(f"hands {path} to Slurm, and {path} cannot be read here")
    if found := _OF_SLURM.search(text):
        raise Untranslatable(
            f"{path} says {found.group().rstrip('=')}: translate it by itself, `gpulaunch init"
            f" {path}`"
        )
    return slurm.header(text)[0].under(options.options)


def _exports(options: slurm.BatchOptions) -> list[str]:
    given = options.options.get("--export", "").split(",")
    return [
        f'{name}="{value}"' for name, _, value in (one.partition("=") for one in given) if value
    ]


def _waits(options: slurm.BatchOptions) -> str:
    """`--dependency=afterok:$a:$b` as waiting for those."""
    spelt = options.options.get("--dependency", "")
    if not spelt:
        return ""
    kind, _, jobs = spelt.partition(":")
    names = jobs.split(":")
    if kind not in ("afterok", "afterany") or not all(map(lone, names)):
        raise Untranslatable(f"--dependency={spelt}: say needs: or after: in the job file")
    return f"wait {' '.join(names)}{' || exit' if kind == 'afterok' else ''}; "
