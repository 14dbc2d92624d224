"""Collects the mistakes of a job file, and shows them all at once in the file's order.

Also finds what a shell would expand in texts that no shell reads.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from gpulaunch.base.errors import JobFileError, Mistake
from gpulaunch.jobfile.placeholders import PLACEHOLDER
from gpulaunch.jobfile.source import JobFileText
from gpulaunch.jobfile.tree import Path, YamlNode, node_at, place, place_at

# ── Texts that no shell reads ─────────────────────────────────────────────────────────────────────

_VARIABLE = re.compile(
    r"\$(?:\{([A-Za-z_]\w*)(?:(?::?[-=?+]|[#%/])[^{}]*)?\}|([A-Za-z_]\w*))", re.ASCII
)
_COMMAND = re.compile(r"\$\([^()]+\)|`[^`]+`")
_BRACES = re.compile(r"(?<!\{)\{(?:[^{},\s]*(?:,[^{},\s]*)+|\w+\.\.\w+)\}(?!\})")
_HOME = re.compile(r"~(?:[a-z_][\w-]*)?(?=/|$)", re.ASCII)
_PLACEHOLDERS = {"GPULAUNCH_OUT": "out", "GPULAUNCH_KEEP": "keep", "GPULAUNCH_JOB": "job"}
"""What jobs find in a variable, and what stands for it in the job file."""
_OPERATORS = frozenset({"&&", "||", "|", "&", ";", ">", ">>", "<", "2>", "2>&1", "&>"})
_GLOBS = frozenset({"foreach", "outputs"})
_KNOWS_HOME = frozenset({"env_file", "python", "venv", "conda", "cwd", "container", "worker"})


def not_expanded(text: str, field: str, key: str = "") -> tuple[str, str] | None:
    """Return why a text of a field does not mean what a shell would make of it, and what to write.

    `$HOME`, `$(date)`, `{a,b}` and, in some fields, `~` stay as they are typed everywhere but in
    `run`. `key`: the variable of `env:`, or the kind of a `foreach:`. Of `run:` it is one argument.
    None where a shell changes nothing.
    """
    if field == "run":
        return _argument(text)
    if found := _VARIABLE.search(text) or _COMMAND.search(text):
        what = found.group()
        name = next(filter(None, found.groups()), "") if found.re is _VARIABLE else ""
        if name in _PLACEHOLDERS:
            return _why(what), f"write {{{{{_PLACEHOLDERS[name]}}}}}"
        if field == "env":
            return _why(what), f'write export {key}="{text}" at the beginning of run'
        return _why(what), f"write what {what} stands for"
    glob = field in _GLOBS and not key
    if glob and (braces := _BRACES.search(text)):
        each = "a list with a pattern for each" if field == "foreach" else "* in its place"
        return _why(braces.group()), f"write {each}"
    home = _HOME.match(text)
    if home is None or field == "name":
        return None
    if home.group() == "~" and (glob or field in _KNOWS_HOME or key in ("lines", "csv", "fasta")):
        return None
    return _why(home.group()), "write the path of the directory"


def _argument(text: str) -> tuple[str, str] | None:
    """Look at an argument of a command that is a list; code in another language has spaces."""
    mend = "write run as a string, which a shell reads"
    if text in _OPERATORS:
        return f"{text} is an argument here, because no shell reads a list", mend
    found = None if re.search(r"\s", text) else _VARIABLE.search(text) or _HOME.match(text)
    return (_why(found.group()), mend) if found else None


def _why(what: str) -> str:
    return f"{what} is not expanded here, because no shell reads this text"


# ── Mistakes ──────────────────────────────────────────────────────────────────────────────────────

MAX_MISTAKES_SHOWN = 50
_MAX_MISTAKES = 1000
_MAX_TEXT_CHARACTERS = 10_000
_NOTHING: Mapping[str, str] = {}
_Kept: TypeAlias = tuple[int, str, str]
"""A mistake's place, its field and its message."""
_NOWHERE = -1
"""The place of what stands in no file; such mistakes are told first."""
_SECRET = frozenset({"notify"})
"""Fields of which no line is shown: a password may be on it."""


class FieldError(ValueError):
    """A value that its field does not accept; `path` leads from the field to the wrong part.

    `number`: of the text there, the placeholder to point at, counted with escaped ones. `also`
    holds what else is wrong with the same field.
    """

    def __init__(
        self, message: str, path: Path = (), key: bool = False, number: int | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.path = path
        self.key = key
        self.number = number
        self.also: tuple[FieldError, ...] = ()

    def each(self) -> Iterator[FieldError]:
        yield self
        for other in self.also:
            yield from other.each()

    def under(self, *steps: str | int) -> FieldError:
        """Return the error with a longer path, from further up."""
        moved = [
            FieldError(bad.message, (*steps, *bad.path), bad.key, bad.number) for bad in self.each()
        ]
        moved[0].also = tuple(moved[1:])
        return moved[0]


def as_field_error(error: ValueError) -> FieldError:
    return error if isinstance(error, FieldError) else FieldError(str(error))


class ErrorCollector:
    """Converts the parts of a value, and raises the errors of all parts together."""

    def __init__(self) -> None:
        self.bads: list[FieldError] = []

    def take(
        self, path: Path, convert: Callable[[Any], Any], value: Any, default: Any = None
    ) -> Any:
        """Return the converted part at `path`, or the default if it is wrong."""
        try:
            return convert(value)
        except ValueError as error:
            self.bads.append(as_field_error(error).under(*path))
        return default

    def part(
        self, given: Mapping[str, Any], key: str, convert: Callable[[Any], Any], default: Any = None
    ) -> Any:
        """Return the converted value of a key; the default if it is not given, or wrong."""
        value = given.get(key)
        return default if value is None else self.take((key,), convert, value, default)

    def done(self) -> None:
        if self.bads:
            first = self.bads[0]
            first.also = (*first.also, *self.bads[1:])
            raise first


def converted(convert: Callable[[Any], Any], items: Sequence[Any], *under: str) -> list[Any]:
    """Return every item converted; `under` leads to their list. Raises the errors of all items."""
    gather = ErrorCollector()
    found = [gather.take((*under, i), convert, item) for i, item in enumerate(items)]
    gather.done()
    return found


class Mistakes:
    """The mistakes so far: collects up to a thousand, then gives up; shows fifty.

    `typed`: defaults that stand in no file, as they are on the command line, by their fields.
    """

    def __init__(
        self, source: JobFileText, root: YamlNode, typed: Mapping[str, str] = _NOTHING
    ) -> None:
        self.source = source
        self.root = root
        self.typed = typed
        self._kept: dict[_Kept, bool] = {}
        self._entries: dict[_Kept, dict[int, None]] = {}

    def add(
        self,
        path: Path,
        message: str,
        *,
        key: bool = False,
        number: int | None = None,
        at: int | None = None,
        entry: int | None = None,
    ) -> None:
        """Add a mistake. `path` leads from the file's top; `key`: point at the key, not the value.

        `number`: point at this placeholder of the text there, where it can be found. `at`: the
        place itself, where it is known. `entry`: of `jobs:`, one for which a default is wrong.
        """
        if len(path) > 1 and path[0] == "defaults" and (word := self.typed.get(str(path[1]))):
            self.add_at(_NOWHERE, f"--default {word}: {message}", entry=entry)
            return
        if not key and (hint := self._hint(path)):
            message = f"{message}; {hint}"
        at = self.root.find(path, key) if at is None else at
        if number is not None:
            at = self.inside(at, PLACEHOLDER, number)
        shown = _SECRET.isdisjoint(path)
        steps = self.root.within(path)
        field = _in_list(steps) if self.source.is_list else spell(steps)
        self.add_at(at, message, field, shown, entry)

    def _hint(self, path: Path) -> str:
        """Return that the text at `path` holds what only a shell expands; empty if it does not."""
        path = self.root.within(path)
        fields = path[2:] if path[:1] == ("jobs",) else path[1:]
        node = node_at(self.root, path) if fields and fields != ("run",) else None
        if node is None or not isinstance(node.value, str):
            return ""
        key = str(fields[1]) if len(fields) > 1 and isinstance(fields[1], str) else ""
        return ": ".join(not_expanded(node.value, str(fields[0]), key) or ())

    def add_bad(self, path: Path, bad: FieldError, entry: int | None = None) -> None:
        """Add `bad` and the errors that it holds, for the field at `path`; `entry`: as in `add`."""
        for one in bad.each():
            steps = *path, *one.path
            self.add(steps, one.message, key=one.key, number=one.number, entry=entry)

    def inside(self, at: int, pattern: re.Pattern[str], number: int) -> int:
        """Return the place of the pattern's n-th match in the text at `at`, if that is certain.

        Text is not where it stands in the file when it comes from an alias.
        """
        line, column = place(at)
        lines = self.source.lines[line : line + _MAX_TEXT_CHARACTERS]
        if not lines or lines[0].startswith("*", column):
            return at
        for i, text in enumerate(lines):
            for match in pattern.finditer(text, 0 if i else column):
                if not number:
                    return place_at(line + i, match.start())
                number -= 1
        return at

    def add_at(
        self,
        at: int,
        message: str,
        field: str = "",
        shown: bool = True,
        entry: int | None = None,
    ) -> None:
        """Record a mistake at a place; `shown`: with the line and a caret."""
        self._kept[at, field, message] = shown
        if entry is not None:
            self._entries.setdefault((at, field, message), {})[entry] = None
        if self.count >= _MAX_MISTAKES:
            self.raise_if_any()

    @property
    def count(self) -> int:
        return len(self._kept)

    def found(self) -> list[Mistake]:
        """Return the first MAX_MISTAKES_SHOWN mistakes, in the file's order, and how many more."""
        kept = sorted(self._kept, key=lambda kept: kept[0])
        found = [self._mistake(one) for one in kept[:MAX_MISTAKES_SHOWN]]
        if len(kept) > MAX_MISTAKES_SHOWN:
            least = "at least " if self.count >= _MAX_MISTAKES else ""
            more = f"and {least}{len(kept) - MAX_MISTAKES_SHOWN:,} more mistakes"
            name = self.source.name
            found.append(Mistake(f"{name}: {more}", more, name))
        return found

    def _mistake(self, kept: _Kept) -> Mistake:
        at, field, message = kept
        message += self._whose(kept)
        if at == _NOWHERE:
            return Mistake(message, message)
        return self.source.mistake(*place(at), message, field, self._kept[kept])

    def _whose(self, kept: _Kept) -> str:
        """Return for which jobs a default is wrong, where it is not for all of them."""
        entries, jobs = self._entries.get(kept), node_at(self.root, ("jobs",))
        if not entries or jobs is None or len(entries) == len(jobs.value or ()):
            return ""
        first, more = next(iter(entries)), len(entries) - 1
        line = f"line {place(self.root.find(('jobs', first)))[0] + 1}"
        which = line if self.source.is_list else f"jobs[{first}] in {line}"
        return f" (for {which}{f' and {more:,} more' if more else ''})"

    def raise_if_any(self) -> None:
        if self.count:
            raise JobFileError(self.found())


def _in_list(path: Path) -> str:
    """Return the field of a list's command; none for the command itself: the line leads to it."""
    return spell(path[2:] if path[:1] == ("jobs",) else path).removeprefix("run")


def spell(path: Path) -> str:
    """Return a path in words: `jobs[3].env.A` for ("jobs", 3, "env", "A"); "" for the file."""
    out = ""
    for step in path:
        if isinstance(step, int):
            out += f"[{step}]"
        else:
            out += f".{step}" if out else step
    return out
