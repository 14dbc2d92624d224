"""The words of the findings: one place for why something is wrong and what to do about it.

Facts: CUDA C++ Programming Guide, "Environment Variables"; PyTorch reads the mask until CUDA is
initialised (pytorch#159641); accelerate exports `--gpu_ids` as the mask of what it launches, and
deepspeed ignores the mask where one of --include, --exclude, --num_gpus is given (DeepSpeed#960).
"""

from __future__ import annotations

import re

from msgspec.structs import replace

from gpulaunch.diagnose.lint.finding import Suspect
from gpulaunch.jobfile.commands import use_container

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
