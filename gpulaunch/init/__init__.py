"""What `gpulaunch init` writes: a starter job file, or what replaces a script's choice of cards.

    script ──grammar──▶ job file       every line is understood for certain
           ──rewrite──▶ script         each masked command behind `gpulaunch exec --`
           ─────────▶ Unfit         and why

Reads no file of the user's, writes none, runs nothing: text in, text out.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from importlib.resources import files

from msgspec import Struct

from gpulaunch.init.grammar import GrammarReader
from gpulaunch.init.rewrite import ScriptFollower
from gpulaunch.init.script import Script, Unfit, advice, refuse_other_text
from gpulaunch.init.values import NATURAL

__all__ = ["Converted", "Unfit", "advice", "convert", "starter"]

_ODD = {
    r"(?<!\w)(?:LOCAL_)?(?:RANK|WORLD_SIZE)=": "its commands are the parts of one program (RANK,"
    " WORLD_SIZE) and need their cards at once: write one job with gpus: N and torchrun",
    r"CUDA_DEVICE_ORDER=(?![\"']?PCI_BUS_ID)": "gpulaunch numbers cards by their PCI bus",
    r"\r$": "its lines end as Windows ends them, which bash does not read",
}


class Converted(Struct, frozen=True):
    """What replaces a script: a job file, or a script if `is_script`.

    `own_directory`: it works in the directory in which it stands. `no_job_file`: why it became no
    job file, and the number of the line. `notes`: what the reader is to know.
    """

    text: str
    is_script: bool
    own_directory: bool
    no_job_file: tuple[int, str] = (0, "")
    notes: tuple[str, ...] = ()


def starter() -> str:
    """Return a commented job file that teaches the format, runs anywhere and needs no card."""
    return files(__name__).joinpath("starter.yaml").read_text("utf-8")


def convert(source: str, name: str, environ: Collection[str] = (), kind: str = "") -> Converted:
    """Return what replaces the script. Raises Unfit.

    `environ`: names of variables that programs have anyway. `kind`: `job file` or `script`, if
    only that will do.
    """
    try:
        refuse_other_text(name, source)
        script = Script(source)
        script.refuse_unread()
        _refuse_parts_of_one(source)
        if kind == "script":
            return _rewritten(script, source, Unfit(""))
        reader = GrammarReader(script, environ)
        try:
            return Converted(reader.read(name), False, reader.own_directory)
        except Unfit as unfit:
            why, line = unfit.why, unfit.line
            if advice(source):
                raise Unfit(f"a batch system gives it its cards, and {why}", line) from None
            made = _rewritten(script, source, unfit)
            if kind == "job file":
                why += "; -o FILE.sh writes the script again, with gpulaunch exec"
                raise Unfit(why, line) from None
            return made
    except RecursionError:
        raise Unfit("its commands stand too deep within each other to be read") from None


def _rewritten(script: Script, source: str, no_job_file: Unfit) -> Converted:
    follower = ScriptFollower(script)
    follower.follow()
    text = follower.edits.result()
    if not any(follower.decided.values()):
        why = "no command in it chooses a card by CUDA_VISIBLE_DEVICES="
        if batch := re.search(r"\b(sbatch|srun|qsub|bsub)\b", source):
            why += f"; {batch.group()} hands its work to a batch system"
        raise Unfit(why)
    Script(text).refuse_unread()
    named = re.sub(r"dirname \"?\$\{?(0|BASH_SOURCE(\[0\])?)\}?", "", source)
    if re.search(r"\$\{?0\b|BASH_SOURCE", named):
        raise Unfit("it reads its own name ($0), and the new script has another one")
    reason = no_job_file.line, no_job_file.why
    return Converted(text, True, named != source, reason, tuple(_notes(follower, source)))


def _notes(follower: ScriptFollower, source: str) -> Iterator[str]:
    if follower.shared:
        lines = ", ".join(map(str, sorted(follower.shared)))
        yield (
            f"line {lines}: the script runs several commands on one card at once; now each has a"
            " card of its own"
        )
    cards = sorted({int(card) for card in follower.cards if card.isdigit()})
    if cards != list(range(len(cards))) and NATURAL not in follower.cards:
        chosen = ",".join(map(str, cards))
        yield (
            f"gpulaunch exec takes any free card; for one of the script's cards, write"
            f" gpulaunch exec --gpus {chosen}, -g 1"
        )
    if re.search(r"\bactivate\b|\bmodule\b|\bml ", source):
        yield "gpulaunch has to be found in the environment that the script activates"


def _refuse_parts_of_one(source: str) -> None:
    """Raise Unfit for parts of one program, another order of cards, and lines of Windows."""
    for number, line in enumerate(source.split("\n"), 1):
        for pattern, why in _ODD.items():
            if re.search(pattern, line) and not line.lstrip().startswith("#"):
                raise Unfit(why, number)
