"""The file's own keys (name, gpus, free_below, per_gpu ...), and what surrounds the file.

Also checks any mapping of fields against their kinds (right ones are converted, mistakes added),
and makes the items of `foreach: cards`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from msgspec import Struct, field

from gpulaunch.base.free_below import EXPECTED, parse_free_below
from gpulaunch.core.model import ALL, Demand, Gpu, Job, Selection, parse_selection
from gpulaunch.core.placement import is_kind
from gpulaunch.jobfile import convert as c
from gpulaunch.jobfile import schedulers
from gpulaunch.jobfile.fields import (
    DEFAULT_FIELDS,
    DEFAULTS,
    FIELDS,
    LATER,
    Kind,
    engines_merged,
)
from gpulaunch.jobfile.items import ForeachItem, Items
from gpulaunch.jobfile.mistakes import ErrorCollector, FieldError, Mistakes, as_field_error
from gpulaunch.jobfile.notify_spec import Target, targets
from gpulaunch.jobfile.source import Following
from gpulaunch.jobfile.suggest import did_you_mean_key
from gpulaunch.jobfile.tree import Path as Steps
from gpulaunch.jobfile.tree import Plain, YamlNode
from gpulaunch.jobfile.values import found

TOP = (
    *("name", "gpus", "free_below", "per_gpu"),
    *("limits", "notify", "engine", "defaults", "jobs"),
)


class FileKeys:
    """Return the keys beside `jobs:`, and add each mistake."""

    def __init__(self, root: YamlNode, mistakes: Mistakes) -> None:
        assert isinstance(root.value, dict)
        self.nodes = root.value
        self.mistakes = mistakes
        self.name = ""
        self.selection: Selection = ALL
        self.free_below: str | None = None
        self.per_gpu = 1
        self.limits: dict[str, int] = {}
        self.notify: tuple[Target, ...] = ()
        self.defaults: dict[str, Any] = {}
        self.wrong_defaults: frozenset[str] = frozenset()

    def read(self, stem: str) -> None:
        for key in self.nodes:
            if key in LATER:
                self.mistakes.add((key,), "this version cannot do that yet", key=True)
            elif key not in TOP:
                self.mistakes.add((key,), _unknown(key), key=True)
        self.name = self._one("name", c.run_name, None) or c.clean_name(stem) or "jobs"
        self.selection = self._one("gpus", _selection, ALL)
        self.free_below = self._one("free_below", _free_below, None)
        self.per_gpu = self._one(
            "per_gpu", c.integer_field(1, "how many jobs share a card: 1, 2 ..."), 1
        )
        self.limits = self._one("limits", _limits, {})
        self.notify = self._one("notify", targets, ())
        engine = self._one("engine", schedulers.fixed, {})
        self._read_defaults()
        if engine:
            self.defaults["engine"] = engines_merged(engine, self.defaults.get("engine", {}))

    def _one(self, key: str, convert: c.Convert, default: Any) -> Any:
        node = self.nodes.get(key)
        if node is None or node.value is None:
            return default
        try:
            return convert(node.plain())
        except ValueError as error:
            self.mistakes.add_bad((key,), as_field_error(error))
        return default

    def _read_defaults(self) -> None:
        node = self.nodes.get("defaults")
        if node is None or node.value is None:
            return
        if not isinstance(node.value, dict):
            self.mistakes.add(("defaults",), "expected fields like {timeout: 2h}")
            return
        plain, _ = split(node)
        for key in [key for key in plain if key in FIELDS and key not in DEFAULT_FIELDS]:
            self.mistakes.add(("defaults", key), "a job's own; it cannot be a default", key=True)
            del plain[key]
        self.defaults, _ = validate(DEFAULTS, plain, ("defaults",), self.mistakes)
        self.wrong_defaults = frozenset(plain) - frozenset(self.defaults)


def _unknown(key: str) -> str:
    """Return why a key cannot stand beside `jobs:`."""
    if key in DEFAULT_FIELDS:
        return "a field of jobs: it goes into a job, or into defaults: for all of them"
    if key in FIELDS:
        return "a field of jobs: it goes into a job, which is an entry of the list jobs:"
    return c.unknown_key(key, TOP)


def _selection(value: Plain) -> Selection:
    if isinstance(value, list):
        return parse_selection(list(c.texts(value)))
    return parse_selection(c.scalar(value, "all, a number of cards, or a list like [0, 2]"))


def _free_below(value: Plain) -> str:
    text = c.scalar(value, EXPECTED)
    parse_free_below(text)
    return text


def _limits(value: Plain) -> dict[str, int]:
    if not isinstance(value, dict):
        raise FieldError(
            f"expected names with numbers like {{msa_server: 1}}, found {found(value)}"
        )
    gather = ErrorCollector()
    count = c.integer_field(1, "how many at once: 1, 2 ...")
    limits = {key: gather.take((key,), count, item) for key, item in value.items()}
    gather.done()
    return limits


# ── fields of a job, or of defaults: ────────────────────────────────────────────────────────────

OF_THE_FILE = frozenset({"free_below", "notify", "limits", "defaults", "jobs"})
"""Keys that may stand only beside `jobs:`."""


def split(node: YamlNode) -> tuple[dict[str, Plain], set[str]]:
    """Return an entry's fields, and those that are null: not given, not even by `defaults`."""
    assert isinstance(node.value, dict)
    plain: dict[str, Plain] = {}
    nulls = set()
    for key, child in node.value.items():
        if child.value is None and key in FIELDS and key != "run":
            nulls.add(key)
        else:
            plain[key] = child.plain()
    return plain, nulls


def validate(
    kinds: Mapping[str, Kind], plain: Mapping[str, Plain], where: Steps, mistakes: Mistakes
) -> tuple[dict[str, Any], bool]:
    """Return the converted fields that are right, and True if all are; add each mistake."""
    entry: dict[str, Any] = {}
    for name, value in plain.items():
        if name not in kinds:
            mistakes.add((*where, name), _not_of_job(name, kinds), key=True)
            continue
        try:
            entry[name] = kinds[name].convert(value)
        except ValueError as error:
            mistakes.add_bad((*where, name), as_field_error(error))
    return entry, len(entry) == len(plain)


def _not_of_job(key: str, kinds: Mapping[str, Kind]) -> str:
    """Return why a key cannot stand there."""
    if key in OF_THE_FILE:
        return "belongs beside jobs:, for the whole run"
    if key in LATER:
        return "this version cannot do that yet"
    return f"unknown key{did_you_mean_key(key, tuple(kinds))}"


# ── Items of `foreach: cards` ─────────────────────────────────────────────────────────────────────

CardsOfRun: TypeAlias = Callable[[Selection], Sequence[Gpu]]
"""Says which cards a run has whose job file selects so; none where no run is to be made of it.

Raises LookupError with the reason where that cannot be known, NoCardsError where there are none.
"""

STAND_IN = "any card"
"""Stands where a job of `foreach: cards` has its card's UUID, of a list that is only looked at."""


def of_cards(gpus: Sequence[Gpu], kind: Demand) -> Items:
    """Return an item for each of the cards that are of the kind. Raises LookupError for none.

    Without any card, one item stands for those of the machine that is to run the list.
    """
    if not gpus:
        return _items([_item(0, "0", STAND_IN)])
    suited = [gpu for gpu in gpus if is_kind(gpu, kind)]
    if not suited:
        raise LookupError(f"none of the run's {len(gpus)} cards is of that kind")
    alike = Counter(gpu.index for gpu in suited)
    labels = (_label(gpu, alike[gpu.index] > 1) for gpu in suited)
    pairs = zip(suited, labels, strict=True)
    return _items([_item(n, label, gpu.uuid) for n, (gpu, label) in enumerate(pairs)])


def _items(items: Sequence[ForeachItem]) -> Items:
    return Items(frozenset({"item", "index"}), iter(items), len(items))


def _label(gpu: Gpu, split: bool) -> str:
    """Return a card's index; of one of several instances of a card, its number too."""
    return f"{gpu.index}-{'.'.join(map(str, gpu.part))}" if split else str(gpu.index)


def _item(number: int, label: str, uuid: str) -> ForeachItem:
    values = {"item": label, "index": str(number)}
    return ForeachItem(values, label, {"card": label}, f"card {label}", gpu=uuid)


# ── Surroundings ──────────────────────────────────────────────────────────────────────────────────


class Beside(Struct, frozen=True):
    """What jobs that are added to a live run find there: names of its jobs, which they may need,
    and its `limits`, which hold for them."""

    names: Collection[str] = ()
    limits: Mapping[str, int] = field(default_factory=dict)


Look: TypeAlias = Callable[[Mistakes, Sequence[Job]], None]
"""A check of the jobs that start first, which adds mistakes."""


class Surroundings(Struct, frozen=True):
    """The caller's environment (HOME, PATH, where conda is), and what a run has beside its file.

    Whoever reads a job file makes this once, and hands it on.
    `per_gpu` stands for the file's own, which jobs that say nothing have; `defaults`: fields of
    jobs that do not say otherwise (`timeout=2h`), above the file's own. `cards`: which cards the
    run has, for `foreach: cards`; None where that is not known. `cwd`: where the commands of a list
    start, the working directory where it is None; those of a job file start at the file.

    `look` adds mistakes, to be told with the others. `following`: for a run that looks at the
    sources of `foreach` again as they change; a pattern that matches nothing is no mistake then.
    `beside`: the live run that the jobs are added to. `now`: from when on times of day are looked
    for, in seconds since 1970; None: the present.
    """

    environ: Mapping[str, str]
    per_gpu: int | None = None
    defaults: Sequence[str] = ()
    cards: CardsOfRun | None = None
    cwd: Path | None = None
    look: Look | None = None
    following: Following | None = None
    beside: Beside = Beside()
    now: float | None = None
