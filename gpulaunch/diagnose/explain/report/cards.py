"""The cards that this process sees by its mask, and those that an exported program names."""

from __future__ import annotations

import os
import re

from .frames import TracebackStep
from .limits import PER_CONTAINER, SOURCE_SIZE

# Of a device in torch.export's archives (torch/_export/serde/schema.py).
RECORD = re.compile(r'"type": ?"(cuda|hip|xpu|npu|hpu)", ?"index": ?(\d{1,4})\b')


def baked_in(way: list[TracebackStep]) -> tuple[str, list[str]]:
    """The file that torch.export.load was given, and the cards in it that are not here."""
    for step in way:
        if step.frame.f_globals.get("__name__") == "torch.export" and step.function == "load":
            file = step.frame.f_locals.get("f")
            if type(file) is str:
                return file, absent_cards(file)
    return "", []


def absent_cards(file: str) -> list[str]:
    """Cards that a program's JSON records name and that this process does not see, by the mask."""
    import zipfile

    found: set[tuple[str, int]] = set()
    try:
        with zipfile.ZipFile(file) as archive:
            for member in archive.infolist()[:PER_CONTAINER]:
                if member.filename.endswith(".json") and member.file_size < SOURCE_SIZE:
                    text = archive.read(member).decode("utf-8", "replace")
                    found.update((kind, int(index)) for kind, index in RECORD.findall(text))
    except (OSError, ValueError, RuntimeError, NotImplementedError, zipfile.BadZipFile):
        return []
    return [f"{kind}:{index}" for kind, index in sorted(found) if index >= (visible() or 1)]


def visible() -> int | None:
    """How many cards the mask names; None where there is none."""
    mask = os.environ.get("CUDA_VISIBLE_DEVICES")
    return None if mask is None else len([part for part in mask.split(",") if part.strip()])


def seen_cards() -> str:
    number = visible()
    if number is None:
        return "the cards that torch counts from cuda:0"
    if number == 0:
        return "no card"
    return "one card, cuda:0" if number == 1 else f"{number} cards, cuda:0 to cuda:{number - 1}"
