from __future__ import annotations

import os
import pty
import termios
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len

from gpulaunch.core import facts as f
from gpulaunch.core.causes import Quoted
from gpulaunch.core.model import Exited, ImageSource
from gpulaunch.observe.terminal.progress import ProgressView
from gpulaunch.observe.terminal.terminal import SafeStream, console_for
from tests.views.history import History
from tests.views.screen import Screen, Tty


class Watched:
    """A run with a live view, on a screen of that size."""

    def __init__(
        self, cards: int = 2, columns: int = 80, rows: int = 24, simulated: bool = False
    ) -> None:
        self.stream, self.screen = Tty(), Screen(columns)
        self.console = console_for(self.stream, {"TERM": "xterm-256color"})
        self.console.size = (columns, rows)
        self.view = ProgressView(self.console)
        self.run = History(cards, simulated, self.view)
        self._read = 0

    def tick(self, *doing: str) -> list[str]:
        """The screen after a tick that was due, while the run is at that."""
        due = self.view.next_tick(self.run.now)
        if due is not None and due > self.run.mono:
            self.run.pass_(due - self.run.mono)
        self.view.tick(self.run.now, self.run.ledger, doing)
        return self.lines

    def close(self) -> list[str]:
        self.view.close(self.run.ledger)
        return self.lines

    @property
    def lines(self) -> list[str]:
        text = self.stream.getvalue()
        self.screen.feed(text[self._read :])
        self._read = len(text)
        return self.screen.lines


def test_what_is_pulled_stands_below_with_its_time_and_then_above() -> None:
    source = ImageSource("img", "docker")
    w = Watched(1)
    w.run.open().jobs("a").add(f.PullBegun(source, "docker"))
    w.tick("pulling img: 0:01")
    assert w.tick("pulling img: 0:02")[-4:-2] == [
        " 0 done · 0 running · 1 left · 0:01",
        " pulling img: 0:02",
    ]
    w.run.pass_(60).add(f.ImageKnown(source, "sha256:1", "sha256:1", "docker", pulled=True))
    lines = w.tick()
    assert lines[:2] == [
        " ·           nanobodies  run 20261120-074215-a1b2c3 on box, 1 card",
        " ·           pulling: img  with docker",
    ]
    assert lines[2].split() == ["·", "1:01", "img", "pulled:", "docker,", "sha256:1"]
    assert not any("0:02" in line for line in lines)


def test_finished_jobs_stand_above_what_runs_below() -> None:
    w = Watched(3)
    w.run.open().jobs("a", "b", "c", "d", "e").jobs("prepare", group=1, cards=0)
    w.run.start("a", 0).start("b", 1).start("prepare")
    w.run.add(f.GpuChanged("GPU-2", "occupied", Quoted("python (pid 7) of ann, 40 GiB")))
    w.tick()
    w.run.pass_(42).succeed("a").start("c", 0).pass_(5)
    assert w.tick() == [
        " ·           nanobodies  run 20261120-074215-a1b2c3 on box, 3 cards",
        " !           GPU 2  in use: python (pid 7) of ann, 40 GiB",
        " ✓     0:42  a  GPU 0",
        "",
        " nanobodies  ━━━━━━━━━╺━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━  1 of 6",
        " 1 done · 3 running · 2 left · 0:47",
        "",
        " GPU 0      0:05  c",
        " GPU 1      0:47  b",
        " GPU 2            in use: python (pid 7) of ann, 40 GiB",
        " CPU        0:47  prepare",
    ]


def test_at_the_end_only_the_lines_remain() -> None:
    w = Watched(1)
    w.run.open().jobs("a", "b").start("a", 0)
    w.tick()
    w.run.succeed("a").start("b", 0)
    w.tick()
    w.run.fail("b")
    assert w.close() == [
        " ·           nanobodies  run 20261120-074215-a1b2c3 on box, 1 card",
        " ✓     0:00  a  GPU 0",
        " ✗     0:00  b  GPU 0, exited with status 1",
    ]
    assert w.screen.cursor_visible
    assert w.view.next_tick(w.run.now) is None
    assert w.close() == w.lines


def test_the_cursor_is_never_left_hidden_by_a_supervisor_that_is_killed() -> None:
    w = Watched(1)
    w.run.open().jobs("a").start("a", 0)
    w.tick()
    assert w.screen.cursor_visible


def test_the_word_simulated_stands_in_every_picture() -> None:
    for columns in (40, 80, 200):
        w = Watched(1, columns, simulated=True)
        w.run.open().jobs("a").start("a", 0)
        below = w.tick()[w.lines.index("") :]
        assert any("simulated" in line for line in below), columns


def test_redraws_are_rare_and_stop_between_clock_ticks() -> None:
    w = Watched(1)
    w.run.open().jobs(*(f"j{n}" for n in range(100))).start("j0", 0)
    w.tick()
    length = len(w.stream.getvalue())
    w.run.pass_(0.1)
    w.view.tick(w.run.now, w.run.ledger)
    assert len(w.stream.getvalue()) == length
    assert w.view.next_tick(w.run.now) == pytest.approx(w.run.mono - 0.1 + 1.0)
    w.run.succeed("j0")
    assert w.view.next_tick(w.run.now) == pytest.approx(w.run.mono - 0.1 + 0.25)
    w.view.tick(w.run.now, w.run.ledger)
    assert len(w.stream.getvalue()) == length


def test_it_has_no_threads() -> None:
    before = set(threading.enumerate())
    w = Watched(1)
    w.run.open().jobs("a").start("a", 0)
    w.tick()
    assert not set(threading.enumerate()) - before


def test_an_estimate_needs_three_finished_jobs_of_the_group() -> None:
    w = Watched(1)
    w.run.open().jobs(*(f"j{n}" for n in range(13)))
    for n in range(3):
        w.run.start(f"j{n}", 0)
        assert not any("to go" in line for line in w.tick())
        w.run.pass_(600 - (w.run.mono % 0.5)).succeed(f"j{n}")
    w.run.start("j3", 0)
    assert any("about 1 h 40 min to go" in line for line in w.tick())


def test_jobs_gone_from_the_file_are_not_left_to_do() -> None:
    w = Watched(1)
    w.run.open().jobs("a", "b", "old").add(f.JobVanished("old")).start("a", 0)
    assert any("1 running · 1 left" in line for line in w.tick())
    assert any(line.endswith("0 of 2") for line in w.lines)


def test_more_cards_than_rows_are_counted() -> None:
    w = Watched(16, rows=12)
    w.run.open().jobs("a", "cpu").start("a", 0).start("cpu")
    lines = w.tick()
    below = lines[lines.index("") :]
    assert len(below) <= 11
    assert below[-2].split() == ["and", "12", "more", "cards"]
    assert below[-1].split() == ["CPU", "0:00", "cpu"]


@pytest.mark.parametrize("columns", [12, 25, 40, 59, 60, 80, 200])
def test_no_row_below_reaches_the_edge(columns: int) -> None:
    w = Watched(4, columns, simulated=True)
    long = "蛋白質構造予測" * 20
    w.run.open("a-name-that-is-far-too-long-for-that").jobs(long, "b").start(long, 0)
    w.run.add(f.GpuChanged("SIM-1", "aside", Quoted("its memory did not drain in 30 s " * 4)))
    w.run.add(f.AdmissionPaused(Quoted("the disk is full " * 20)))
    w.tick()
    w.run.pass_(1)
    lines = w.tick()
    below = lines[len(lines) - lines[::-1].index("", lines[::-1].index("") + 1) :]
    assert all(cell_len(line) <= max(8, columns - 5) for line in below), below


def test_a_terminal_made_narrower_is_redrawn_for_its_new_width() -> None:
    w = Watched(1, 80)
    w.run.open().jobs("a").start("a", 0)
    w.tick()
    w.console.size = (60, 24)
    due = w.view.next_tick(w.run.now)
    assert due == pytest.approx(w.run.mono + 0.25)
    below = w.tick()[-5:]
    assert all(cell_len(line) <= 55 for line in below)


def test_stopping_is_said_below() -> None:
    w = Watched(1)
    w.run.open().jobs("a", "b").start("a", 0).add(f.StopAsked(Quoted("Ctrl-C")))
    assert " stopping (Ctrl-C): running jobs are being ended" in w.tick()


def test_retries_skips_and_notes_are_lines_above() -> None:
    w = Watched(1)
    w.run.open().jobs("a", "b").start("a", 0).pass_(3).end("a", Exited(1), "exit")
    w.run.add(f.JobDelayed("a", Quoted("x"), 30)).add(f.Noted("3 processes were left behind", "a"))
    w.run.add(f.JobSettled("b", "skipped", Quoted("needs a, which failed")))
    w.run.add(f.StopAsked(Quoted("Ctrl-C"), now=True))
    assert w.close()[1:] == [
        " !     0:03  a  exited with status 1, attempt 1; tries again in 30 s",
        " !           note: a  3 processes were left behind",
        " !           b  skipped: needs a, which failed",
        " !           stopping: running jobs are killed  Ctrl-C",
    ]


def test_thousands_of_jobs_that_end_at_once_are_shown_a_few_hundred_at_a_time() -> None:
    w = Watched(8)
    names = [f"j{n}" for n in range(3000)]
    w.run.open().jobs(*names)
    w.tick()
    for name in names:
        w.run.start(name, 0).succeed(name)
    shown = len(w.tick())
    assert shown < 500
    assert w.lines[-11].endswith("3,000 of 3,000")
    assert w.view.next_tick(w.run.now) == pytest.approx(w.run.mono + 0.25)
    assert len(w.tick()) == shown + 200
    assert len(w.close()) == 1 + 3000


nasty = st.text(
    st.sampled_from("ab[]/\\ \x1b\x07\x9b\r\n\t\x00蛋é\u202e\u200d{}%") | st.characters(),
    min_size=1,
)


@settings(max_examples=60)
@given(st.lists(nasty, min_size=1, max_size=4, unique=True), nasty, nasty)
def test_no_name_or_reason_can_steer_the_terminal(
    names: list[str], reason: str, title: str
) -> None:
    w = Watched(2)
    w.run.open(title).jobs(*names).start(names[0], 0)
    w.run.add(f.GpuChanged("GPU-1", "aside", Quoted(reason))).add(f.AdmissionPaused(Quoted(reason)))
    w.tick()
    w.run.end(names[0], Exited(1), "exit").add(f.JobSettled(names[0], "failed", Quoted(reason)))
    w.tick()
    w.close()  # the Screen refuses what it does not know


def test_markup_in_names_is_only_text() -> None:
    w = Watched(1)
    w.run.open("[red]run").jobs("[bold]x[/]", ":smile:").start("[bold]x[/]", 0)
    assert any("[bold]x[/]" in line for line in w.tick())
    assert any("[red]run" in line for line in w.lines)


def test_a_view_may_begin_in_the_middle_of_a_run() -> None:
    w = Watched(1)
    w.run.view = None
    w.run.open().jobs("a", "b", "c").start("a", 0).pass_(9).succeed("a")
    w.run.view = w.view
    w.run.open().start("b", 0)
    assert any("1 done · 1 running · 1 left" in line for line in w.tick())


@contextmanager
def terminal() -> Iterator[tuple[int, int]]:
    leader, follower = pty.openpty()
    try:
        yield leader, follower
    finally:
        os.close(leader)
        os.close(follower)


def test_a_terminal_stopped_by_ctrl_s_does_not_block_the_run() -> None:
    with terminal() as (_, follower), os.fdopen(os.dup(follower), "w") as stream:
        view = ProgressView(console_for(stream, {"TERM": "xterm"}))
        run = History(1, view=view).open().jobs("a").start("a", 0)
        termios.tcflow(follower, termios.TCOOFF)
        view.tick(run.now, run.ledger)  # would never come back
        due = view.next_tick(run.now)
        assert due is not None
        assert due > run.mono
        assert not SafeStream(stream).writable_now()
        termios.tcflow(follower, termios.TCOON)
        assert SafeStream(stream).writable_now()
        run.pass_(1)
        view.tick(run.now, run.ledger)
        view.close(run.ledger)


def test_a_terminal_that_is_closed_does_not_stop_the_run() -> None:
    leader, follower = pty.openpty()
    survived = False
    with suppress(OSError), os.fdopen(follower, "w") as stream:
        view = ProgressView(console_for(stream, {"TERM": "xterm"}))
        run = History(1, view=view).open().jobs("a").start("a", 0)
        os.close(leader)
        view.tick(run.now, run.ledger)
        run.succeed("a")
        view.close(run.ledger)
        survived = True
    assert survived  # what Python cannot flush when it closes the stream is not the view's
