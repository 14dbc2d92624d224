"""A run's directory becomes its report: one file, without a network.

Replaces the file in one step, so that a reader has the old one or the new one, whole. The ends of
logs that it carries are bounded in lines, in number and in all, failures first: what is left out is
a link away. The plotting library, the script and the style stand in it, and a content security
policy lets nothing else run, whatever a log or a job's name may hold.
"""

from __future__ import annotations

import math
import os
import select
import sys
import time
from base64 import b64encode
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext, suppress
from datetime import datetime, timedelta, timezone
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias
from urllib.parse import quote

from gpulaunch import __version__
from gpulaunch.base.commit import with_commit
from gpulaunch.base.errors import GpulaunchError, UsageError
from gpulaunch.base.files import replace as replace_file
from gpulaunch.base.text import clock, shell_words, size
from gpulaunch.core.ledger import AttemptRecord
from gpulaunch.core.model import AttemptId, Gpu, RunState
from gpulaunch.journal.codec import now
from gpulaunch.journal.liveness import state_of
from gpulaunch.journal.manifest import Manifest
from gpulaunch.journal.read import Fault, Follower
from gpulaunch.journal.rundir import RunDir
from gpulaunch.observe.metrics.model import NOTHING, Measured
from gpulaunch.observe.metrics.read import open_metrics
from gpulaunch.observe.present import words
from gpulaunch.observe.present.summary import next_command
from gpulaunch.observe.present.tail import read_tail
from gpulaunch.observe.present.usage import untouched
from gpulaunch.observe.report.cards import curves
from gpulaunch.observe.report.drawing import (
    MAX_COLUMNS,
    MAX_ROWS,
    card_name,
    drawing,
    percent,
    results_of,
)
from gpulaunch.observe.report.fold import (
    Period,
    RunHistory,
    begin,
    finish,
    period,
    read_history,
    spans,
)
from gpulaunch.observe.report.model import Page, ReportData, ResultsOfRun
from gpulaunch.observe.report.page import page
from gpulaunch.observe.results.gathering import DEFAULT_FILE, Gathered, gather

if TYPE_CHECKING:
    from jinja2 import Template


LINES = 12
FAILED_WINDOW = 64 * 1024
WINDOW = 4 * 1024
"""Bytes of a log's end that are read: more where something went wrong."""
LOGS = 2000
CHARACTERS = 1 << 20
"""Of so many logs, and so many characters in all."""

RESULTS_SECONDS = 10.0
"""Seconds for which a run's end waits for the files that its jobs left: they may lie far away."""

READ_EVERY = 0.1
"""Seconds between two looks at the journal of a run that goes on."""

ReadTail: TypeAlias = Callable[[AttemptId, int, int], Sequence[str]]
"""The last lines of an attempt's log: at most so many, from so many bytes at its end."""


def tails(
    attempts: Iterable[AttemptRecord], when: Period, read: ReadTail
) -> dict[AttemptId, tuple[str, ...]]:
    """Return the ends of logs, as many as the limits allow: failures first, then the longest."""
    found: dict[AttemptId, tuple[str, ...]] = {}
    left = CHARACTERS
    for attempt in sorted(attempts, key=lambda one: _rank(one, when))[:LOGS]:
        window = WINDOW if attempt.state == "succeeded" else FAILED_WINDOW
        lines = tuple(read(attempt.id, LINES, window))
        left -= sum(map(len, lines))
        if left < 0:
            break
        if lines:
            found[attempt.id] = lines
    return found


def _rank(attempt: AttemptRecord, when: Period) -> tuple[int, float]:
    kind = 0 if attempt.failure else 1 if attempt.state != "succeeded" else 2
    return kind, begin(attempt) - finish(attempt, when)


def write(
    run: RunDir,
    output: Path | None = None,
    over: bool = False,
    faults: list[Fault] | None = None,
    history: RunHistory | None = None,
    files: Sequence[str] = (DEFAULT_FILE,),
) -> Path:
    """Write the run's report as it stands now; returns where it is. `over`: it has ended, though
    its supervisor is still there and the journal may not say so. `faults` gets what that lacks.
    `history`: what its journal says, where that is known already. `files`: those of jobs' results.

    Raises UsageError where there is no run or the file cannot be written, DamagedJournalError.
    """
    target = Path(os.path.abspath(output or run.report))
    state = state_of(run)
    if over and state == "running":
        state = "interrupted"
    text = report(
        run,
        state,
        now().utc,
        target.parent,
        faults=faults,
        history=history,
        files=files,
        patience=RESULTS_SECONDS if over else None,
    )
    _replace(target, text.encode())
    return target


def report(
    run: RunDir,
    state: RunState,
    at: float,
    beside: Path | None = None,
    zone: timezone | None = None,
    faults: list[Fault] | None = None,
    history: RunHistory | None = None,
    files: Sequence[str] = (DEFAULT_FILE,),
    patience: float | None = None,
) -> str:
    """Return the page. `at`: now, seconds since 1970 (UTC); `beside`: where it will lie.

    `files`: those in jobs' `{{out}}` that hold their results; `patience`: seconds to look for them.
    """
    history = history or read_history(run, faults)
    with open_metrics(run.metrics) or nullcontext() as reader:
        if state == "interrupted":
            history.cut_off(run)
        when = period(history, state, at, reader.last_seen() if reader else None)
        used = reader.measured() if reader else NOTHING
        drawn = curves(reader, history, when) if reader else {}
    zone = zone or _zone(when.start)
    address = _address(run.logs, beside or run.path)
    below = _address(run.keeps, beside or run.path)
    keeps = {name: below + quote(os.fsencode(name)) for name in _names(run.keeps)}
    ends = tails(history.attempts_by_job(), when, lambda who, *how: _tail(run, who, *how))
    logs = {who: address + quote(os.fsencode(run.log(who).name)) for who in ends}
    known = spans(history, when), used.uses, drawn, ends, used.energy
    came_to = _results(run, history, when, used, files, patience)
    data = ReportData(history, when, *known, tuple(untouched(history.ledger, used)), came_to)
    go_on = next_command(when.state, history.ledger, os.fspath(run.path))
    told = page(data, logs, manifest_rows(run, history), go_on, keeps)
    return render(told, drawing(data, zone.utcoffset(None).total_seconds(), address), zone)


def _results(
    run: RunDir,
    history: RunHistory,
    when: Period,
    used: Measured,
    files: Sequence[str],
    patience: float | None,
) -> ResultsOfRun | None:
    gathered = Gathered(max_rows=MAX_ROWS, max_columns=MAX_COLUMNS)
    end = math.inf if patience is None else time.monotonic() + patience
    ledger = history.ledger
    gather(gathered, run, ledger, used, files, in_time=lambda: time.monotonic() < end)
    return results_of(gathered, when)


def _address(directory: Path, beside: Path) -> str:
    return quote(os.fsencode(os.path.relpath(directory, beside))) + "/"


def _names(directory: Path) -> list[str]:
    try:
        return os.listdir(directory)
    except OSError:
        return []


def _tail(run: RunDir, who: AttemptId, lines: int, window: int) -> Sequence[str]:
    """Return an attempt's last lines; none of a job whose name is no file's (a forged journal)."""
    try:
        return read_tail(run.log_file(who), lines, window)
    except ValueError:
        return ()


def _zone(utc: float) -> timezone:
    """Return this machine's time zone at that moment, for all of the report: one run, one clock."""
    offset = datetime.fromtimestamp(utc).astimezone().utcoffset() or timedelta()
    return timezone(offset)


def manifest_rows(run: RunDir, history: RunHistory) -> list[tuple[str, str]]:
    """Return what the run was made of; without a manifest, what the journal knows."""
    ledger = history.ledger
    cards = [_card(gpu) for gpu in history.cards.values()]
    rows = [("Run", ledger.opening.run), ("Directory", os.fspath(run.path))]
    try:
        rows += _of(run.read_manifest())
    except UsageError:
        rows += [("Machine", ledger.opening.host), ("gpulaunch", ledger.opening.version)]
    kind = "Simulated cards" if ledger.opening.simulated else "Cards"
    return [(name, value) for name, value in [*rows, (kind, "; ".join(cards) or "none")] if value]


def _card(gpu: Gpu) -> str:
    """`GPU 0: NVIDIA H200, GPU-5f3c...`, as far as it is known."""
    known = [gpu.name, "" if gpu.uuid == gpu.key else gpu.uuid]
    known += ["unified memory"] if gpu.unified else []
    return ": ".join(filter(None, [card_name(gpu), ", ".join(filter(None, known))]))


def _of(manifest: Manifest) -> list[tuple[str, str]]:
    git = manifest.git
    commit = f"{git.commit}{'' if git.clean else ', with changes'}" if git else ""
    turns = [
        f"{turn.started[:19]}Z by {turn.user}: {shell_words(turn.command)}"
        for turn in manifest.epochs
    ]
    versions = [with_commit(turn.version, turn.commit) for turn in manifest.epochs]
    return [
        ("Job file", manifest.job_file),
        ("Git commit", commit),
        ("Machine", manifest.host),
        ("User", manifest.user),
        ("Working directory", manifest.cwd),
        *(
            (f"Start {number}" if len(turns) > 1 else "Start", turn)
            for number, turn in enumerate(turns, 1)
        ),
        ("gpulaunch", "; ".join(dict.fromkeys(versions)) or manifest.version),
        ("Python", manifest.python),
        ("Kernel", manifest.kernel),
        ("NVIDIA driver", manifest.driver or ""),
    ]


def _replace(target: Path, data: bytes) -> None:
    """Write the file whole or not at all. Raises UsageError where it cannot be written."""
    try:
        replace_file(target, data)
    except OSError as error:
        raise UsageError(f"{target} cannot be written: {error.strerror}") from None


class HistoryAhead:
    """A run's history, folded while the run goes on. `finish` it once the run is over."""

    def __init__(self, run: RunDir) -> None:
        self.run = run
        self._history = RunHistory()
        self._follower: Follower | None = None

    def follow(self, told: int) -> None:
        """Get ready to write the report, and read the journal until `told` is readable."""
        prepare()
        over = select.poll()
        over.register(told, select.POLLIN)
        pause = 0.0
        try:
            self._follower = Follower(self.run.events)
            while not over.poll(pause * 1000):
                # Not at each change: that is when the next job starts, which wants this core.
                pause = 0.0 if self._read(self._follower) else READ_EVERY
        except (GpulaunchError, OSError):
            self._follower = None

    def _read(self, follower: Follower) -> bool:
        facts = follower.read(piece=True)
        for fact, at in facts:
            self._history.see(fact, at)
        return bool(facts)

    def finish(self) -> RunHistory | None:
        """Return the history with what has come since; None: the journal is to be read anew."""
        if self._follower is None:
            return None
        with suppress(GpulaunchError, OSError), self._follower as follower:
            while self._read(follower):
                pass
            return None if follower.faults else self._history
        return None


def write_at_the_end(ahead: HistoryAhead) -> str:
    """Write the report of a run that is over; return why that failed, or ""."""
    try:
        write(ahead.run, over=True, history=ahead.finish())
    except GpulaunchError as error:
        return str(error)
    except Exception as error:  # the run is over, and in good order: no traceback ends it
        return f"{type(error).__name__}: {error}"
    return ""


# ── The page as HTML ──────────────────────────────────────────────────────────────────────────────

ASSETS = Path(__file__).with_name("assets")


@cache
def _template() -> Template:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined, pass_context
    from jinja2.bccache import Bucket, FileSystemBytecodeCache

    class Compiled(FileSystemBytecodeCache):
        """The compiled template, beside this module's own bytecode, where that can be written."""

        def dump_bytecode(self, bucket: Bucket) -> None:
            if not sys.dont_write_bytecode:
                with suppress(OSError):
                    super().dump_bytecode(bucket)

    around = Environment(
        bytecode_cache=Compiled(str(Path(__file__).with_name("__pycache__"))),
        loader=FileSystemLoader(ASSETS),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    around.filters.update(
        duration=clock,
        size=size,
        count=words.count,
        percent=percent,
        moment=pass_context(lambda page, utc: words.local_time(utc, page["clock"])),
    )
    around.policies["json.dumps_kwargs"] = {"separators": (",", ":")}
    return around.get_template("report.html.j2")


def prepare() -> None:
    """Load what `render` needs, before there is a page."""
    _template()


def render(page: Page, drawing: Mapping[str, Any], zone: timezone) -> str:
    """Return the report's HTML. `zone` is that of the times of day."""
    library = _text("uplot/uPlot.iife.min.js")
    script = _text("results.js") + _text("report.js")
    return _template().render(
        page=page,
        clock=zone,
        drawing=drawing,
        zone=zone.tzname(None),
        version=__version__,
        library=library,
        licence=_text("uplot/LICENSE"),
        script=script,
        style=_text("uplot/uPlot.min.css") + _text("report.css"),
        sources=" ".join(_source(text) for text in (library, script)),
    )


def _text(name: str) -> str:
    return (ASSETS / name).read_text(encoding="utf-8")


def _source(text: str) -> str:
    """Return what a content security policy calls an inline script by."""
    return f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'"
