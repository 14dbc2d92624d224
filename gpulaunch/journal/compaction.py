"""Makes a shorter journal beside the one that is being written, and the history of what it lacks.

    events.jsonl ──┬─▶ .events-…                 the journal to come, up to where it was read
                   └─▶ history/0001-….{jsonl.gz,jobs}

A process of its own does this (`main`): to read and write tens of thousands of facts takes seconds.
Nothing that counts is changed here: the supervisor puts the draft in the journal's place
(`Journal.go_on_in`), and with it the history's files begin to count. Until then all of it is the
remains of nothing.
"""

from __future__ import annotations

import gzip
import json
import os
import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from msgspec import Struct
from msgspec.structs import asdict

from gpulaunch.core import facts as f
from gpulaunch.core.ledger import Ledger
from gpulaunch.core.model import Instant
from gpulaunch.core.records import GpuRecord
from gpulaunch.errors import GpulaunchError
from gpulaunch.farside.shared import sync
from gpulaunch.files import regular
from gpulaunch.journal import codec
from gpulaunch.journal.append import ShorterJournal
from gpulaunch.journal.history import FACTS, NAMES, new_stem, row
from gpulaunch.journal.lines import Splitter
from gpulaunch.journal.read import fold
from gpulaunch.journal.rundir import RunDir
from gpulaunch.journal.thinning import Thinning

DRAFT_NAME = ".events-"
NICER_BY = 10

Step = Callable[[str], object]
"""Called with each step's name once that is done; tests die there."""


class CannotCompactError(GpulaunchError):
    """The journal stays as it is; the text says why. Trying again changes nothing."""


class _Line(Struct, frozen=True):
    fact: f.Fact
    at: Instant
    text: bytes


def compact(
    run: RunDir, size: int, names: Collection[str], step: Step = lambda name: None
) -> ShorterJournal:
    """Write the draft of a journal without these jobs, and their history; return it.

    `size`: bytes of the present journal that count. Raises CannotCompactError where that is
    damaged, or where the draft does not say the same; OSError where something cannot be written.
    """
    archived = frozenset(names)
    lines, whole = _read(run.events, size)
    _sweep(run, whole.history)
    if unknown := archived - whole.jobs.keys():
        raise CannotCompactError(f"the journal does not know {min(unknown)}")
    thinning = Thinning.of([line.fact for line in lines], whole, archived)
    stem = new_stem(len(whole.history) + 1)
    kept, gone = _divided(lines, thinning)
    kept.insert(1, _compacted(lines, len(kept) + 1, thinning, stem))
    _verify(kept, gone, whole, archived)
    draft = run.path / f"{DRAFT_NAME}{os.urandom(6).hex()}"
    run.history.mkdir(mode=0o700, exist_ok=True)
    undo = [draft, run.history / f"{stem}{FACTS}", run.history / f"{stem}{NAMES}"]
    try:
        _write(undo[1], gone, packed=True)
        step("history")
        over = [(job.name, job.state) for job in whole.jobs.values() if job.name in archived]
        _write_names(undo[2], over)
        step("names")
        sync(os.fsencode(run.history))
        _write(draft, kept)
        step("draft")
    except BaseException:
        for path in undo:
            with suppress(OSError):
                path.unlink()
        raise
    return ShorterJournal(str(draft), stem, size, len(lines), len(kept))


def _sweep(run: RunDir, history: Collection[str]) -> None:
    """Remove the files of earlier compactions of which nothing came."""
    for entry in (*run.path.glob(f"{DRAFT_NAME}*"), *run.history.glob("*")):
        if entry.name.partition(".")[0] not in history:
            with suppress(OSError):
                entry.unlink()


def _read(path: Path, size: int) -> tuple[list[_Line], Ledger]:
    found: list[_Line] = []

    def parse(text: bytes) -> tuple[int, _Line]:
        read = codec.decode(text)
        return read.number, _Line(read.fact, read.at, text)

    splitter: Splitter[_Line] = Splitter(parse)
    with open(path, "rb", opener=regular) as file:
        left = size
        while left and (data := file.read(min(left, 1 << 20))):
            left -= len(data)
            found += [line for line, _ in splitter.feed(data)]
    splitter.finish()
    if splitter.faults or left:
        raise CannotCompactError(f"{path} is damaged, and stays as it is")
    whole = Ledger()
    for number, line in enumerate(found, 1):
        fold(whole, line.fact, line.at, f"{path}: line {number}")
    if not found or not isinstance(found[0].fact, f.RunOpened):
        raise CannotCompactError(f"{path} does not begin with the opening of its run")
    return found, whole


def _divided(lines: Sequence[_Line], thinning: Thinning) -> tuple[list[_Line], list[_Line]]:
    kept, gone = [], []
    for index, line in enumerate(lines):
        here, there = thinning.divide(index, line.fact)
        if here is not None:
            kept.append(line if here is line.fact else _Line(here, line.at, b""))
        if there is not None:
            gone.append(line if there is line.fact else _Line(there, line.at, b""))
    return kept, gone


def _compacted(lines: Sequence[_Line], kept: int, thinning: Thinning, stem: str) -> _Line:
    """Return the line that tells of the compaction. `kept`: those of the new journal, with it."""
    whole, names = thinning.whole, thinning.archived
    counted = Counter(whole.archived)
    counted.update(whole.jobs[name].state for name in names)
    failed = [
        line.fact.name
        for line in lines
        if isinstance(line.fact, f.JobSettled)
        and line.fact.name in names
        and line.fact.state != "succeeded"
    ]
    newest = failed[-1] if failed else whole.archived_failure
    history = (*whole.history, stem)
    by_state = {str(end): count for end, count in counted.items()}
    since = lines[thinning.horizon].at.utc
    fact = f.JournalCompacted(len(lines), kept, history, since, by_state, newest)
    return _Line(fact, lines[-1].at, b"")


def _verify(
    kept: Sequence[_Line], gone: Sequence[_Line], whole: Ledger, archived: Collection[str]
) -> None:
    """Raise CannotCompactError unless both files together say what the journal says."""
    anew, history = Ledger(), Ledger()
    for ledger, lines in ((anew, kept), (history, gone)):
        for line in lines:
            fold(ledger, line.fact, line.at, "the compacted journal")
    jobs = {name: job for name, job in whole.jobs.items() if name not in archived}
    over = {name: job for name, job in whole.jobs.items() if name in archived}
    settings = {name: told for name, told in whole.settings.items() if name in jobs}
    same = (
        list(anew.jobs.items()) == list(jobs.items())
        and history.jobs == over
        and +anew.counts == +whole.counts
        and anew.vanished == whole.vanished
        and anew.settings == settings
        and _own(anew) == _own(whole)
        and _of_run(anew) == _of_run(whole)
    )
    if not same:
        raise CannotCompactError("a shorter journal would not say the same (a fault of gpulaunch)")


def _own(ledger: Ledger) -> dict[str, GpuRecord]:
    return {uuid: card for uuid, card in ledger.gpus.items() if not card.gpu.node}


def _of_run(ledger: Ledger) -> tuple[object, ...]:
    return (
        ledger.opening,
        ledger.state,
        ledger.reason,
        ledger.opened,
        ledger.taken,
        ledger.closed,
        ledger.exit_status,
        ledger.pauses,
        ledger.stopping,
        ledger.complete,
        ledger.images,
    )


def _write(path: Path, lines: Sequence[_Line], packed: bool = False) -> None:
    data = b"".join(_numbered(lines))
    with _new(path) as raw:
        raw.write(gzip.compress(data, compresslevel=6, mtime=0) if packed else data)
        raw.flush()
        os.fsync(raw.fileno())


def _write_names(path: Path, jobs: Sequence[tuple[str, str]]) -> None:
    with _new(path) as raw:
        raw.writelines(row(name, state) for name, state in jobs)
        raw.flush()
        os.fsync(raw.fileno())


def _new(path: Path) -> BinaryIO:
    return open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb")


def _numbered(lines: Sequence[_Line]) -> Iterator[bytes]:
    for number, line in enumerate(lines, 1):
        if line.text:
            yield codec.renumbered(line.text, number)
        else:
            yield codec.encode(number, line.fact, line.at)


def main() -> None:
    """Compact the journal that standard input tells of, and print the draft, or why there is none.

    The directory of the run is the last argument but one.
    """
    os.nice(NICER_BY)
    asked = json.load(sys.stdin)
    try:
        draft = compact(RunDir(Path(sys.argv[-2])), asked["size"], asked["names"])
        told: dict[str, object] = asdict(draft)
    except OSError as error:
        told = {"failed": error.strerror or str(error)}
    except GpulaunchError as error:
        told = {"refused": str(error)}
    except MemoryError:
        told = {"failed": "there is not enough memory"}
    sys.stdout.write(json.dumps(told))
    sys.stdout.flush()
    os._exit(0)
