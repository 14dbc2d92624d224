"""Ctrl-C: one is enough, whenever it comes; one traceback, the status of it, and nobody survives.

    GPULAUNCH_TEST_INTERRUPTS=2000 pytest tests/executor/test_interrupts.py

so many in all, over every shape of `interrupted.py`; half of them at a bytecode that is counted,
half at a moment by the clock.
"""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
import textwrap
import threading
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.executor import aim, futures_interrupted, interrupted, script
from tests.executor.test_main import starts_threads_at_exit
from tests.helpers import goes_along, wait_until

NUMBER = int(os.environ.get("GPULAUNCH_TEST_INTERRUPTS", "48"))
BYTECODES = 1500
"""More than any shape needs to where it waits; those that it does not need come while it waits."""
SECONDS = 0.6
DEADLINE = 180.0
SCRIPT = Path(interrupted.__file__)
CPYTHONS = re.compile(
    r"Exception ignored (in|on)[^\n]*threading.*KeyboardInterrupt:?\s*", re.DOTALL
)
"""Between the end of a script and the first of its hooks: an exit that CPython gives no status."""


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    built = aim.build(tmp_path_factory.mktemp("aim"))
    if built is None:
        pytest.skip("no C compiler (cc) to build what counts bytecodes with")
    return built


@dataclass(frozen=True)
class End:
    """What has come of one script. `status` is None where it had to be killed."""

    what: str
    status: int | None
    err: str

    @property
    def problem(self) -> str:
        """Empty where it ended as it should."""
        wrong = []
        if self.status == 0 and CPYTHONS.fullmatch(self.err):
            return ""
        if self.status is None:
            wrong.append("it hung")
        elif self.status != -signal.SIGINT:
            wrong.append(f"status {self.status}")
        if self.err.count("Traceback (most recent call last)") != 1:
            wrong.append(f"{self.err.count('Traceback (most recent call last)')} tracebacks")
        if not self.err.rstrip().endswith("KeyboardInterrupt"):
            wrong.append("no KeyboardInterrupt at the end")
        return f"{self.what}: {', '.join(wrong)}\n{self.err}" if wrong else ""


def marked(mark: str) -> list[int]:
    """All processes that have it in their environment."""
    found = []
    for directory in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if mark.encode() in (directory / "environ").read_bytes():
                found.append(int(directory.name))
    return found


def described(mark: str) -> str:
    """What each of those processes is, and what it waits for in the kernel, a line each."""
    lines = []
    for pid in marked(mark):
        with suppress(OSError):
            files = [Path(f"/proc/{pid}/{name}").read_text() for name in ("comm", "stat", "wchan")]
            state = files[1].rpartition(")")[2].split()[0]
            argv = Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")[:200]
            lines.append(f"{pid} {files[0].strip()} {state} {files[2]} {argv}\n")
    return "".join(lines)


def shot(shape: str, library: Path | None, number: int, delay: float = 0) -> End:
    """One script, interrupted once: at that bytecode, or that long after it is ready."""
    mark = f"GPULAUNCH_TEST_MARK_{uuid.uuid4().hex}"
    aimed = [str(library), str(number)] if library else []
    process = subprocess.Popen(
        [sys.executable, "-X", "faulthandler", str(SCRIPT), shape, *aimed],
        env=script.environ({mark: "1"}),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=goes_along(),
    )
    with process:
        assert process.stdout
        if not library:
            assert process.stdout.readline() == "ready\n"
            threading.Event().wait(delay)
            process.send_signal(signal.SIGINT)
        status: int | None
        try:
            _, err = process.communicate(timeout=DEADLINE)
            status = process.returncode
        except subprocess.TimeoutExpired:
            alive = described(mark)
            process.send_signal(signal.SIGABRT)  # where all its threads are, by faulthandler
            _, err = process.communicate()
            err, status = err + alive, None
    try:
        wait_until(lambda: not marked(mark), DEADLINE)
    except AssertionError:
        err, status = err + f"survivors:\n{described(mark)}", None
        for pid in marked(mark):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    return End(f"{shape} at {number if library else f'{delay:.4f} s'}", status, err)


def shots(shape: str, library: Path) -> Iterator[tuple[str, Path | None, int, float]]:
    dice = random.Random()
    each = max(2, NUMBER // len(interrupted.SHAPES))
    for n in range(each // 2):
        width = BYTECODES * 2 // each
        yield shape, library, 1 + n * width + dice.randrange(max(1, width)), 0.0
    for _ in range(each - each // 2):
        yield shape, None, 0, dice.choice([0.003, SECONDS]) * dice.random()


@pytest.mark.parametrize("shape", futures_interrupted.SHAPES)
def test_an_interrupt_at_any_bytecode_is_noticed_and_leaves_no_lock(
    shape: str, library: Path
) -> None:
    done = subprocess.run(
        [sys.executable, futures_interrupted.__file__, str(library), shape],
        env=script.environ(),
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        preexec_fn=goes_along(),
    )
    assert (done.stdout.splitlines()[-1:], done.returncode) == (["fine"], 0), (
        done.stdout + done.stderr
    )


STARTS = """
import gc, os, signal, sys
from gpulaunch import GpuExecutor
from tests.executor import work
from tests.executor.aim import Aim
signal.signal(signal.SIGINT, signal.default_int_handler)
gc.disable()
GpuExecutor(simulate=1).shutdown()  # what is done once in a process is done
aim = Aim(sys.argv[1])
number, came = 1, True
while came:
    executor = GpuExecutor(simulate=1)
    try:
        aim.at(number)
        executor.submit(work.double, 4)
        came = bool(aim.count() > number)
    except KeyboardInterrupt:
        pass
    print(number, flush=True)
    assert executor.submit(work.double, 4).result(30) == 8, number
    executor.shutdown()
    number += int(sys.argv[2])
print("fine")
"""


def test_an_executor_whose_start_was_interrupted_starts_all_the_same(
    library: Path, tmp_path: Path
) -> None:
    out, err, status = script.run(tmp_path / "script.py", STARTS, library, 11)
    assert (out.splitlines()[-1:], status) == (["fine"], 0), out + err
    assert len(out.splitlines()) > 10


def test_an_interrupt_as_the_executors_thread_starts_has_one_traceback(tmp_path: Path) -> None:
    text = """
    import signal, threading
    from gpulaunch import GpuExecutor
    signal.signal(signal.SIGINT, signal.default_int_handler)
    start = threading.Thread.start
    def interrupted(thread):
        if thread.name == "gpulaunch-executor":
            signal.raise_signal(signal.SIGINT)  # at once, on this thread
        start(thread)
    threading.Thread.start = interrupted
    GpuExecutor(simulate=1).submit(abs, -1)
    """
    out, err, status = script.run(tmp_path / "script.py", text)
    assert (out, err.count("Traceback"), status) == ("", 1, -signal.SIGINT), err


MAKES = """
import gc, signal, sys, warnings
from gpulaunch import GpuExecutor
from tests.executor.aim import Aim
signal.signal(signal.SIGINT, signal.default_int_handler)
gc.disable()
warnings.simplefilter("ignore", ResourceWarning)  # a file that was opened for nobody
GpuExecutor(simulate=1)  # what is done once in a process is done
aim = Aim(sys.argv[1])
number, interrupted = 1, True
while interrupted:
    try:
        aim.at(number)
        GpuExecutor(simulate=1)
        interrupted = aim.count() >= number
        assert not interrupted, f"{number}: nothing came"
    except KeyboardInterrupt as interrupt:
        assert interrupt.__context__ is None, f"{number}: it came with a second traceback"
    number += int(sys.argv[2])
print("fine" if number > 1000 else number)
"""


def test_an_interrupt_while_an_executor_is_made_has_one_traceback(
    library: Path, tmp_path: Path
) -> None:
    out, err, status = script.run(tmp_path / "script.py", MAKES, library, 7)
    assert (out, err, status) == ("fine\n", "", 0)


FROM_A_HANDLER = """
import gc, signal, sys
from gpulaunch import GpuExecutor
from tests.executor import work
from tests.executor.aim import Aim
def leave(number, frame):
    executor.shutdown(wait=False, cancel_futures=True)
    raise KeyboardInterrupt
signal.signal(signal.SIGINT, leave)
gc.disable()
aim = Aim(sys.argv[1])
number, interrupted = 1, True
while interrupted:
    executor, interrupted = GpuExecutor(simulate=1), False
    try:
        aim.at(number)
        executor.submit(work.double, 4)
        aim.count()
    except KeyboardInterrupt:
        interrupted = True
    executor.shutdown()
    number += int(sys.argv[2])
print("fine" if number > 100 else number)
"""


def test_a_signals_handler_may_shut_down_the_executor_that_its_thread_is_in(
    library: Path, tmp_path: Path
) -> None:
    out, err, status = script.run(tmp_path / "script.py", FROM_A_HANDLER, library, 7)
    assert (out, err, status) == ("fine\n", "", 0)


CANCELLED = """
import gc, os, signal, sys
from concurrent import futures
from gpulaunch import GpuExecutor
from tests.executor import work
from tests.executor.aim import Aim
from tests.helpers import goes_along, wait_until
signal.signal(signal.SIGINT, signal.default_int_handler)
gc.disable()
aim, directory = Aim(sys.argv[1]), sys.argv[2]
number, interrupted = 1, True
with GpuExecutor(simulate=1) as executor:
    executor.submit(work.double, 4).result()
    while interrupted:
        here, go = (os.path.join(directory, f"{name}-{number}") for name in ("here", "go"))
        gate = executor.submit(work.wait_for, here)
        running = executor.submit(work.wait_for, go)
        sent = [executor.submit(work.double, n) for n in range(3)]
        open(here, "w").close()
        wait_until(lambda: running.running() and all(future.place for future in sent), 60)
        interrupted = False
        try:
            aim.at(number)
            sent[1].cancel()
            aim.count()
        except KeyboardInterrupt:
            interrupted = True
        open(go, "w").close()
        done, left = futures.wait([gate, running, *sent], 60)
        assert not left, (number, left)
        assert sent[0].result() == 0 and sent[2].result() == 4
        assert sent[1].cancelled() or interrupted and sent[1].result() == 2
        number += int(sys.argv[3])
print("fine" if number > 100 else number)
"""


def test_an_interrupted_cancel_loses_no_item(library: Path, tmp_path: Path) -> None:
    out, err, status = script.run(tmp_path / "script.py", CANCELLED, library, tmp_path, 3)
    assert (out, err, status) == ("fine\n", "", 0)


def test_workers_are_gone_when_an_interrupted_shutdown_is_followed_by_an_end(
    tmp_path: Path,
) -> None:
    text = """
    import os, signal, sys, threading
    from gpulaunch import GpuExecutor
    from tests.executor import work
    from tests.executor.test_workers import alive
    signal.signal(signal.SIGINT, signal.default_int_handler)
    here, executor = sys.argv[1], GpuExecutor(simulate=1)
    worker = executor.submit(work.pid).result(60)
    future = executor.submit(work.wait_for, "/never")
    left = threading.Event()
    def interrupt():
        while not left.wait(0.3):  # again, as one may come before the wait begins
            os.kill(os.getpid(), signal.SIGINT)
            break
    threading.Thread(target=interrupt).start()
    try:
        executor.shutdown()
    except KeyboardInterrupt:
        left.set()
    assert alive(worker) and not future.done()
    executor.terminate_workers()
    assert not alive(worker)
    assert future.done()
    print("fine")
    """
    out, err, status = script.run(tmp_path / "script.py", text, tmp_path)
    assert (out, err, status) == ("fine\n", "", 0)


LEAVES = """
import os, signal, sys, threading
from gpulaunch import GpuExecutor
from tests.executor import work
signal.signal(signal.SIGINT, signal.default_int_handler)
def interrupt(running):
    running.result(60)
    os.kill(os.getpid(), signal.SIGINT)
"""


def test_an_interrupt_that_another_error_hides_ends_the_workers_as_well(tmp_path: Path) -> None:
    text = LEAVES + textwrap.dedent("""
    with GpuExecutor(simulate=1) as executor:
        executor.submit(work.wait_for, "/never")
        try:
            raise KeyboardInterrupt
        except KeyboardInterrupt:
            sys.exit(3)
    """)
    assert script.run(tmp_path / "script.py", text) == ("", "", 3)


def test_an_interrupt_at_the_end_of_a_with_block_ends_the_workers(tmp_path: Path) -> None:
    text = LEAVES + textwrap.dedent("""
    try:
        with GpuExecutor(simulate=1) as executor:
            worker = executor.submit(work.pid)
            future = executor.submit(work.wait_for, "/never")
            threading.Thread(target=interrupt, args=(worker,)).start()
    except KeyboardInterrupt:
        assert future.done()
        print("fine")
    """)
    assert script.run(tmp_path / "script.py", text) == ("fine\n", "", 0)


@starts_threads_at_exit
def test_an_interrupt_at_exit_ends_what_is_pending_and_is_told_once(tmp_path: Path) -> None:
    text = LEAVES + textwrap.dedent("""
    import atexit
    atexit.register(print, "other hooks are called")
    executor = GpuExecutor(simulate=1)
    worker = executor.submit(work.pid)
    executor.submit(work.wait_for, "/never")
    threading.Thread(target=interrupt, args=(worker,), daemon=True).start()
    """)
    out, err, status = script.run(tmp_path / "script.py", text)
    assert (out, status) == ("other hooks are called\n", -signal.SIGINT), err
    assert err.count("Traceback") == 1
    assert err.endswith("\nKeyboardInterrupt\n")


def test_an_interrupt_in_a_wait_for_what_is_no_future_is_not_lost(tmp_path: Path) -> None:
    text = """
    import signal
    from concurrent import futures
    from gpulaunch.executor import GpuFuture
    class Last(int):
        pass
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for _ in range(2):
        try:
            # Enough for one of ours to have the lowest address, and so to come first.
            futures.wait([*(GpuFuture() for _ in range(64)), Last()])
        except AttributeError:
            pass
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt:
            assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
            print("it came")
    """
    assert script.run(tmp_path / "script.py", text) == ("it came\nit came\n", "", 0)


@pytest.mark.parametrize(
    "shape",
    [
        pytest.param(shape, marks=[starts_threads_at_exit] if shape == "exit" else [])
        for shape in interrupted.SHAPES
    ],
)
def test_one_ctrl_c_ends_a_script_whenever_it_comes(shape: str, library: Path) -> None:
    with ThreadPoolExecutor(4) as pool:
        ends = list(pool.map(lambda arguments: shot(*arguments), shots(shape, library)))
    problems = [end.problem for end in ends if end.problem]
    assert not problems, f"{len(problems)} of {len(ends)}:\n" + "\n".join(problems[:10])
