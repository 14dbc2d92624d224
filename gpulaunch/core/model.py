"""The nouns: Job, AttemptId, Gpu, Outcome, Failure, Selection. Plain frozen values.

Units: memory in bytes, durations in seconds, unless a name says otherwise.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Literal, TypeAlias, TypeVar

from msgspec import Meta, Struct, field

from gpulaunch.core.causes import Advice, EndCause
from gpulaunch.core.template import Text
from gpulaunch.core.values import MOST_ATTEMPTS, Seconds, Tagged, Value

T = TypeVar("T")

JobState: TypeAlias = Literal["waiting", "running", "succeeded", "failed", "cancelled", "skipped"]
PinState: TypeAlias = Literal["verified", "unverified", "misplaced"]
"""Whether an attempt's processes are on its own cards and no other: proved, not to be told here,
disproved."""
AttemptState: TypeAlias = Literal[
    "launching", "running", "succeeded", "failed", "cancelled", "interrupted", "lost"
]
RunState: TypeAlias = Literal["running", "succeeded", "failed", "stopped", "interrupted"]
GpuState: TypeAlias = Literal["free", "elsewhere", "occupied", "leased", "draining", "aside"]

BAD_STATES: frozenset[JobState] = frozenset({"failed", "cancelled", "skipped"})
"""End states of a job that keep the jobs that need it from running."""
SETTLED_STATES: frozenset[JobState] = BAD_STATES | {"succeeded"}


class Instant(Value, frozen=True, order=True):
    """A moment: `mono` orders and measures within one boot, `utc` (seconds since 1970) is shown."""

    mono: Seconds
    utc: Seconds


class Gpu(Value, frozen=True):
    """One card, or one MIG instance, as the machine's driver names it.

    `node` is the machine of a cluster that the card is in, empty for this machine; fields that are
    not known of a cluster's card are empty or 0.

    `uuid` identifies it everywhere in gpulaunch; `index` (NVML's order) is for people and for the
    mask. `key` names its lease: the lower-case PCI bus id, a MIG instance's UUID, or `sim/...`.
    `minor` is the N of /dev/nvidiaN, which is not the index. `part` is a MIG instance's GPU
    instance number, followed by its compute instance number, where known. Of two free cards, the
    one of lower `rank` is taken first.

    `compute` is its compute capability (8, 0), empty where not known. `numa` is the NUMA node near
    it, None where the machine tells of none, and `cpus` are the CPUs near it, as the kernel writes
    a list (`0-31,64-95`), empty where not known. `links` are the UUIDs of the cards that NVLink
    joins it with, directly or by a switch. `unified`: its memory is the host's (GB10, Jetson), and
    `memory` is all that may be used of that; for other cards, 0 is a size that is not known.
    """

    uuid: str
    index: int
    key: str
    name: str
    memory: int
    minor: int | None = None
    mig: bool = False
    simulated: bool = False
    part: tuple[int, ...] = ()
    node: str = ""
    compute: tuple[int, ...] = ()
    numa: int | None = None
    cpus: str = ""
    links: tuple[str, ...] = ()
    rank: int = 0
    unified: bool = False

    @property
    def named(self) -> str:
        """What NVIDIA's programs know the card by: its UUID, or its index where it has none."""
        return self.uuid if self.uuid.startswith(("GPU-", "MIG-")) else str(self.index)


class CardKind(Value, frozen=True):
    """Which cards a job takes: those whose name fits the glob `card`, and that can `compute`.

    `compute` is the least compute capability, (8, 0). `own_gpu` is the UUID of the single card that
    it takes. What is empty stands for any.
    """

    card: str = ""
    compute: tuple[int, ...] = ()
    own_gpu: str = ""


class Demand(Struct, frozen=True, omit_defaults=True):
    """The cards, CPUs, memory and tokens that an attempt takes. Jobs of equal demand wait together.

    `memory` is the host's, reserved for all processes of the attempt. `cpus` is None where the job
    file is silent (1 is then reserved). `per_gpu` is how many jobs, all saying the same number, may
    share a card. `avoid` names cards (UUIDs) that an earlier attempt's end speaks against.
    `preemptible`: it gives its cards up to launchers that have none. `worker` is the key of the
    worker that runs it, empty without one: attempts of one key may follow each other in one
    process. `card` and `compute` are those of CardKind. `mps`: it shares its card through CUDA's
    Multi-Process Service. `own_gpu` is the UUID of the single card that it takes, empty for any.

    `share`: it shares its card with any others that say so, while what all of them are promised of
    the card's memory fits; `per_gpu` is then how many at most, 0 for any number. `kind`: the
    memory is learned from jobs of this kind, and `core.memory` says what is promised now; None:
    `gpu_memory` says it. `margin`: bytes that it is promised beyond `gpu_memory` beside others.
    """

    gpus: int = 1
    gpu_memory: int = 0
    per_gpu: int = 1
    cpus: int | None = None
    uses: tuple[str, ...] = ()
    avoid: frozenset[str] = frozenset()
    worker: str = ""
    preemptible: bool = False
    share: bool = False
    kind: int | None = None
    margin: int = 0
    memory: int = 0
    card: str = ""
    compute: tuple[int, ...] = ()
    mps: bool = False
    own_gpu: str = ""

    @property
    def card_kind(self) -> CardKind | None:
        """The cards that it takes; None for any."""
        choosy = self.card or self.compute or self.own_gpu
        return CardKind(self.card, self.compute, self.own_gpu) if choosy else None

    @property
    def shares_card(self) -> bool:
        """True for a job that may share its card with others."""
        return self.share or self.per_gpu > 1

    @property
    def promise(self) -> int:
        """Bytes of a card's memory that others on the card must leave to it."""
        return self.gpu_memory + self.margin

    def same_seat(self, other: Demand) -> bool:
        """Tell whether one worker, on the cards that it has, serves both demands."""
        if self.worker != other.worker:
            return False
        return self._seat == other._seat

    @property
    def _seat(self) -> tuple[object, ...]:
        needs = (self.gpus, self.gpu_memory, self.per_gpu, self.cpus, self.share, self.kind)
        return (*needs, self.memory, self.card, self.compute, self.mps, self.own_gpu)


class DueTime(Value, frozen=True):
    """A moment before which a job does not start: `utc`, in seconds since 1970.

    `words` are the job file's own. What they meant when the run first read them stays: 19:00 is not
    tomorrow's because today's has passed.
    """

    words: str
    utc: Seconds


class RetryPolicy(Struct, frozen=True, omit_defaults=True):
    """A job's retries: how often, after which failure classes (empty: any), after which delay."""

    times: int = 0
    on: frozenset[str] = frozenset()
    delay: float = 0.0


class WarnPolicy(Struct, frozen=True):
    """A signal that a job is sent `before` seconds before its timeout, or before it has to stop."""

    signal: int
    before: float


class LadderStep(Value, frozen=True):
    """A step of a job's ladder: the `number`th (from 1) `of` so many, and its values by name."""

    number: int
    of: int
    values: Mapping[str, str]


class Ladder(Struct, frozen=True):
    """Placeholders whose values change with retries: `names`, and each step's texts in their order.

    No two steps are alike: a step is known by its values, also in a ladder that was changed.
    """

    names: tuple[str, ...]
    steps: tuple[tuple[str, ...], ...]

    def step(self, number: int) -> LadderStep:
        """Return the step of this number; the first or last one for a number beyond."""
        number = min(max(number, 1), len(self.steps))
        values = dict(zip(self.names, self.steps[number - 1], strict=True))
        return LadderStep(number, len(self.steps), values)

    def find(self, step: LadderStep | None) -> int:
        """Return the number of the step with the same values; 0 where the ladder has none."""
        if step is None or step.values.keys() != set(self.names):
            return 0
        texts = tuple(step.values[name] for name in self.names)
        return self.steps.index(texts) + 1 if texts in self.steps else 0


class Service(Struct, frozen=True):
    """A server beside the jobs. `ready` is `tcp:PORT` or a URL, start-time placeholders inside.

    `ready_within`: seconds from its start within which it has to answer there.
    """

    ready: Text
    ready_within: float = 1800.0


def address_variable(service: str) -> str:
    """`GPULAUNCH_ADDR_<NAME>`: the service's name in capitals, other characters as `_`."""
    return "GPULAUNCH_ADDR_" + re.sub(r"\W", "_", service, flags=re.ASCII).upper()


class FastaRecord(Struct, frozen=True):
    """One record of a FASTA file: its bytes' offset, length and digest when it was read."""

    file: str
    offset: int
    length: int
    digest: str


class Worker(Struct, frozen=True, omit_defaults=True):
    """A process that loads once and takes one job after the other.

    Either `function` (`/FILE.py:name` or `package.module:name`, called with what `load`, named
    alike, has returned, and the job's item), or `run`, a program that reads a line for each item.
    It is replaced after `items` jobs, or when it holds more than `memory` bytes between two.
    `load_timeout`: seconds until its first item may begin; None: as long as an item may take.
    """

    function: str = ""
    load: str = ""
    run: tuple[str, ...] = ()
    items: int | None = None
    memory: int | None = None
    load_timeout: float | None = None

    @property
    def title(self) -> str:
        """The worker's name for people: its function, without directories, or its command."""
        return self.function.rpartition("/")[2] or " ".join(self.run)


ContainerEngine: TypeAlias = Literal["docker", "podman", "apptainer", "singularity"]
"""A program that runs containers."""


class Mount(Struct, frozen=True):
    """A file or directory of this machine that appears in a container as `target`."""

    source: str
    target: str
    read_only: bool = False


class ImageSource(Value, frozen=True):
    """An image, the engine that runs it, and when that pulls it: once in a run, at most.

    `image` as the job file names it; a file by its absolute path. `engine`: None for one that fits
    and is there. `pull`: where it does not have the image (`missing`), never, or in each run.
    """

    image: str
    engine: ContainerEngine | None = None
    pull: Literal["missing", "never", "always"] = "missing"


class Container(Struct, frozen=True, omit_defaults=True):
    """The container that a job runs in.

    `image`, `engine` and `pull` as for ImageSource. `mounts` are beside those that each job has.
    `args`: options of the engine's own, before the image. `user`: whose files those made inside
    are: the caller's (empty), the image's own user (`image`), or `UID[:GID]`.
    """

    image: str
    engine: ContainerEngine | None = None
    mounts: tuple[Mount, ...] = ()
    args: tuple[str, ...] = ()
    user: str = ""
    pull: Literal["missing", "never", "always"] = "missing"

    @property
    def source(self) -> ImageSource:
        """What has to be there before the job starts."""
        return ImageSource(self.image, self.engine, self.pull)


class Params(Mapping[str, str]):
    """The values that foreach and matrix gave a job: `texts`, in the order of `names`, each once.

    Jobs of one entry share the names: a dict each would be the largest part of a long job list.
    """

    __slots__ = ("_names", "_texts")

    def __init__(self, names: tuple[str, ...], texts: tuple[str, ...]) -> None:
        self._names = names
        self._texts = texts

    def __getitem__(self, name: str) -> str:
        if name not in self._names:
            raise KeyError(name)
        return self._texts[self._names.index(name)]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __repr__(self) -> str:
        return repr(dict(self))


class Job(Struct, frozen=True, omit_defaults=True):
    """One job, expanded and checked. Start-time placeholders are still slots inside `Text`s.

    `needs` and `after` hold names of jobs, resolved. `group` is the index of the job's entry in
    the file, shared by all that one foreach or matrix made. `params` are the values that foreach
    and matrix gave. `expected` is in seconds, from earlier runs, 0 where nothing is known;
    `learned`: bytes that jobs of its entry took of a card at most in these, 0 likewise.
    `preload` names modules that are imported once for all such jobs (`("auto",)`: those that the
    script imports). `given`: it was added to a live list, and no file has it. Where there is a
    `worker`, `run` is the worker's command, and `item` what the worker is handed for this job.
    `ladder`: values that change with retries; they are slots, too. `engine` holds options for
    engines: by engine, by key, words. `warn`: a signal before it is ended. `keep`: its attempts
    share a directory that outlives each of them. `container`: it runs inside that. `modules`:
    environment modules that are loaded before it starts. `gpu_idle`: the
    seconds for which it may hold its cards' memory and compute nothing. `affinity`: on which CPUs;
    None: those near its card where the machine has more than one NUMA node.
    `input_base`: its item is a file that it reads, relative to this directory; None: it is none.
    `digest` changes when, and only when, what would be run changes.
    """

    name: str
    run: Text | tuple[Text, ...]
    group: int = 0
    params: Mapping[str, str] = field(default_factory=dict)
    demand: Demand = Demand()
    needs: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    priority: int = 0
    cost: float = 0.0
    expected: float = 0.0
    learned: int = 0
    retry: RetryPolicy = RetryPolicy()
    not_before: DueTime | None = None
    success_codes: frozenset[int] = frozenset({0})
    shell: tuple[str, ...] = ("bash", "-eo", "pipefail", "-c")
    cwd: str = "/"
    env: Mapping[str, Text | None] = field(default_factory=dict)
    env_file: str | None = None
    python: str | None = None
    venv: str | None = None
    conda: str | None = None
    timeout: float | None = None
    idle_timeout: float | None = None
    gpu_idle: float | None = None
    grace: float = 10.0
    warn: WarnPolicy | None = None
    outputs: tuple[Text, ...] = ()
    batch: tuple[str, ...] | None = None
    fasta: FastaRecord | None = None
    service: Service | None = None
    visible: Literal["index", "uuid"] = "index"
    isolation: Literal["env", "strict"] = "env"
    affinity: Literal["card", "none"] | None = None
    inherit_ranks: bool = False
    explain: bool = False
    worker: Worker | None = None
    item: Mapping[str, str] = field(default_factory=dict)
    preload: tuple[str, ...] = ()
    ladder: Ladder | None = None
    engine: Mapping[str, Mapping[str, tuple[str, ...]]] = field(default_factory=dict)
    given: bool = False
    keep: bool = False
    container: Container | None = None
    input_base: str | None = None
    modules: tuple[str, ...] = ()
    digest: str = ""


class AttemptId(Value, frozen=True, order=True):
    """The n-th start of a job, counted from 1 over the whole life of a run."""

    job: str
    number: Annotated[int, Meta(ge=1, le=MOST_ATTEMPTS)]

    def __str__(self) -> str:
        return f"{self.job}.{self.number}"


# ── How an attempt ended ────────────────────────────────────────────────────────────────────────


class Exited(Tagged, frozen=True, tag="exited"):
    code: int


class Signaled(Tagged, frozen=True, tag="signaled"):
    signal: int


Status: TypeAlias = Exited | Signaled


class TimedOut(Tagged, frozen=True, tag="timed_out"):
    """The attempt reached a time limit. `limit` is the job file's field, `seconds` its value.

    `queue` is the limit that an engine's queue has for it: `seconds` is 0 where it is not known.
    """

    limit: Literal["timeout", "idle_timeout", "queue"]
    seconds: Seconds
    status: Status | None = None


class MissingOutput(Tagged, frozen=True, tag="missing_output"):
    """The program exited with a success code; these outputs are absent, empty or too old.

    Each of `paths` is followed by what is wrong with it in parentheses: `a.cif (empty)`.
    """

    paths: tuple[str, ...]
    status: Status | None = None


class NotStarted(Tagged, frozen=True, tag="not_started"):
    """The program could not be executed; `error` says why, in words."""

    error: str


class Cancelled(Tagged, frozen=True, tag="cancelled"):
    """A person cancelled the attempt. `by` says how, where that was not through gpulaunch."""

    status: Status | None = None
    by: EndCause | None = None


class Interrupted(Tagged, frozen=True, tag="interrupted"):
    """gpulaunch itself ended the attempt (stop, drain, supervisor gone): it is not charged."""

    by: EndCause
    status: Status | None = None


class Stopped(Tagged, frozen=True, tag="stopped"):
    """A service was stopped because nothing needs it any more: this is its success."""

    status: Status | None = None


class Lost(Tagged, frozen=True, tag="lost"):
    """The attempt's end is not known: nobody saw it."""

    why: EndCause


Outcome: TypeAlias = (
    Exited
    | Signaled
    | TimedOut
    | MissingOutput
    | NotStarted
    | Cancelled
    | Interrupted
    | Stopped
    | Lost
)


class Failure(Value, frozen=True):
    """The recognised class of a failed attempt, with what shows it.

    `kind` is the failure class; `evidence` the line of the log, or the words of the driver or the
    kernel, that show it; `advice` what a person can do about it. `gpus` are the
    UUIDs of the cards that the evidence names. `foreign`: others used the card's memory as well.
    """

    kind: str
    evidence: str = ""
    advice: Advice = ()
    gpus: tuple[str, ...] = ()
    foreign: bool = False


class SentWarning(Value, frozen=True):
    """A job's warning: sent to `processes` of it at that time; 0: none of them takes the signal.

    `why`: its timeout was near, or it was to stop for another reason.
    """

    at: Instant
    signal: int
    processes: int
    why: Literal["timeout", "stop"]


class End(Value, frozen=True):
    """How an attempt ended: one value from its keeper's record to the journal and the screen.

    `failure` is what was recognised of it, None for no failure of the job's own. `leftovers`:
    processes that outlived the main one (after a stop: the grace) and were killed. `started` and
    `ended` are the keeper's own times, None where it gave none: the supervisor may hear of an end
    long after it. `warned`: the warning that it had before; on record it is a fact of its own.
    `gpu_memory`: the bytes of its card's memory that it was seen to take at most, for jobs whose
    memory is learned.
    """

    outcome: Outcome
    failure: Failure | None = None
    leftovers: int = 0
    started: Instant | None = None
    ended: Instant | None = None
    warned: SentWarning | None = None
    gpu_memory: int = 0


def status_of(outcome: Outcome) -> Status | None:
    """Return the exit status of the attempt's main process, None where it has none."""
    if isinstance(outcome, Exited | Signaled):
        return outcome
    return getattr(outcome, "status", None)


def exit_code_of(outcome: Outcome) -> int | None:
    status = status_of(outcome)
    return status.code if isinstance(status, Exited) else None


def signal_of(outcome: Outcome) -> int | None:
    status = status_of(outcome)
    return status.signal if isinstance(status, Signaled) else None


# ── Selection of cards ────────────────────────────────────────────────────────────────────────────


class Selection(Struct, frozen=True):
    """The cards that `gpus:` of a job file or `--gpus` selects.

    `count`: how many, None: all; `which`: indices or UUIDs, None: any.
    """

    count: int | None = None
    which: tuple[str, ...] | None = None


ALL = Selection()

_EXPECTED = "expected all, a number of cards, indices like 0,2 (one: 2,), or UUIDs like GPU-5f3c..."
_INDEX = re.compile(r"\d+")
_UUID = re.compile(r"(GPU|MIG)-[0-9A-Za-z./-]+|SIM-\d+", re.IGNORECASE)


def parse_selection(value: str | Sequence[str]) -> Selection:
    """Return the selection that a scalar (`all`, `2`, `0,2`, `2,`, `[0, 2]`) or a list names.

    A bare number is how many; in a list, which a comma makes, numbers are indices. Raises
    ValueError with one line.
    """
    if isinstance(value, str):
        text = value.strip()
        if text == "all":
            return ALL
        if _INDEX.fullmatch(text):
            return Selection(count=int(text))
        listed = text.startswith("[")
        if listed != text.endswith("]"):
            raise ValueError(f"{_EXPECTED}, found {value!r}: a bracket is missing")
        items = [item.strip().strip("'\"") for item in text[listed : len(text) - listed].split(",")]
        if not listed and len(items) > 1 and not items[-1]:
            items.pop()  # `2,` is card 2, as `0,2` are cards 0 and 2
            listed = True
        listed = listed or len(items) > 1
    else:
        listed = True
        items = [item.strip() for item in value]
    if not items or not all(items):
        raise ValueError(f"{_EXPECTED}, found {value!r}")
    for item in items:
        if not (_INDEX.fullmatch(item) or _UUID.fullmatch(item)):
            expected = "expected a card's index or UUID" if listed else _EXPECTED
            raise ValueError(f"{expected}, found {item!r}")
    doubles = sorted({item for item in items if items.count(item) > 1})
    if doubles:
        raise ValueError(f"card {doubles[0]} is named twice")
    return Selection(which=tuple(items))


def choose(selection: Selection, gpus: Sequence[Gpu]) -> tuple[Gpu, ...]:
    """Return the cards of `gpus` that may be used. Raises LookupError for one that is not there.

    A UUID may be shortened to any prefix that only one card has, as CUDA allows it. One card
    under two names is a LookupError too: it would count twice.
    """
    if selection.which is None:
        return tuple(gpus)
    chosen: dict[str, tuple[str, Gpu]] = {}
    for name in selection.which:
        gpu = _find(name, gpus)
        other, _ = chosen.setdefault(gpu.uuid, (name, gpu))
        if other != name:
            raise LookupError(f"{other} and {name} are the same card: name it once")
    return tuple(gpu for _, gpu in chosen.values())


def describe(selection: Selection, gpus: Sequence[Gpu]) -> str:
    """Return the selection in words: `all 4 cards`, `1 of 8 cards, any`, `GPUs 0, 2 of 8 cards`.

    Cards that are only some of a machine's are told by number: `GPU 3 of cards 2, 3`.
    """
    kind = "simulated card" if any(gpu.simulated for gpu in gpus) else "card"
    kind += "s" * (len(gpus) != 1)
    if selection.which is not None:
        names = [str(gpu.index) for gpu in choose(selection, gpus)]
        here = f"{len(gpus)} {kind}"
        if any(gpu.index >= len(gpus) for gpu in gpus):
            here = f"{kind} {', '.join(str(gpu.index) for gpu in gpus)}"
        return f"GPU{'s' * (len(names) > 1)} {', '.join(names)} of {here}"
    if selection.count is None or selection.count == len(gpus):
        return f"all {len(gpus)} {kind}" if len(gpus) != 1 else f"1 {kind}"
    return f"{selection.count} of {len(gpus)} {kind}, any"


def describe_taken(count: int, selection: Selection, gpus: Sequence[Gpu]) -> str:
    """Return in words that one command takes `count` of the selection: `1 of GPUs 0, 2 of 8`."""
    if selection.which is None:
        return describe(Selection(count), gpus)
    if count == len(selection.which):
        return describe(selection, gpus)
    return f"{count} of {describe(selection, gpus)}"


def fitting(name: str, gpus: Sequence[Gpu]) -> list[Gpu]:
    """Return the cards that an index or a UUID may mean; by the index also its MIG instances."""
    if _INDEX.fullmatch(name):
        return [gpu for gpu in gpus if gpu.index == int(name)]
    found = [gpu for gpu in gpus if gpu.uuid.lower() == name.lower()]
    return found or [gpu for gpu in gpus if gpu.uuid.lower().startswith(name.lower())]


def _find(name: str, gpus: Sequence[Gpu]) -> Gpu:
    found = fitting(name, gpus)
    if _INDEX.fullmatch(name):
        found = [gpu for gpu in found if not gpu.mig]
    if len(found) == 1:
        return found[0]
    if found:
        raise LookupError(f"{name} fits {len(found)} cards: write more of the UUID")
    have = ", ".join(str(gpu.index) for gpu in gpus) or "none"
    raise LookupError(f"there is no card {name} (cards here: {have})")
