"""The cards that `gpus:` of a job file or `--gpus` selects: all, how many of any, or which ones."""

from __future__ import annotations

import re
from collections.abc import Sequence

from msgspec import Struct

from gpulaunch.core.model import Gpu


class Selection(Struct, frozen=True):
    """A choice of cards. `count`: how many, None: all; `which`: indices or UUIDs, None: any."""

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
