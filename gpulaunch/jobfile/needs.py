"""Resolves `needs` and `after`: patterns to names of jobs, and the search for cycles.

Names are exact first; a pattern with * ? or [ in what was typed is a glob over all expanded names.
What an item brought in matches literally. A glob never means the job itself.

100,000 jobs that wait for one group share one tuple of names; the search for cycles therefore
goes job -> tuple -> jobs, and looks at each tuple once.
"""

from __future__ import annotations

import fnmatch
import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import chain
from typing import TypeAlias

from msgspec import Struct, field

from gpulaunch.core.template import Text, literals, parts_of
from gpulaunch.jobfile.mistakes import FieldError, converted
from gpulaunch.jobfile.placeholders import compile_raw, insert
from gpulaunch.jobfile.suggest import did_you_mean

MAX_EDGES = 20_000_000
_MAGIC = re.compile(r"[*?[]")
_SUGGEST_FROM = 5000
_SUGGESTIONS = 50
_STEPS_AFTER_A_CYCLE = 1_000_000

Names: TypeAlias = tuple[str, ...]


class Pattern(Struct, frozen=True):
    """A name to look for, and the glob to use where no job has exactly that name."""

    name: str
    glob: str | None


def pattern_of(text: Text, values: Mapping[str, str], clean: Callable[[str], str]) -> Pattern:
    """Return the pattern of a text filled by an item; `clean` is what names do to values."""
    if isinstance(text, str):
        return Pattern(text, text if _MAGIC.search(text) else None)
    name = insert(text, values, clean)
    if not any(map(_MAGIC.search, literals(text))):
        return Pattern(name, None)
    return Pattern(name, insert(text, values, lambda value: escape(clean(value))))


class NameShape(Struct, frozen=True):
    """The names that an entry's unknown jobs may have: how they start, and a pattern of all."""

    head: str
    whole: re.Pattern[str]

    def may_be(self, pattern: Pattern) -> bool:
        """Tell whether a pattern may mean such a job; a glob is judged by its start alone."""
        if self.whole.fullmatch(pattern.name):
            return True
        if pattern.glob is None:
            return False
        head = _MAGIC.split(pattern.glob, maxsplit=1)[0]
        return head.startswith(self.head) or self.head.startswith(head)


def shape_of(typed: object, expands: bool, group: int) -> NameShape:
    """Return the shape of the names that an entry's `name:`, as typed, makes."""
    given = typed if isinstance(typed, str) and typed else None
    text = compile_raw(given or ("job" if expands else f"job-{group + 1}"))
    parts = parts_of(text)
    whole = "".join(re.escape(part) if isinstance(part, str) else ".*" for part in parts)
    if isinstance(text, str) and expands:
        whole += "(-.*)?"
    return NameShape(parts[0] if isinstance(parts[0], str) else "", re.compile(whole, re.DOTALL))


def escape(value: str) -> str:
    """Return a glob that matches `value` alone."""
    return _MAGIC.sub(lambda match: f"[{match.group()}]", value)


class Index(Struct, dict=True):
    """All names of jobs, and what globs found among them."""

    names: Collection[str]
    found: dict[str, Names] = field(default_factory=dict)
    suggested: dict[str, str] = field(default_factory=dict)

    @cached_property
    def ordered(self) -> list[str]:
        return sorted(self.names)

    @cached_property
    def backwards(self) -> list[str]:
        return sorted(name[::-1] for name in self.names)

    def match(self, pattern: Pattern) -> Names:
        """Return the names that match, in the file's order."""
        if pattern.name in self.names:
            return (pattern.name,)
        if pattern.glob is None:
            return ()
        if pattern.glob not in self.found:
            self.found[pattern.glob] = self._search(pattern.glob)
        return self.found[pattern.glob]

    def _search(self, glob: str) -> Names:
        matches = re.compile(fnmatch.translate(glob)).match
        near = self._near(glob)
        hits = [name for name in near if matches(name)]
        if near is self.names or len(hits) < 2:
            return tuple(hits)
        chosen = set(hits)
        if len(hits) > len(self.names) // 20:
            return tuple(name for name in self.names if name in chosen)
        return tuple(sorted(hits, key=self._position.__getitem__))

    @cached_property
    def _position(self) -> dict[str, int]:
        return {name: i for i, name in enumerate(self.names)}

    def _near(self, glob: str) -> Iterable[str]:
        """Return names that share the glob's literal start, or end."""
        head = _MAGIC.split(glob, maxsplit=1)[0]
        tail = re.split(r"[*?\]]", glob)[-1]
        if head:
            return self._between(self.ordered, head)
        if tail:
            return [name[::-1] for name in self._between(self.backwards, tail[::-1])]
        return self.names

    @staticmethod
    def _between(ordered: list[str], head: str) -> list[str]:
        return ordered[bisect_left(ordered, head) : bisect_right(ordered, head + "\U0010ffff")]

    def suggest(self, name: str) -> str:
        """Return the nearest name. Costly: only for the first few mistakes of a large file."""
        if name not in self.suggested:
            if len(self.suggested) >= _SUGGESTIONS or len(self.names) > _SUGGEST_FROM:
                return ""
            self.suggested[name] = did_you_mean(name, self.names)
        return self.suggested[name]


class Joined(Collection[str]):
    """Names of jobs, and the `others` of a live run: looked up one by one, or all listed."""

    def __init__(self, own: Mapping[str, object], others: Collection[str]) -> None:
        self._own = own
        self._others = others

    def __contains__(self, name: object) -> bool:
        return name in self._own or name in self._others

    def __iter__(self) -> Iterator[str]:
        return chain((name for name in self._others if name not in self._own), self._own)

    def __len__(self) -> int:
        return len(self._own) + len(self._others)


class Resolver:
    """Turns each job's patterns into names; equal results are one tuple."""

    def __init__(self, index: Index, shapes: Sequence[NameShape] = ()) -> None:
        self.index = index
        self.shapes = shapes
        self.edges = 0
        self._interned: dict[Names, Names] = {}
        self._resolved: dict[tuple[Pattern, ...], Names] = {}
        self._sets: dict[str, frozenset[str]] = {}
        self._selves: dict[str, str] = {}
        self._told: set[str] = set()

    def names(self, job: str, patterns: tuple[Pattern, ...]) -> Names:
        """Return the names that `job` waits for. Raises FieldError."""
        known = self._resolved.get(patterns)
        if known is None:
            known = self._all(patterns)
            if any(pattern.glob for pattern in patterns):
                self._resolved[patterns] = known
        return self._without_itself(job, patterns, known)

    def matching(self, job: str, patterns: tuple[Pattern, ...]) -> Names:
        """Return the names that those patterns match that are right, to look for cycles.

        A pattern that matches `job` itself has been reported.
        """
        right = [one for one in patterns if not self._matches(job, one)]
        return tuple(dict.fromkeys(name for one in right for name in self.index.match(one)))

    def intern(self, names: Names) -> Names:
        same = self._interned.setdefault(names, names)
        if same is names:
            self.edges += len(names)
            if self.edges > MAX_EDGES:
                raise FieldError(
                    f"more than {MAX_EDGES:,} single needs in this file; let the many wait for"
                    " one job that needs the others"
                )
        return same

    def _all(self, patterns: tuple[Pattern, ...]) -> Names:
        found = converted(self._some, patterns)
        alone = len(found) == 1
        return self.intern(found[0] if alone else tuple(dict.fromkeys(chain.from_iterable(found))))

    def _some(self, pattern: Pattern) -> Names:
        matches = self.index.match(pattern)
        if matches or any(shape.may_be(pattern) for shape in self.shapes):
            return matches
        if pattern.glob is not None:
            raise FieldError(f"{pattern.name} matches no job's name")
        raise FieldError(f"there is no job {pattern.name}{self.index.suggest(pattern.name)}")

    def _without_itself(self, job: str, patterns: tuple[Pattern, ...], known: Names) -> Names:
        inside = [pattern for pattern in patterns if self._matches(job, pattern)]
        if not inside:
            return known
        for pattern in inside:
            if pattern.name == job or pattern.glob is None:
                raise FieldError(f"{job} waits for itself", (patterns.index(pattern),))
            first = self._selves.setdefault(pattern.glob, job)
            if first != job and pattern.glob not in self._told:
                self._told.add(pattern.glob)
                raise FieldError(
                    f"a cycle: {first} -> {job} -> {first}: {pattern.name} matches both,"
                    " and both wait for it"
                )
            if first != job:
                return ()
        others = tuple(name for name in known if name != job)
        if not others and not any(shape.may_be(inside[0]) for shape in self.shapes):
            raise FieldError(f"{inside[0].name} matches no other job's name than its own")
        return self.intern(others)

    def _matches(self, job: str, pattern: Pattern) -> bool:
        if pattern.name in self.index.names:
            return pattern.name == job
        if pattern.glob is None:
            return False
        if pattern.glob not in self._sets:
            self._sets[pattern.glob] = frozenset(self.index.match(pattern))
        return job in self._sets[pattern.glob]


def find_cycles(waits: Mapping[str, Sequence[Names]]) -> Iterator[list[str]]:
    """Yield cycles `[a, b, a]`, at least one wherever jobs wait for each other.

    `waits`: job -> tuples of the names it waits for; others wait for nothing. Once one was found,
    the search has an end: where thousands wait for each other, there are more edges than anybody
    can look at.
    """
    done: set[str] = set()
    done_tuples: set[int] = set()
    told: set[str] = set()
    budget = _STEPS_AFTER_A_CYCLE
    for start in waits:
        if start in done:
            continue
        path = {start: 0}
        stack = [_steps(waits, start, done_tuples)]
        while stack and budget:
            following = next(stack[-1], None)
            budget -= bool(told)
            if following is None:
                stack.pop()
                last, _ = path.popitem()
                done.add(last)
            elif following in path:
                if following not in told or next(reversed(path)) not in told:
                    cycle = list(path)[path[following] :]
                    told.update(cycle)
                    yield [*cycle, following]
            elif following not in done:
                path[following] = len(path)
                stack.append(_steps(waits, following, done_tuples))


def _steps(waits: Mapping[str, Sequence[Names]], job: str, done: set[int]) -> Iterator[str]:
    """Yield the jobs that a job waits for, without tuples that were searched to their end.

    A tuple is done only when all of it was visited; a job met meanwhile that has the same tuple
    visits it again, but then everything in it is done or closes a cycle.
    """
    for names in waits.get(job, ()):
        if id(names) not in done:
            yield from names
            done.add(id(names))


def spell_cycle(cycle: Sequence[str]) -> str:
    if len(cycle) > 12:
        return " -> ".join([*cycle[:6], f"({len(cycle) - 11} more)", *cycle[-5:]])
    return " -> ".join(cycle)
