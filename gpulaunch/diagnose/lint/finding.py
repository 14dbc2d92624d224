"""The values of this package, whether a suspect holds for a job, and the words of findings.

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
from msgspec.structs import replace

from gpulaunch.jobfile.commands import use_container
from gpulaunch.jobfile.source import pointed

if TYPE_CHECKING:
    from gpulaunch.base.documents import ScriptWarning


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


# ── Words of the findings ─────────────────────────────────────────────────────────────────────────

# One place for why something is wrong and what to do about it. Facts: CUDA C++ Programming Guide,
# "Environment Variables"; PyTorch reads the mask until CUDA is initialised (pytorch#159641);
# accelerate exports `--gpu_ids` as the mask of what it launches, and deepspeed ignores the mask
# where one of --include, --exclude, --num_gpus is given (DeepSpeed#960).
MASK = "CUDA_VISIBLE_DEVICES"
ORDER = "CUDA_DEVICE_ORDER"
PORT = "MASTER_PORT"

_DEVICE = re.compile(
    r"(/?(?:job:\w+/(?:\w+:\d+/)*)?(?:device:)?(?:cuda|gpu|GPU):)(\d{1,3}(?:,\d{1,3})*)"
)
_LEAVE_IT_OUT = "leave it out: the job's first card is cuda:0 (gpus: says how many)"

DAEMONS = {
    "slurm": "has Slurm start it, not this job: it does not end with the job, and runs on cards"
    " that Slurm chooses",
    "queue": "has another batch system start it, not this job: it does not end with the job, and"
    " runs on cards of its own",
    "terminal": "has its own server run it, not this job: the job ends at once while the work goes"
    " on outside",
    "later": "has a daemon start it later: it does not end with the job, nor have its cards",
    "systemd": "has systemd start it, not this job: it does not end with the job",
    "container": "has a daemon start it, not this job: it does not end with the job and does not"
    " see the job's cards alone",
}
"""What each kind of daemon does, behind the name of the command that asks it."""


def highest(text: str) -> tuple[str, int] | None:
    """`cuda:1` is ("cuda:", 1): what stands before the number of a card, and the largest one."""
    match = _DEVICE.fullmatch(text)
    if match is None:
        return None
    return match.group(1), max(int(number) for number in match.group(2).split(","))


def device(text: str, unless: frozenset[str] = frozenset()) -> Suspect | None:
    """For a text that is a device, like `cuda:1` or `/GPU:1`; None for what no job could miss."""
    found = highest(text)
    if found is None or found[1] == 0:
        return None
    return index(found[1], text, f"{found[0]}0", unless)


def typed_device(text: str) -> Suspect | None:
    """Return what is suspect in a device on a command line, where the first card counts as well."""
    if re.fullmatch(r"cuda(?::0)?", text):
        mend = "write cpu, or gpus: 1 in the job file"
        return Suspect("device-index", f"{text} is not there: {{here}}", mend, most=0)
    return device(text)


def index(number: int, shown: str, first: str, unless: frozenset[str] = frozenset()) -> Suspect:
    """For card `number`, counted from 0, spelt `shown`; card 0 would be spelt `first`."""
    missing = "is not there" if highest(shown) else "asks for a card that is not there"
    return Suspect(
        "device-index",
        f"{shown} {missing}: {{here}}",
        f"write {first}, or gpus: {number + 1} in the job file",
        most=number,
        unless=unless,
    )


def mask(shown: str = MASK, only: frozenset[str] = frozenset()) -> Suspect:
    """For a mask that is set; `only`: as for Suspect."""
    return Suspect(
        "own-mask",
        f"{shown} is set here, over the job's own: it may name another job's card",
        _LEAVE_IT_OUT,
        only=only,
        strict=f"{shown} is set here, over the job's own: isolation: strict keeps it to the job's"
        " cards, counted from 0, and any other number leaves the job without one",
    )


def no_mask() -> Suspect:
    return Suspect(
        "own-mask",
        f"{MASK} is removed here: the job sees other jobs' cards",
        "leave it set",
        strict="",
    )


def order(value: str) -> Suspect | None:
    if value == "PCI_BUS_ID":
        return None
    return Suspect(
        "device-order",
        f"{ORDER} {value!r} is not the order in which the mask was written (PCI_BUS_ID): the job"
        " may use another job's card",
        "leave it out, the launcher sets it",
        strict="",
    )


def port(shown: str, mend: str = f"leave it out: {PORT} is set for each job") -> Suspect:
    return Suspect(
        "fixed-port",
        f"{shown} is the same for every job: the second one here finds the address in use",
        mend,
    )


def address(shown: str) -> Suspect:
    """For `tcp://localhost:29500`."""
    return port(shown, f'write init_method="env://": {PORT} is set for each job')


def endpoint(shown: str) -> Suspect:
    """For torchrun's rendezvous."""
    return port(shown, f"write localhost:${PORT}, which is set for each job, or --standalone")


def single_brace(name: str) -> Suspect:
    """For `{path}` in a command of a job that has `{{path}}`."""
    return Suspect(
        "single-brace",
        f"{{{name}}} is text, which the program gets as it stands",
        f"write {{{{{name}}}}} for what the job has of that name",
    )


def index_name() -> Suspect:
    """For a job of a file whose name has only the file's number."""
    return Suspect(
        "index-name",
        "{{index}} names a job by the place of its file in the list: a file that comes before it"
        " gives every later job another file, also those that have succeeded",
        "write {{stem}} or {{name}} in the name",
    )


def mask_as_number() -> tuple[Suspect, Suspect]:
    why = f"{MASK} is read as one number, and is "
    mend = "count with torch.cuda.device_count(); the job's first card is 0"
    return (
        Suspect("mask-value", why + "a list or empty: {here}", mend, least=2),
        Suspect("mask-value", why + "a UUID: this job's cards are named so", mend, uuids=True),
    )


def mask_as_numbers() -> Suspect:
    """For a mask of which each part is read as a number."""
    return replace(mask_as_number()[1], why=f"{MASK} is read as numbers, and has UUIDs here")


def mask_as_index() -> Suspect:
    return Suspect(
        "mask-value",
        f"{MASK} says which card of the machine it is, not which of the job's: {{here}}",
        "write cuda:0",
        least=1,
    )


def all_cards(shown: str, image: str) -> Suspect:
    return Suspect(
        "all-gpus",
        f"{shown} gives the container every card of the machine, those of other jobs too",
        f"{use_container(image)}, or name the job's own card: $GPULAUNCH_GPU_UUID",
    )


def machine_cards(shown: str, image: str) -> Suspect:
    return Suspect(
        "own-mask",
        f"{shown} counts the machine's cards, not the job's: it may be another job's card",
        f"{use_container(image)}, or name the job's own card: $GPULAUNCH_GPU_UUID",
    )


def by_daemon(suspect: Suspect, mend: str) -> Suspect:
    """Return the suspect in the words for a container that a daemon starts, as docker does."""
    return replace(
        suspect,
        why=f"{suspect.why}; and a daemon starts it, so that it does not end with the job",
        mend=mend,
    )


def hands_on(variable: str) -> bool:
    """Tell whether apptainer, or singularity, makes the mask in its container of a variable."""
    return variable.endswith(f"ENV_{MASK}")


def mask_left_behind(shown: str, image: str) -> Suspect:
    """For a container with cards and without the caller's variables."""
    return Suspect(
        "all-gpus",
        f"with {shown} the container gets no {MASK}: it sees every card of the machine, those of"
        " other jobs too",
        f"{use_container(image)}, or hand it on: --env {MASK}=${MASK}",
        least=1,
        strict="",
    )


def launcher_mask(shown: str) -> Suspect:
    return Suspect(
        "own-mask",
        f"{shown} makes the launched program a mask of its own, counted over the machine's cards:"
        " it may name another job's card",
        "leave it out: the job's own cards are used",
        strict=f"{shown} makes the launched program a mask of its own: isolation: strict keeps it"
        " to the job's cards, counted from 0, and any other number leaves it without one",
    )
