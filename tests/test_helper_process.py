"""Helper processes: their command line, what comes from them, and when they are started again."""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import closing

import pytest

from gpulaunch.base.helper_process import STEADY_SECONDS, Helper, Restarts, command, start
from gpulaunch.base.loop import Loop
from tests.helpers import descriptors_left


class Bench:
    """A helper in a loop, what it said, and with which status it ended."""

    def __init__(self, kind: int = socket.SOCK_STREAM) -> None:
        self.loop = Loop()
        self.said: list[bytes] = []
        self.statuses: list[int | None] = []
        self.helper = Helper(self.loop, self.said.append, self.statuses.append, kind)

    def start(self, code: str) -> None:
        self.helper.start([sys.executable, "-c", code], None)

    def until_ended(self) -> None:
        while not self.statuses:
            self.loop.turn()

    def close(self) -> None:
        self.helper.close()
        self.loop.close()


@pytest.fixture
def bench() -> Iterator[Bench]:
    with closing(Bench()) as made:
        yield made


def test_pauses_between_deaths_grow_up_to_a_minute_and_then_it_is_given_up() -> None:
    restarts, pauses = Restarts(), []
    for _ in range(9):
        restarts = restarts.after_start(0.0).after_death(1.0)
        pauses.append(restarts.pause)
    assert pauses == [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, None]


def test_a_helper_that_lived_long_begins_a_new_row() -> None:
    old = Restarts(deaths=8).after_start(0.0)
    assert old.after_death(STEADY_SECONDS).pause is None
    assert old.after_death(STEADY_SECONDS + 1).pause == 0.5


def test_a_start_that_fails_after_a_long_life_is_counted() -> None:
    died = Restarts().after_start(0.0).after_death(STEADY_SECONDS + 1)
    assert died.after_death(STEADY_SECONDS + 2).deaths == 2


def test_what_a_helper_says_and_its_end_come_through_the_loop(bench: Bench) -> None:
    bench.start("print('one', flush=True); print('two'); raise SystemExit(3)")
    bench.until_ended()
    assert bench.said == [b"one", b"two"]
    assert bench.statuses == [3]
    assert bench.helper.pid is None


def test_lines_are_put_together_from_pieces(bench: Bench) -> None:
    bench.start(
        "import os, sys; os.write(1, b'a\\nb'); sys.stdin.read(1); os.write(1, b'c\\n\\nd')"
    )
    while not bench.said:
        bench.loop.turn()
    assert bench.said == [b"a"]
    assert bench.helper.link
    bench.helper.link.send(b"!")
    bench.until_ended()
    assert bench.said == [b"a", b"bc", b""]
    bench.statuses.clear()
    bench.start("print('e')")
    bench.until_ended()
    assert bench.said[3:] == [b"e"], "what was left of the one before is not its beginning"


def test_a_helper_is_started_anew_after_its_end(bench: Bench) -> None:
    bench.start("")
    bench.until_ended()
    bench.statuses.clear()
    bench.start("import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    bench.until_ended()
    assert bench.statuses == [-signal.SIGKILL]


def test_a_helper_that_is_let_end_is_heard_no_more_and_waited_for(bench: Bench) -> None:
    path = "/proc/self/fd"
    before = set(os.listdir(path))
    bench.start("import sys; sys.stdin.read(); print('last words')")
    pid = bench.helper.pid
    bench.helper.finish(60.0)
    assert not os.path.exists(f"/proc/{pid}")
    assert set(os.listdir(path)) == before
    assert not bench.said
    bench.helper.finish(60.0)


def test_one_that_does_not_end_by_itself_is_killed(bench: Bench) -> None:
    bench.start("import time; time.sleep(600)")
    pid = bench.helper.pid
    bench.helper.finish(0.01)
    assert not os.path.exists(f"/proc/{pid}")


def test_messages_keep_their_bounds_where_the_socket_does() -> None:
    with closing(Bench(socket.SOCK_SEQPACKET)) as bench:
        bench.start("import socket; s = socket.socket(fileno=0); s.send(b'a'); s.send(b'b')")
        bench.until_ended()
        assert bench.said == [b"a", b"b"]


def test_a_killed_helper_is_reaped_and_says_nothing_more(bench: Bench) -> None:
    before = set(os.listdir("/proc/self/fd"))
    bench.start("input()")
    pid = bench.helper.pid
    bench.helper.close()
    bench.helper.close()
    assert not os.path.exists(f"/proc/{pid}")
    assert set(os.listdir("/proc/self/fd")) == before
    assert not bench.statuses


@pytest.mark.parametrize("left", [0, 1, 2])
def test_a_start_without_descriptors_leaves_nothing_behind(bench: Bench, left: int) -> None:
    before = set(os.listdir("/proc/self/fd"))
    with descriptors_left(left), pytest.raises(OSError, match="Too many"):
        bench.start("")
    assert set(os.listdir("/proc/self/fd")) == before
    assert bench.helper.pid is None
    bench.start("")
    bench.until_ended()


def test_a_helper_has_this_process_s_path_and_its_pid_and_a_name() -> None:
    line = command("json.tool", "a", "b", title="name")
    assert line[-3:] == ["a", "b", "gpulaunch-name"]
    assert line[-4] == str(os.getpid())
    assert command("json.tool")[-1] == "gpulaunch-tool"


def test_a_helper_is_out_of_reach_of_the_terminal_and_silent() -> None:
    with start([sys.executable, "-c", "import os; raise SystemExit(os.getsid(0) != os.getpid())"]):
        pass
    with start(["/bin/sh", "-c", "echo out; echo err >&2"]) as process:
        assert process.stdout is None
        assert process.stderr is None
