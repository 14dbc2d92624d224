"""The values of this package, and whether a suspect holds for a job.

Suspect      what stands somewhere, and for which jobs it would be a mistake
Given        what a job gives to what it runs: cards, options
Finding      a suspect that does not suit a job, with its place
ProgramRun   a file that a command runs
FileScan     what is in one file: suspects, imports, commands

`# gpulaunch: ok` or `# gpulaunch: ok RULE` silences what a person has looked at: at the end of the
line, of the last line of what is found, or alone on the line above.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Literal

from msgspec import Struct

from gpulaunch.jobfile.source import pointed

if TYPE_CHECKING:
    from gpulaunch.contracts.documents import ScriptWarning

RULES = {
    "device-index": "asks for a card that the job does not have",
    "own-mask": "sets CUDA_VISIBLE_DEVICES over the job's own",
    "mask-value": "reads CUDA_VISIBLE_DEVICES as if it were a number or a card of the job",
    "device-order": "counts the cards in another order than the launcher",
    "all-gpus": "gives a container every card of the machine",
    "fixed-port": "always takes the same port",
    "daemon": "has a daemon start what then is no descendant of the job",
    "left-running": "ends while a command that it started still runs",
    "hidden-status": "succeeds although a command in it has failed",
    "not-there": "runs a program or a script that is not there",
    "single-brace": "has one pair of braces around a name that is filled in between two",
    "index-name": "names jobs of files by their number alone",
    "not-expanded": "has what only a shell would expand, in a text that no shell reads",
}
"""Name and meaning; `# gpulaunch: ok NAME` on a line silences one there."""

OF_ENDINGS = frozenset({"left-running", "hidden-status"})
"""Rules that hold only where the end of the script is the end of the job."""
ANY = 1 << 30
_MARK = re.compile(r"#\s*gpulaunch:\s*ok\b[ \t]*(.*)")
_RULE = re.compile(r"[a-z]+-[a-z]+|\bdaemon\b")


def option_name(word: str) -> str:
    """`gpu_id` of `--gpu-id`."""
    return word.lstrip("-").replace("-", "_")


class SetOptions(Struct, frozen=True):
    """The options that a command line sets, by name (`gpu_id` for `--gpu-id`).

    `more`: it may set others that nobody knows (`"$@"`).
    """

    names: frozenset[str] = frozenset()
    more: bool = False


NO_OPTIONS = SetOptions()


class Given(Struct, frozen=True):
    """`uuid`: the mask names cards by UUID; `strict`: no other card can be reached at all."""

    gpus: int = 1
    uuid: bool = False
    strict: bool = False
    options: SetOptions = NO_OPTIONS


class Suspect(Struct, frozen=True):
    """It holds for jobs of `least` to `most` cards; `{here}` in `why` tells what such a job has.

    `unless`: not where one of these options is set on the command line; `only`: only where one is.
    `uuids`: only where the mask names cards by UUID. `strict`: why it is a mistake under strict
    isolation, where that is another reason; empty: there it is none.
    """

    rule: str
    why: str
    mend: str
    least: int = 0
    most: int = ANY
    unless: frozenset[str] = frozenset()
    only: frozenset[str] = frozenset()
    uuids: bool = False
    strict: str | None = None

    def holds(self, given: Given) -> bool:
        if given.strict and self.strict == "":
            return False
        if not self.least <= given.gpus <= self.most or (self.uuids and not given.uuid):
            return False
        named = given.options.names
        if self.unless and (given.options.more or self.unless & named):
            return False
        return not self.only or bool(self.only & named)

    def words(self, given: Given) -> tuple[str, str]:
        """Return what is wrong and how to mend it, for a person whose job this is."""
        why = (self.strict if given.strict else None) or self.why
        return why.replace("{here}", _here(given.gpus)), self.mend


class Placed(Struct, frozen=True):
    """A suspect in a text: line and column counted from 0; `last` is the line where it ends."""

    suspect: Suspect
    line: int
    column: int
    last: int


class ProgramRun(Struct, frozen=True):
    """`what` is a path, or the name of a module.

    `options` are those that its arguments set. `cwd` is relative to the job's, or starts with
    `<script>`: the directory of the script in which the command was found. `last`: the job ends
    when the file does, with its status, and no option has the file end at the first failure.
    """

    kind: Literal["file", "python", "shell", "module"]
    what: str
    options: SetOptions = NO_OPTIONS
    cwd: str = "."
    number: int = 0
    last: bool = False


class Module(Struct, frozen=True):
    """`module` is dotted, `level` the dots before it; `names` what is imported from it."""

    module: str
    level: int = 0
    names: tuple[str, ...] = ()


class FileScan(Struct, frozen=True):
    """What a file holds; nothing if it cannot be read. `lines` are those that `placed` counts."""

    placed: tuple[Placed, ...] = ()
    imports: tuple[Module, ...] = ()
    runs: tuple[ProgramRun, ...] = ()
    lines: Sequence[str] = ()


class Finding(Struct, frozen=True, order=True):
    """`path` as people would type it; line and column counted from 1; `text` is that line."""

    path: str
    line: int
    column: int
    rule: str
    why: str
    mend: str
    text: str = ""

    @property
    def message(self) -> str:
        return f"{self.why}; {self.mend} [{self.rule}]"

    def __str__(self) -> str:
        """`path:12:5: why; mend [rule]`, then the line and a caret."""
        return pointed(self.path, self.line - 1, self.column - 1, self.message, self.text)

    def plain(self) -> ScriptWarning:
        """Return the finding for machines."""
        return {
            "path": self.path,
            "line": self.line,
            "column": self.column,
            "rule": self.rule,
            "why": self.why,
            "mend": self.mend,
        }


def judged(
    path: str, placed: Iterable[Placed], lines: Sequence[str], given: Iterable[Given]
) -> Iterator[Finding]:
    """Yield the findings that hold for one job at least, once, in the words of the first."""
    known = list(given)
    for one in placed:
        for each in known:
            if one.suspect.holds(each):
                why, mend = one.suspect.words(each)
                text = lines[one.line] if one.line < len(lines) else ""
                rule = one.suspect.rule
                yield Finding(path, one.line + 1, one.column + 1, rule, why, mend, text)
                break


def _here(gpus: int) -> str:
    if gpus == 0:
        return "this job has no card (gpus: 0)"
    if gpus == 1:
        return "this job has one card, which is cuda:0 (gpus: 1)"
    return f"this job has {gpus} cards, cuda:0 to cuda:{gpus - 1} (gpus: {gpus})"


# ── `# gpulaunch: ok` ───────────────────────────────────────────────────────────────────────────


def silenced(line: str, rule: str) -> bool:
    """Tell whether the line's own comment speaks of this rule.

    A name that is no rule silences nothing: it was meant for one, and misspelt.
    """
    match = _MARK.search(line) if "gpulaunch" in line else None
    if match is None:
        return False
    named = _RULE.findall(match.group(1))
    return not named or rule in [name for name in named if name in RULES]


def heard(placed: Iterable[Placed], lines: Sequence[str]) -> list[Placed]:
    """Return the findings that no comment silences."""
    return [one for one in placed if not any(_speak(one, lines))]


def _speak(one: Placed, lines: Sequence[str]) -> Iterable[bool]:
    rule = one.suspect.rule
    for number in {one.line, one.last}:
        if number < len(lines):
            yield silenced(lines[number], rule)
    above = lines[one.line - 1] if 0 < one.line <= len(lines) else ""
    yield above.lstrip().startswith("#") and silenced(above, rule)
