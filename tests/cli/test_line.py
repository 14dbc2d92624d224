"""Launchers that wait for the same cards wait in line, each for its turn, and are small there."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psutil
import pytest

from gpulaunch import __version__
from gpulaunch.engines.programs import program_line
from gpulaunch.jobfile.config_model import CardSettings
from gpulaunch.run.wait_queue import _GOES_ON, DIGITS, OtherLines, Turn, name_of, take_place
from tests.cli.launcher import UNTIL_GO, Launcher
from tests.gpus.fake import FakeDriver
from tests.helpers import freezer, held_by, wait_until

ROOT = Path(__file__).parents[2]
NOTES = "echo {name} >> order; exec sleep 0.05"
"""A command that says when it had its card."""


class Line:
    """Launchers that wait for pretend cards which commands have until the file `go` is there."""

    def __init__(
        self, launcher: Launcher, stack: ExitStack, cards: int, real: bool = False
    ) -> None:
        self.launcher, self._stack = launcher, stack
        self.cards = () if real else ("--simulate", str(cards))
        self.said = ""
        launcher.environ["GPULAUNCH_SIM_POOL"] = uuid.uuid4().hex[:12]
        for _ in range(cards):
            holder = self.begin((), UNTIL_GO)
            wait_until(lambda pid=holder.pid: psutil.Process(pid).cmdline()[:1] == ["sh"], 60)

    def begin(self, options: tuple[str, ...], script: str) -> subprocess.Popen[str]:
        words = ("exec", *self.cards, *options, "--", "sh", "-c", script)
        return self._stack.enter_context(self.launcher.begun(*words))

    def waits(self, name: str, *options: str, script: str = NOTES) -> subprocess.Popen[str]:
        """Begin one more, and wait until it has said that it waits."""
        process = self.begin(options, script.format(name=name))
        assert process.stderr is not None
        lines = iter(process.stderr.readline, "")
        self.said = next(line for line in lines if "wait" in line)
        return process

    def go(self) -> None:
        self.launcher.file("go", "")

    @property
    def order(self) -> str:
        path = self.launcher.path / "order"
        return "".join(path.read_text().split()) if path.exists() else ""


@pytest.fixture
def begun(launcher: Launcher) -> Iterator[Callable[[int], Line]]:
    with ExitStack() as stack:
        yield lambda cards: Line(launcher, stack, cards)


@contextmanager
def started(script: str) -> Iterator[subprocess.Popen[bytes]]:
    """A Python that has printed a line, and is killed in the end."""
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()
            yield process
        finally:
            process.kill()


def is_small(pid: int) -> bool:
    return os.readlink(f"/proc/{pid}/exe") == program_line()[0]


@contextmanager
def behind(place: socket.socket, until: float | str = "inf") -> Iterator[subprocess.Popen[str]]:
    """The small program with that place, which says when its turn has come."""
    words = ["wait", str(place.fileno()), str(until), "waits", "/bin/echo", "now"]
    with subprocess.Popen(
        program_line(*words), pass_fds=[place.fileno()], stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def is_first(place: socket.socket) -> bool:
    """Whether the small program finds nobody ahead of that place, in a second."""
    with behind(place) as process:
        try:
            return process.communicate(timeout=1)[0] == "now\n"
        except subprocess.TimeoutExpired:
            return False


def test_they_go_in_the_order_in_which_they_came(begun: Callable[[int], Line]) -> None:
    there = begun(1)
    processes = [there.waits(name) for name in "abcdefg"]
    there.go()
    assert [process.wait(60) for process in processes] == [0] * 7
    assert there.order == "abcdefg"


def test_from_the_second_on_each_is_one_small_process(begun: Callable[[int], Line]) -> None:
    there = begun(1)
    first, *others = [there.waits(name) for name in "abcdef"]
    for process in others:
        wait_until(lambda pid=process.pid: is_small(pid), 60)
    for process in (first, *others):
        assert psutil.Process(process.pid).children() == []
    for process in others:
        shown = Path(f"/proc/{process.pid}/cmdline").read_text().rstrip("\0")
        assert shown.startswith("gpulaunch exec --simulate 1 -- sh -c 'echo ")
        assert psutil.Process(process.pid).memory_info().rss < 6e6
    there.go()
    assert [process.wait(60) for process in (first, *others)] == [0] * 6


def test_those_who_hold_a_card_stand_in_the_line_too(begun: Callable[[int], Line]) -> None:
    there = begun(1)
    first = there.waits("a")
    hold = ("hold", *there.cards, "--name", "demo", "--", "sh", "-c", NOTES.format(name="b"))
    with there.launcher.begun(*hold) as second:
        wait_until(lambda: is_small(second.pid), 60)
        third = there.waits("c")
        there.go()
        assert [process.wait(60) for process in (first, second, third)] == [0] * 3
        assert second.stderr is not None
        assert "is held for 'demo'" in second.stderr.read()
    assert there.order == "abc"


def test_one_that_is_killed_holds_nobody_up(begun: Callable[[int], Line]) -> None:
    there = begun(1)
    processes = {name: there.waits(name) for name in "abcdef"}
    for name in "ace":
        processes[name].kill()
        processes[name].wait(60)
    there.go()
    assert [processes[name].wait(60) for name in "bdf"] == [0] * 3
    assert there.order == "bdf"


def test_one_that_is_stopped_holds_nobody_up_and_goes_on_in_time(
    begun: Callable[[int], Line],
) -> None:
    there = begun(1)
    first = there.waits("a")
    first.send_signal(signal.SIGSTOP)
    wait_until(lambda: psutil.Process(first.pid).status() == psutil.STATUS_STOPPED)
    second = there.waits("b")
    there.go()
    assert second.wait(60) == 0
    first.send_signal(signal.SIGCONT)
    assert first.wait(60) == 0
    assert there.order == "ba"


STOPS = "os.kill(os.getpid(), signal.SIGSTOP)"
FREEZES = "open('{}', 'w').write(str(os.getpid())); open('{}', 'w').write('{}')"


@pytest.mark.parametrize("freezers_version", [None, 1, 2])
def test_one_ahead_that_is_stopped_or_frozen_is_passed_and_noticed_when_it_is_so_later(
    freezers_version: int | None,
) -> None:
    name = uuid.uuid4().hex
    with ExitStack() as stack:
        suspends = STOPS
        if freezers_version is not None:
            group = stack.enter_context(freezer(freezers_version))
            suspends = FREEZES.format(group.procs, group.file, group.frozen)
        script = (
            f"import os, signal, sys; sys.path.insert(0, {str(ROOT)!r})\n"
            f"from gpulaunch.run.wait_queue import take_place; place = take_place({name!r})\n"
            f"print(flush=True); sys.stdin.readline(); {suspends}; sys.stdin.read()"
        )
        other = stack.enter_context(started(script))
        place = stack.enter_context(take_place(name))
        assert not is_first(place)
        with behind(place, time.monotonic()) as late:
            assert late.communicate(timeout=60)[0] == "now\n", "the time is over"
        with behind(place) as waiting:
            wait_until(lambda: connections_of(waiting.pid) == 2)
            assert other.stdin is not None
            other.stdin.write(b"\n")
            other.stdin.flush()
            began = time.monotonic()
            assert waiting.communicate(timeout=60)[0] == "now\n"
            assert time.monotonic() - began < 30  # it looks every ten seconds
        assert is_first(place)
        if freezers_version is not None:
            group.thaw()
        other.send_signal(signal.SIGCONT)
        wait_until(lambda: not is_first(place))


def connections_of(pid: int) -> int:
    return sum(held.startswith("socket:") for held in held_by(pid))


def test_one_that_asks_for_something_else_is_not_in_the_line(begun: Callable[[int], Line]) -> None:
    there = begun(2)
    processes = []
    for options in ((), ("-g", "2"), ("--gpus", "1,"), ("--card", "*A100*")):
        processes.append(there.waits("x", *options))
        assert "of yours" not in there.said
    processes.append(there.waits("x", "--affinity", "none"))
    assert "waits its turn: 1 launcher of yours asked for the same before" in there.said
    for process in (processes[0], processes[1], processes[2], processes[4]):
        there.go()
        assert process.wait(60) == 0


def test_a_line_keeps_nobody_beside_it_waiting_until_it_is_over(
    begun: Callable[[int], Line],
) -> None:
    there = begun(2)
    long = NOTES.replace("0.05", "0.5")  # longer than a turn: no two cards are free by chance
    processes = [there.waits(name, script=long) for name in "ab"]
    processes += [there.waits("W", "-g", "2"), there.waits("O", "--gpus", "1,")]
    processes += [there.waits(name, script=long) for name in "cdefghij"]
    there.go()
    assert [process.wait(60) for process in processes] == [0] * 12
    # Those two came third and fourth, and a card that is free is left to them for a while.
    assert "W" in there.order[:-1]
    assert "O" in there.order[:-1]


def test_a_card_is_for_who_came_earlier_and_waits_for_it_in_another_line() -> None:
    def name(cards: int) -> str:
        return f"{cards:0{DIGITS}x}{uuid.uuid4().hex[:16]}"

    bit, other = 1 << 61, 1 << 62
    both = name(bit | other)
    with ExitStack() as stack:
        first, second, last = (
            stack.enter_context(take_place(each)) for each in (name(bit), both, both)
        )
        seen = [OtherLines(name_of(place.fileno())) for place in (first, second, last)]
        for one in seen:
            stack.callback(one.close)
        for _ in range(3):
            assert seen[1].wait_for(bit)
            assert seen[2].wait_for(bit)
            assert not seen[1].wait_for(other), "nobody else waits for that one"
            assert not seen[2].wait_for(other), "in its own line it has its turn"
            assert not seen[0].wait_for(bit), "it came before them"
        for _ in range(2):  # one connection each, as a queue of them fills up
            first.accept()[0].close()
        with pytest.raises(BlockingIOError):
            first.accept()
        first.close()
        assert not seen[1].wait_for(bit), "it waits no more"


@pytest.mark.parametrize("place", range(2))
def test_signals_and_statuses_are_as_everywhere(begun: Callable[[int], Line], place: int) -> None:
    there = begun(1)
    for name in "a"[:place]:
        there.waits(name)
    interrupted, ended = there.waits("x"), there.waits("y")
    if place:
        wait_until(lambda: is_small(interrupted.pid), 60)
    interrupted.send_signal(signal.SIGINT)
    ended.send_signal(signal.SIGTERM)
    assert interrupted.wait(60) == (-signal.SIGINT if place else 130), "130 in a shell"
    assert ended.wait(60) == -signal.SIGTERM
    assert interrupted.stderr is not None
    assert "Traceback" not in interrupted.stderr.read()


def test_an_interrupt_that_was_ignored_stays_so(begun: Callable[[int], Line]) -> None:
    there = begun(1)
    there.waits("a"), there.waits("b")
    words = [*there.launcher.command, "exec", *there.cards, "--", "sh", "-c", "echo through"]
    with subprocess.Popen(
        ["sh", "-c", "trap '' INT; exec \"$@\"", "sh", *words],
        cwd=there.launcher.path,
        env=there.launcher.environ,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        wait_until(lambda: is_small(process.pid), 60)
        process.send_signal(signal.SIGINT)
        there.go()
        assert process.communicate(timeout=60)[0] == "through\n"
    assert process.returncode == 0


def test_the_time_to_wait_counts_in_the_line(begun: Callable[[int], Line]) -> None:
    there = begun(1)
    for name in "ab":
        there.waits(name)
    small = there.waits("c", "--wait", "0.3s")
    assert small.wait(60) == 124
    assert small.stderr is not None
    assert "no card came free in time: " in small.stderr.read()
    third = there.waits("d")
    wait_until(lambda: is_small(third.pid), 60)
    there.go()
    assert third.wait(60) == 0
    assert there.order == "abd"


def test_one_that_does_not_wait_is_in_no_line(begun: Callable[[int], Line]) -> None:
    there = begun(1)
    there.waits("a")
    at_once = there.begin(("--no-wait",), "echo n >> order")
    assert at_once.wait(60) == 124


def test_the_command_finds_what_it_would_have_found_without_a_wait(
    begun: Callable[[int], Line],
) -> None:
    told = (
        "ls /proc/self/fd; grep Sig[BIC] /proc/self/status;"
        " env | grep -v -e GPULAUNCH_ -e MASTER_PORT -e ^_= | sort"
    )
    there = begun(1)
    there.launcher.environ |= {"LANG": "C", "ODD": "tab\tand\nline"}
    for name in ("LC_ALL", "LC_CTYPE"):
        there.launcher.environ.pop(name, None)
    waiting = [there.waits(name, script=told) for name in "abcd"]
    there.go()
    without, *with_a_wait = [
        process.communicate(timeout=60)[0] for process in (there.begin((), told), *waiting)
    ]
    assert "ODD=tab" in without
    for text in with_a_wait:
        assert text == without


@pytest.mark.parametrize("edited", ["gpus: {never: [0]}", "rums: /a", "limits: ["])
def test_an_edit_of_the_configuration_costs_nobody_his_turn(
    driver: FakeDriver, on_cards: Launcher, edited: str
) -> None:
    """Like a run, a launcher keeps to what held when it began."""
    for index in range(2):
        driver.card(index)
    on_cards.environ["XDG_CONFIG_HOME"] = str(on_cards.path)
    config = on_cards.path / "gpulaunch" / "config.yaml"
    config.parent.mkdir()
    config.write_text("gpus: {never: [1]}")
    with ExitStack() as stack:
        there = Line(on_cards, stack, 1, real=True)
        script = "echo {name}$CUDA_VISIBLE_DEVICES >> order"
        waiting = [there.waits(name, script=script) for name in "abc"]
        wait_until(lambda: is_small(waiting[2].pid), 60)
        config.write_text(edited)
        there.go()
        assert [process.wait(60) for process in waiting] == [0, 0, 0]
    assert there.order == "a0b0c0"


def test_words_that_are_no_text_come_through(begun: Callable[[int], Line]) -> None:
    there = begun(1)
    for name in "ab":
        there.waits(name)
    odd = b"\xff and 'quotes'"
    write = ["sh", "-c", 'printf %s "$1" > found', "sh", os.fsdecode(odd)]
    with there.launcher.begun("exec", *there.cards, "--", *write) as process:
        wait_until(lambda: is_small(process.pid), 60)
        there.go()
        assert process.wait(60) == 0
    assert (there.launcher.path / "found").read_bytes() == odd


@pytest.mark.parametrize(
    "told",
    [f'["{__version__}",7,null,null]', '["0",7]', '["0",0]', "[0,null,null]", "[0]", "x", ""],
)
def test_the_option_is_nobody_s(launcher: Launcher, told: str) -> None:
    result = launcher("exec", "--turn", told, "--simulate", "1", "--", "true")
    assert result.status == 125
    assert result.err == "gpulaunch exec: --turn is gpulaunch's own: leave it out\n"


def test_a_turn_that_another_version_took_is_given_up_and_taken_anew() -> None:
    """gpulaunch was upgraded while this one waited; what else the option says is not read."""
    with take_place(uuid.uuid4().hex) as place:
        fd = place.fileno()
        told = json.dumps(["0.0", fd, {"until": "next week"}])
        words = [
            "exec",
            "--turn",
            told,
            "--simulate",
            "1",
            "sh",
            "-c",
            f"[ ! -e /proc/$$/fd/{fd} ]",
        ]
        done = subprocess.run(
            [sys.executable, "-m", "gpulaunch", *words],
            pass_fds=[fd],
            stderr=subprocess.PIPE,
            timeout=60,
            check=False,
        )
    assert (done.returncode, done.stderr) == (0, b"")


def gone_on(site: Path, script: str = _GOES_ON) -> subprocess.Popen[str]:
    """What the small program becomes when its turn has come, with what is installed there."""
    others = (entry for entry in sys.path if not Path(entry, "gpulaunch").exists())
    path = [*others, str(site)]
    words = [sys.executable, "-I", "-S", "-c", script, json.dumps(path), "exec", "--turn", "x"]
    return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_one_whose_turn_comes_while_gpulaunch_is_upgraded_waits_until_it_is_there(
    tmp_path: Path,
) -> None:
    package = tmp_path / "gpulaunch"
    package.mkdir()
    looked = f"open({str(tmp_path / 'looked')!r}, 'w').close()"
    (package / "__init__.py").write_text(looked)
    with gone_on(tmp_path) as process:
        wait_until((tmp_path / "looked").exists, 60)
        for name in ("run/exec", "cli/exec", "__main__"):
            (package / f"{name}.py").parent.mkdir(exist_ok=True)
            text = "import sys\ndef command(): print(sys.argv)" if "main" in name else ""
            (package / f"{name}.py").write_text(text)
        out, err = process.communicate(timeout=60)
    assert (out, err, process.returncode) == ("['gpulaunch', 'exec', '--turn', 'x']\n", "", 0)


def test_one_whose_turn_comes_when_gpulaunch_is_gone_says_so(tmp_path: Path) -> None:
    with gone_on(tmp_path, _GOES_ON.replace("range(120)", "range(1)")) as process:
        out, err = process.communicate(timeout=60)
    said = "gpulaunch: the turn has come, but gpulaunch is not installed\n"
    assert (out, err, process.returncode) == ("", said, 125)


def test_another_user_s_place_holds_nobody_up(tmp_path: Path) -> None:
    if os.geteuid():
        pytest.skip("only root can become another user")
    name = uuid.uuid4().hex
    script = (
        "import os, socket, sys; os.setuid(65534)\n"
        "place = socket.socket(socket.AF_UNIX)\n"
        f"place.bind(b'\\0gpulaunch/1/line/{name}/{'0' * 20}-1'); place.listen()\n"
        "print(flush=True); sys.stdin.read()"
    )
    with started(script), take_place(name) as place:
        assert Turn("", place.fileno(), None, None, CardSettings()).ahead == 1
        assert is_first(place)


def test_another_user_s_place_in_another_line_is_waited_for_a_moment() -> None:
    if os.geteuid():
        pytest.skip("only root can become another user")
    cards = f"{1:0{DIGITS}x}"
    script = (
        f"import os, sys; sys.path.insert(0, {str(ROOT)!r})\n"
        "from gpulaunch.run.wait_queue import take_place; os.setuid(65534)\n"
        f"place = take_place('{cards}{'a' * 16}'); print(flush=True); sys.stdin.read()"
    )
    with started(script) as other, take_place(cards + "b" * 16) as place:
        others = OtherLines(name_of(place.fileno()))
        assert others.wait_for(1)
        other.send_signal(signal.SIGSTOP)
        wait_until(lambda: not others.wait_for(1))
        others.close()


def test_those_who_came_and_went_are_not_in_the_way_of_those_who_come() -> None:
    name = uuid.uuid4().hex
    with take_place(name):
        for _ in range(300):  # more than a queue is long where nobody says how long it is to be
            with take_place(name) as place, behind(place) as process:
                wait_until(lambda pid=process.pid: connections_of(pid) == 2)


def test_a_launcher_that_is_gone_when_its_turn_comes_is_said(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with take_place(uuid.uuid4().hex) as place:
        fd = place.fileno()
        words = ["wait", str(fd), "inf", "waits", "/no/such/python", "-c", "pass"]
        done = subprocess.run(program_line(*words), check=False, pass_fds=[fd])
    assert done.returncode == 125
    said = "gpulaunch: the turn has come, but /no/such/python cannot be started: No such file"
    assert capfd.readouterr().err.startswith(said)
