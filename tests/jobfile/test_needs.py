"""Patterns to names, and cycles, against slow and obvious ways to find them."""

from __future__ import annotations

import fnmatch
import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from gpulaunch.jobfile.needs import Index, Pattern, escape, find_cycles, spell_cycle

names = st.text("ab-[]*?", min_size=1, max_size=4)


@settings(max_examples=300)
@given(st.lists(names, unique=True), names)
def test_globs_find_what_fnmatch_finds_in_the_files_order(found: list[str], glob: str) -> None:
    index = Index(dict.fromkeys(found))
    if glob in found:
        assert index.match(Pattern(glob, glob)) == (glob,)
    else:
        expected = tuple(name for name in found if fnmatch.fnmatchcase(name, glob))
        assert index.match(Pattern(glob, glob)) == expected


@given(names, names)
def test_an_escaped_value_matches_itself_alone(value: str, other: str) -> None:
    assert fnmatch.fnmatchcase(value, escape(value))
    assert fnmatch.fnmatchcase(other, escape(value)) == (other == value)


graphs = st.integers(1, 7).flatmap(
    lambda count: st.lists(
        st.lists(st.lists(st.integers(0, count - 1), max_size=3), max_size=2),
        min_size=count,
        max_size=count,
    )
)


def reaches_itself(graph: dict[str, list[tuple[str, ...]]], start: str) -> bool:
    return reaches(graph, start, start)


def reaches(graph: dict[str, list[tuple[str, ...]]], start: str, end: str) -> bool:
    seen: set[str] = set()
    queue = [name for names in graph[start] for name in names]
    while queue:
        name = queue.pop()
        if name not in seen:
            seen.add(name)
            queue += [other for names in graph[name] for other in names]
    return end in seen


@settings(max_examples=500)
@given(graphs)
def test_a_cycle_is_found_when_and_only_when_there_is_one(numbers: list[list[list[int]]]) -> None:
    shared: dict[tuple[str, ...], tuple[str, ...]] = {}
    graph = {
        str(job): [
            shared.setdefault(names, names)
            for names in (tuple(str(other) for other in group) for group in groups)
        ]
        for job, groups in enumerate(numbers)
    }
    cycles = list(find_cycles(graph))
    waiting = {job for job in graph if reaches_itself(graph, job)}
    assert bool(cycles) == bool(waiting)
    for cycle in cycles:
        assert cycle[0] == cycle[-1]
        for job, following in itertools.pairwise(cycle):
            assert any(following in names for names in graph[job])
    # One at least in every knot.
    found = {job for cycle in cycles for job in cycle}
    for job in waiting:
        knot = {
            other for other in waiting if reaches(graph, job, other) and reaches(graph, other, job)
        }
        assert knot & found


def test_a_long_cycle_is_shortened() -> None:
    assert spell_cycle(["a", "b", "a"]) == "a -> b -> a"
    long = spell_cycle([str(i) for i in range(100)])
    assert long == "0 -> 1 -> 2 -> 3 -> 4 -> 5 -> (89 more) -> 95 -> 96 -> 97 -> 98 -> 99"
