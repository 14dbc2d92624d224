"""Entries to the job file's text. Any string comes out as YAML that reads back as exactly itself.

Knows how YAML is spelt and how a placeholder is escaped; nothing of shells.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from gpulaunch.starter.entry import ForeachLoop, StarterEntry, StarterRemark

_BARE = re.compile(r"[A-Za-z0-9_./][A-Za-z0-9_./@%+=~-]*")
_PLAIN = re.compile(r"[A-Za-z0-9_./$]([^\n]*[^\n :])?")
_NOT_PLAIN = re.compile(r"(?i)null|.*: .*|.* #.*|---.*|\.\.\..*")
_ESCAPES = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\t": "\\t", "\r": "\\r"}
_PLACEHOLDER = re.compile(r"(\\*)(\{\{[ \t]*[^\W\d][\w-]*[ \t]*\}\})")


class Unwritable(ValueError):
    """The job file has no way to say this text."""


def escaped(text: str) -> str:
    """`text` for a field in which placeholders work, such that it stands for itself."""
    if "\0" in text:
        raise Unwritable("a NUL byte cannot be part of a command")

    def guard(match: re.Match[str]) -> str:
        if len(match.group(1)) % 2:
            raise Unwritable(f"{match.group()} would be read as a placeholder of the job file")
        return f"{match.group(1)}\\{match.group(2)}"

    return _PLACEHOLDER.sub(guard, text)


def scalar(text: str, indent: int = 0) -> str:
    """`text` as a YAML scalar; `indent` is how deep its key stands, for a block of lines."""
    if _is_plain(text):
        return text
    if indent and any(char in text for char in '\n"\\') and _fits_block(text):
        pad = " " * (indent + 2)
        return "|-\n" + "\n".join(pad + line if line else "" for line in text.split("\n"))
    return '"' + "".join(_quoted(char) for char in text) + '"'


def _is_plain(text: str) -> bool:
    """Needs no quotes after `key: `."""
    if not all(map(_printable, text)):
        return False
    return bool(_PLAIN.fullmatch(text)) and not _NOT_PLAIN.fullmatch(text)


def _fits_block(text: str) -> bool:
    lines = text.split("\n")
    return bool(
        lines[0]
        and lines[-1]
        and lines[0][0] not in " \t"
        and all(_printable(char) for char in text if char not in "\n\t")
    )


def _printable(char: str) -> bool:
    return " " <= char <= "~" or (char >= "\xa0" and char.isprintable())


def _quoted(char: str) -> str:
    if char in _ESCAPES:
        return _ESCAPES[char]
    if _printable(char):
        return char
    code = ord(char)
    if 0xD800 <= code < 0xE000:
        raise Unwritable("half a character (a lone surrogate) cannot be written in a file")
    width = (2, "x") if code < 0x100 else (4, "u") if code < 0x10000 else (8, "U")
    return f"\\{width[1]}{code:0{width[0]}x}"


def _comment(text: str, indent: str = "") -> Iterator[str]:
    for line in text.splitlines() or [""]:
        shown = "".join(char if _printable(char) else "?" for char in line.expandtabs())
        yield f"{indent}# {shown}".rstrip()


def job_file(name: str, entries: Sequence[StarterEntry], remarks: Sequence[StarterRemark]) -> str:
    """Return the whole file: a header, the entries, and the remarks as comments at the end.

    Empty where there is no entry: a job list has at least one job.
    """
    if not entries:
        return ""
    lines = [
        *_comment(
            f"Made from {name} by `gpulaunch init`. Any free card runs any job: which card a"
        ),
        "# job gets is gpulaunch's business, and each sees its own as cuda:0.",
        "#   gpulaunch check FILE        shows the plan, starts nothing",
        "jobs:",
    ]
    for entry in entries:
        lines += _entry(entry)
    if remarks:
        lines += ["", "# Not translated, or not literally:"]
    for remark in remarks:
        lines += _comment(f"line {remark.line}: {remark.why}")
        lines += ["#     " + line[2:] for line in _comment(remark.text)]
    return "\n".join(lines) + "\n"


def _entry(entry: StarterEntry) -> Iterator[str]:
    yield ""
    for comment in entry.comments:
        yield from _comment(comment, "  ")
    yield f"  - name: {scalar(entry.name)}"
    yield from _loops(entry.loops)
    if entry.gpus != 1:
        yield f"    gpus: {entry.gpus}"
    for key in ("needs", "after"):
        names: tuple[str, ...] = getattr(entry, key)
        if names:
            note = "  # one after the other, as in the script" if entry.in_turn else ""
            yield f"    {key}: {_list(names)}{note}"
    for key in ("cpus", "timeout", "cwd", "venv", "conda"):
        value: str | None = getattr(entry, key)
        if value is not None:
            yield f"    {key}: {scalar(value)}"
    if entry.modules:
        yield f"    modules: {_list(entry.modules)}"
    for key, spelt in entry.extra:
        yield f"    {key}: {spelt}"
    if entry.env:
        yield "    env:"
        for variable, text in entry.env.items():
            yield f"      {scalar(variable)}: {scalar(text, 6)}"
    yield f"    run: {scalar(entry.run, 4)}"


def _loops(loops: Sequence[ForeachLoop]) -> Iterator[str]:
    matrix = [loop for loop in loops if loop.kind == "matrix"]
    for loop in loops:
        if loop.kind == "glob":
            alone = len(loop.values) == 1
            yield f"    foreach: {scalar(loop.values[0]) if alone else _list(loop.values)}"
        elif loop.kind == "values":
            yield f"    foreach: {{values: {_list(loop.values)}}}"
        elif loop.kind == "lines":
            yield f"    foreach: {{lines: {_item(loop.values[0])}}}"
    if matrix:
        yield "    matrix:"
    for loop in matrix:
        yield f"      {scalar(loop.placeholder)}: {_list(loop.values)}"


def _list(values: Sequence[str]) -> str:
    return "[" + ", ".join(_item(value) for value in values) + "]"


def _item(text: str) -> str:
    """Return a scalar that may stand inside [...] and {...}."""
    if _BARE.fullmatch(text) and _is_plain(text):
        return text
    return '"' + "".join(_quoted(char) for char in text) + '"'
