"""What tests cost, in seconds: measured in every run, recorded, and held to the record.

`durations.json` is the record of a run of everything on two quiet cores:

    GPULAUNCH_TEST_DURATIONS=write pytest -n 2 tests

For each file: processor time (of its tests and of the processes they waited for) and time by the
clock, of what a plain `pytest` runs and of the rest; and the names of the slow tests. Slow is what
took more than 0.7 seconds by the clock, with all its parameters; the quickest of a file never is. A
plain `pytest` leaves the slow ones out, and what takes a cluster, which is not measured.

What was skipped there (what takes a card, or the examples' torch: GPULAUNCH_TEST_REAL=1) has no
record and is held to none; its names are kept. A fixture of the whole session, such as a container
engine that many files use, is ended in whichever file comes last, and what it took is no file's.

A busy machine stretches the clock and hardly processor time, so that alone is held to the record,
and with room: a file over twice its record and five seconds is named at the end of a run. That
fails nothing: the machine may be slower than the one of the record.
"""

from __future__ import annotations

import json
import os
import resource
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import pytest

from tests.cli.warm import WARM

RECORD = Path(__file__).with_name("durations.json")
SLOW = 0.7
FACTOR, ALLOWANCE = 2.0, 5.0
Seconds = tuple[float, float]
"""Of processor time; by the clock."""
_COST = "seconds"
_BEGUN = pytest.StashKey[Seconds]()
_SKIPPED = pytest.StashKey[bool]()


@dataclass(frozen=True)
class Cost:
    """One file's: what a plain `pytest` runs, the rest, which those are, and what was skipped."""

    plain: Seconds = (0.0, 0.0)
    rest: Seconds = (0.0, 0.0)
    slow: tuple[str, ...] = ()
    skipped: tuple[str, ...] = ()

    @property
    def clock(self) -> float:
        return self.plain[1] + self.rest[1]


def recorded() -> dict[str, Cost]:
    """The record, by file; a file that is not in it has cost nothing yet."""
    found = json.loads(RECORD.read_text()).items()
    return defaultdict(Cost, {file: Cost(**cost) for file, cost in found})


def cost(tests: Mapping[str, Seconds], skipped: Iterable[str] = ()) -> Cost:
    """A file's cost, of what each of its tests has cost; one that ran in part was not skipped."""
    quickest = min(tests, key=lambda name: tests[name][1], default="")
    slow = {name for name, spent in tests.items() if spent[1] > SLOW and name != quickest}
    return Cost(
        _sum(spent for name, spent in tests.items() if name not in slow),
        _sum(spent for name, spent in tests.items() if name in slow),
        tuple(sorted(slow)),
        tuple(sorted({*skipped} - tests.keys())),
    )


def _sum(all_spent: Iterable[Seconds]) -> Seconds:
    processor, clock = zip((0.0, 0.0), *all_spent, strict=True)
    return round(sum(processor), 2), round(sum(clock), 2)


def _used() -> Seconds:
    both = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in both) + WARM.processor, time.monotonic()


def _less(seconds: Seconds, other: Seconds) -> Seconds:
    return seconds[0] - other[0], seconds[1] - other[1]


class Durations:
    """Measures each test where it runs, and adds up where the reports come together."""

    def __init__(self) -> None:
        self._spent: dict[str, dict[str, Seconds]] = defaultdict(dict)
        self._skipped: dict[str, set[str]] = defaultdict(set)
        self._ends: dict[pytest.FixtureDef[object], Seconds] = {}
        self._of_no_file: Seconds = (0.0, 0.0)

    def _now(self) -> Seconds:
        return _less(_used(), self._of_no_file)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        item.stash[_BEGUN] = self._now()
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[object]) -> Iterator[object]:
        made = yield
        if fixturedef.scope == "session":  # of its finalizers, the last that is added runs first
            fixturedef.addfinalizer(lambda: self._ends.update({fixturedef: _used()}))
        return made

    def pytest_fixture_post_finalizer(self, fixturedef: pytest.FixtureDef[object]) -> None:
        if begun := self._ends.pop(fixturedef, None):
            self._of_no_file = _sum([self._of_no_file, _less(_used(), begun)])

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Iterator[None]:
        report = yield
        if report.skipped:
            item.stash[_SKIPPED] = True
        if call.when == "teardown" and not item.get_closest_marker("cluster"):
            spent = None if _SKIPPED in item.stash else _less(self._now(), item.stash[_BEGUN])
            report.user_properties.append((_COST, spent))
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        for kind, spent in report.user_properties:
            if kind == _COST and report.when == "teardown":
                file, _, test = report.nodeid.partition("::")
                test = test.partition("[")[0]
                if spent is None:
                    self._skipped[file].add(test)
                else:
                    self._spent[file][test] = _sum([self._spent[file].get(test, (0.0, 0.0)), spent])

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if hasattr(session.config, "workerinput"):
            return
        if os.environ.get("GPULAUNCH_TEST_DURATIONS") == "write":
            self._write()

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if beyond := self._beyond():
            terminalreporter.section("beyond twice their record in tests/durations.json")
            terminalreporter.write_line("\n".join(beyond))

    def _beyond(self) -> list[str]:
        """A line for each file that took more than it may."""
        record, found = recorded(), []
        for file, tests in sorted(self._spent.items()):
            known = record[file]
            held = {name: spent for name, spent in tests.items() if name not in known.skipped}
            all_of_it = any(test in known.slow for test in held)
            spent = _sum(held.values())[0]
            budget = FACTOR * (known.plain[0] + known.rest[0] * all_of_it) + ALLOWANCE
            if spent > budget:
                found.append(f"{file}: {spent:.1f} s of processor time; {budget:.1f} s are allowed")
        return found

    def _write(self) -> None:
        """Take over what was measured; other files' records stay while the files do."""
        record = recorded()
        for file in self._spent.keys() | self._skipped.keys():
            record[file] = cost(self._spent[file], self._skipped[file])
        there = [file for file in sorted(record) if (RECORD.parents[1] / file).exists()]
        lines = [f"  {json.dumps(file)}: {json.dumps(_written(record[file]))}" for file in there]
        RECORD.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def _written(known: Cost) -> dict[str, object]:
    """The cost as JSON has it; what was skipped stands where anything was."""
    return {name: value for name, value in asdict(known).items() if name != "skipped" or value}
