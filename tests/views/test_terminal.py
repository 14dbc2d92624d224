from __future__ import annotations

import io
import os
import subprocess
import sys
from typing import TextIO

import pytest

from gpulaunch.observe.terminal.lines import LineView, choose_view
from gpulaunch.observe.terminal.progress import ProgressView
from gpulaunch.observe.terminal.terminal import console_for, wants_color
from tests.views.history import History
from tests.views.screen import Tty

GOOD = {"TERM": "xterm-256color"}


class AsciiTty(Tty):
    encoding = "ascii"


@pytest.mark.parametrize(
    ("stream", "environ", "options", "kind"),
    [
        (Tty(), GOOD, {}, ProgressView),
        (Tty(), {**GOOD, "NO_COLOR": "1"}, {}, ProgressView),
        (Tty(), GOOD, {"quiet": True}, LineView),
        (Tty(), GOOD, {"no_progress": True}, LineView),
        (Tty(), {"TERM": "dumb"}, {}, LineView),
        (Tty(), {}, {}, LineView),
        (AsciiTty(), GOOD, {}, LineView),
        (io.StringIO(), {**GOOD, "FORCE_COLOR": "1"}, {}, LineView),
    ],
)
def test_the_live_view_needs_a_terminal_that_can_redraw(
    stream: TextIO, environ: dict[str, str], options: dict[str, bool], kind: type
) -> None:
    assert type(choose_view(stream, environ, **options)) is kind


@pytest.mark.parametrize(
    ("stream", "environ", "wanted"),
    [
        (Tty(), GOOD, True),
        (Tty(), {**GOOD, "NO_COLOR": ""}, True),
        (Tty(), {**GOOD, "NO_COLOR": "0"}, False),
        (Tty(), {"TERM": "dumb"}, False),
        (io.StringIO(), {**GOOD, "FORCE_COLOR": "1", "CLICOLOR_FORCE": "1"}, False),
    ],
)
def test_colours_only_on_a_terminal_and_not_with_no_color(
    stream: TextIO, environ: dict[str, str], wanted: bool
) -> None:
    assert wants_color(stream, environ) is wanted


def test_the_live_view_without_colours_uses_none() -> None:
    stream = Tty()
    view = choose_view(stream, {**GOOD, "NO_COLOR": "1"})
    run = History(1, view=view).open().jobs("a").start("a", 0)
    view.tick(run.now, run.ledger)
    run.fail("a")
    view.close(run.ledger)
    assert "\x1b[3" not in stream.getvalue()
    assert "✗" in stream.getvalue()


def test_a_pipe_is_never_cut_to_80_columns() -> None:
    stream = io.StringIO()
    console_for(stream, {}).print("x" * 500)
    assert stream.getvalue() == "x" * 500 + "\n"


def test_a_pager_that_stops_reading_does_not_stop_the_run() -> None:
    reader, writer = os.pipe()
    with os.fdopen(reader, "rb") as pager, os.fdopen(writer, "w") as stream:
        view = LineView(stream)
        run = History(1, view=view).open().jobs(*(f"j{n}" for n in range(2000)))
        for n in range(2000):  # far more than a pipe holds; a blocked write would never return
            run.start(f"j{n}", 0).succeed(f"j{n}")
        assert view.next_tick(run.now) == run.mono + 0.5
        got = b""
        while view.next_tick(run.now):
            got += pager.read1()
            view.tick(run.now, run.ledger)
        view.close(run.ledger)
        stream.close()
        lines = (got + pager.read()).decode().splitlines()
    assert len(lines) == 2 + 2 * 2000
    assert lines[-1].endswith("j1999  GPU 0")


def test_choosing_a_view_for_lines_imports_nothing_heavy() -> None:
    code = (
        "import io, sys\n"
        "from gpulaunch.observe.present import events, status, summary, tail\n"
        "from gpulaunch.observe.terminal.lines import choose_view\n"
        "choose_view(io.StringIO(), {})\n"
        "heavy = {'rich', 'psutil', 'pynvml', 'click'} & set(sys.modules)\n"
        "sys.exit(f'imported {heavy}' if heavy else 0)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
