"""Spells and reads what people type and see: spans of time, bytes, counts and lists. Pure text.

One spelling for each notion, the same in the job file, on the command line, in messages and on
the screen. `parse_span` reads whatever `span` writes, and `parse_size` whatever `size` writes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from decimal import Decimal

SPAN = r"[0-9]+(?:\.[0-9]+)?\s*(?:min|ms|[smhdw])"
"""A part of a span: a number and its unit."""
SIZE = r"([0-9]+(?:\.[0-9]+)?)\s*(?:([kmgt])(i?)b?|b)"
"""A size, whatever the case of its letters."""
MAX_SPAN = 100 * 365 * 86400.0
"""Seconds: a hundred years."""
MAX_SIZE = 1 << 60
"""Bytes, no longer a size that a card can have."""

_ESCAPED = re.compile(r"\[([*?[])\]")
_PLAIN = re.compile(r"[0-9]+(\.[0-9]+)?")
_SPAN = re.compile(rf"(?:{SPAN}\s*)+")
_PART = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*(min|ms|[smhdw])")
_SECONDS = {
    "ms": 0.001,
    "s": 1.0,
    "m": 60.0,
    "min": 60.0,
    "h": 3600.0,
    "d": 86400.0,
    "w": 604800.0,
}
_SIZE = re.compile(SIZE, re.IGNORECASE)
_PLAIN_WORD = re.compile(r"[\w./,:=+@%^-]+", re.ASCII)
_CONTROL = re.compile(r"[\x00-\x1f\x7f\x85\u2028\u2029\udc80-\udcff]")
_ESCAPES = {"\\": "\\\\", "'": "\\'", "\n": "\\n", "\t": "\\t", "\r": "\\r"}
_MEANS_SOMETHING = frozenset('"$`\\!')
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}
# Each alternative stops at the next ESC, so that unfinished sequences cost linear time.
_TERMINAL_ESCAPES = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]"  # CSI: colours, cursor movement
    r"|\x1b[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)"  # OSC (titles, links), DCS and their kin
    r"|\x1b[ -/]*[0-Z\\^-~]"  # two-character sequences
    r"|\x9b[0-?]*[ -/]*[@-~]"
)


def parse_span(text: str) -> float:
    """Return the seconds of `90`, `30s`, `2 h`, `1h30m`, `1 h 30 min`, `1d` or `2w`.

    Raises ValueError for anything else, `1h30` included: 30 of what?
    """
    stripped = text.strip()
    if _PLAIN.fullmatch(stripped):
        seconds = float(stripped)
    elif _SPAN.fullmatch(stripped):
        seconds = sum(float(number) * _SECONDS[unit] for number, unit in _PART.findall(stripped))
    else:
        raise ValueError(f"expected a duration like 90, 30s, 2h or 1h30m, found {shortened(text)}")
    if seconds > MAX_SPAN:
        raise ValueError(f"expected at most a hundred years, found {shortened(text)}")
    return seconds


def span(seconds: float) -> str:
    """Return a span as a person would type it: `0.5 s`, `90 s`, `2 min 30 s`, `1 h 30 min`."""
    if seconds < 120 or seconds != int(seconds):
        return f"{_decimal(seconds)} s"
    parts = []
    rest = int(seconds)
    for unit, worth in (("d", 86400), ("h", 3600), ("min", 60), ("s", 1)):
        number, rest = divmod(rest, worth)
        if number:
            parts.append(f"{number} {unit}")
    return " ".join(parts)


def clock(seconds: float) -> str:
    """Return elapsed time: `0:42`, `1:02:03`, from two days on `2 d 3 h`; 0:00 below zero."""
    whole = max(0, int(seconds))
    if whole >= 2 * 86400:
        days, rest = divmod(whole, 86400)
        return f"{days} d {rest // 3600} h"
    minutes, second = divmod(whole, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{second:02}" if hours else f"{minutes}:{second:02}"


def parse_size(text: str) -> int:
    """Return the bytes of `16GB` or `16G` (16 * 10^9), `20GiB` (20 * 2^30) or `512 MiB`.

    Raises ValueError for anything else, a number without a unit included.
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ValueError(
            f'expected a size with its unit like "16GB" or "20GiB", found {shortened(text)}'
        )
    amount, unit, binary = match.groups()
    base = 1024 if binary else 1000
    count = int(Decimal(amount) * base ** _POWERS[(unit or "").lower()])
    if not 0 < count < MAX_SIZE:
        raise ValueError(f"expected a size a card can have, found {shortened(text)}")
    return count


def size(amount: float) -> str:
    """Return bytes in binary units, to a tenth of a GiB: `512 MiB`, `20 GiB`, `79.6 GiB`."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(amount) < 1023.5 or unit == "GiB":
            break
        amount /= 1024
    digits = 1 if unit == "GiB" and f"{amount:.1f}"[-1] != "0" else 0
    return f"{amount:.{digits}f} {unit}"


def megabytes(amount: int) -> int:
    """Return bytes in the units of Slurm and HyperQueue, MiB, rounded up."""
    return -(-amount // (1 << 20))


def asking_for_memory(options: Iterable[str]) -> list[str]:
    """Return those of sbatch's options that ask for memory; `--mem-bind` says where it is to be."""
    return [one for one in options if one.startswith("--mem") and not one.startswith("--mem-bind")]


def energy(joules: float) -> str:
    """Return joules as people pay for them: `0.42 Wh`, `312 Wh`, `1.24 kWh`."""
    hours = joules / 3600
    amount, unit = (hours / 1000, "kWh") if hours >= 999.5 else (hours, "Wh")
    return f"{amount:.{2 if amount < 10 else 1 if amount < 100 else 0}f} {unit}"


def several(number: int, noun: str, plural: str = "") -> str:
    """Return `1 job` or `2,988 jobs`."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def shell_word(value: str) -> str:
    """Return the value as one word of bash, on one line; as it is where nothing is special."""
    if _PLAIN_WORD.fullmatch(value):
        return value
    if _CONTROL.search(value):
        return "$'" + "".join(_ESCAPES.get(char, _coded(char)) for char in value) + "'"
    if "'" not in value:
        return f"'{value}'"
    if _MEANS_SOMETHING.isdisjoint(value):
        return f'"{value}"'
    return "'" + value.replace("'", "'\\''") + "'"


def _coded(char: str) -> str:
    if not _CONTROL.match(char):
        return char
    return "".join(f"\\x{byte:02x}" for byte in char.encode(errors="surrogateescape"))


def shell_words(values: Iterable[str]) -> str:
    """Return the values as bash takes them, on one line."""
    return " ".join(map(shell_word, values))


def listing(names: Iterable[str], shown: int = 3) -> str:
    """Return the first names and how many are left out: `a, b, c and 4 more`."""
    all_names = list(names)
    text = ", ".join(all_names[:shown])
    more = len(all_names) - shown
    return f"{text} and {more:,} more" if more > 0 else text


def consecutive(numbers: Iterable[int]) -> list[range]:
    """Return the numbers as rising ranges without gaps: 0 and 2 to 7."""
    found: list[range] = []
    for number in sorted(set(numbers)):
        if found and found[-1].stop == number:
            found[-1] = range(found[-1].start, number + 1)
        else:
            found.append(range(number, number + 1))
    return found


def ranges(numbers: Iterable[int]) -> str:
    """Return the numbers as programs take many of them: `0,2-7`."""
    found = consecutive(numbers)
    return ",".join(f"{r[0]}-{r[-1]}" if len(r) > 1 else str(r[0]) for r in found)


def numbers_in(text: str) -> tuple[int, ...]:
    """Return the numbers of such a list, as the kernel writes it too; of any other text none."""
    found: list[int] = []
    for part in text.split(",") if text else ():
        first, dash, last = part.partition("-")
        if not first.isdigit() or not (last.isdigit() if dash else True):
            return ()
        found += range(int(first), int(last or first) + 1)
    return tuple(found)


def unescaped(pattern: str) -> str:
    """Return a glob pattern as people read it: what `glob.escape` did is undone."""
    return _ESCAPED.sub(r"\1", pattern)


def clip(text: str, length: int) -> str:
    """Return at most `length` characters of the text, a cut marked by `…`."""
    return text if len(text) <= length else text[: length - 1] + "…"


def in_utf8(text: str) -> str:
    """Return the text; what no UTF-8 can hold is written out, as JSON has it: `\\udcff`.

    Python reads a path that is not UTF-8 as halves of surrogate pairs, and JSON's escapes so too.
    """
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


def shortened(value: object) -> str:
    """Return the value in quotes, cut after 60 characters."""
    text = str(value)
    return repr(text if len(text) <= 60 else text[:57] + "...")


def _decimal(number: float) -> str:
    """Return the shortest decimal that reads back as `number`, without an exponent."""
    text = format(Decimal(repr(float(number))), "f")
    return text.rstrip("0").rstrip(".") if "." in text else text


def as_shown(line: str) -> str:
    r"""Return what a terminal shows of a line in the end: `100%` of `50%\r100%`.

    Without escapes and overwritten states; blanks and other control characters stay.
    """
    plain = _TERMINAL_ESCAPES.sub("", line)
    if "\r" in plain:
        plain = next((state for state in reversed(plain.split("\r")) if state.strip()), "")
    return _backspaced(plain)


def _backspaced(text: str) -> str:
    if "\b" not in text:
        return text
    out: list[str] = []
    for char in text:
        if char != "\b":
            out.append(char)
        elif out:
            out.pop()
    return "".join(out)
