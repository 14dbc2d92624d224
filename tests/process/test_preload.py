"""A preload server by itself: what it imports, when it refuses, and who outlives whom."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpulaunch.core.model import Cancelled, Exited, Signaled, TimedOut
from gpulaunch.engines.client import AttemptOver, Gone, ProgramStarted, StartedCold
from gpulaunch.engines.local.preload_client import (
    Preload,
    PreloadReady,
    PreloadServer,
    PreloadUnavailable,
    Vanished,
)
from gpulaunch.engines.local.preloads import EARLY, forkable
from tests.explain.support import ALL
from tests.helpers import goes_along, wait_until
from tests.process.preloaded import news_of
from tests.process.support import Slot, children_of, marked, token

OLDEST, NEWEST = ALL[0], ALL[-1]


class Bench:
    """A directory with a script and pretend libraries, and servers for them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.python = NEWEST
        self.site = folder / "lib" / "site-packages"
        self.site.mkdir(parents=True)
        self.env = {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(self.site),
            "PYTHONDONTWRITEBYTECODE": "1",
            "HOME": str(folder),
        }
        self.servers = 0
        self.script("print('no import')")

    def script(self, text: str, name: str = "script.py") -> Path:
        path = self.folder / name
        path.write_text(text)
        return path

    def library(self, name: str, text: str = "") -> str:
        path = self.site / f"{name.replace('.', '/')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return name

    @contextlib.contextmanager
    def serving(self, *modules: str, auto: bool = False, **more: object) -> Iterator[PreloadServer]:
        found = forkable([self.python, "script.py"], str(self.folder), self.env, False)
        preload = Preload(
            found.python,
            found.start,
            found.target,
            str(self.folder),
            self.env,
            None if auto else modules,
            EARLY,
            **more,  # type: ignore[arg-type]
        )
        self.servers += 1
        with PreloadServer(preload, str(self.folder / f"imports.{self.servers}")) as server:
            yield server
            assert server.said() == ""

    def news(
        self, *modules: str, auto: bool = False, **more: object
    ) -> PreloadReady | PreloadUnavailable:
        with self.serving(*modules, auto=auto, **more) as server:
            news = news_of(server)
            assert not isinstance(news, Vanished)
            return news

    def refusal(self, text: str, **more: object) -> str:
        """What is said to a library that does this when it is imported."""
        news = self.news(self.library("library", text), **more)
        assert isinstance(news, PreloadUnavailable)
        return news.why

    @contextlib.contextmanager
    def slot(self, *modules: str, leases: tuple[int, ...] = (), **more: object) -> Iterator[Slot]:
        with self.serving(*modules, **more) as server:
            assert isinstance(news_of(server), PreloadReady)
            folder = self.folder / f"slot.{self.servers}"
            folder.mkdir()
            with Slot(server, folder, leases) as slot:
                yield slot

    def run(self, slot: Slot, *args: str, **limits: object) -> AttemptOver:
        self.launch(slot, *args, **limits)
        return slot.expect(AttemptOver, 120)

    def launch(self, slot: Slot, *args: str, **limits: object) -> None:
        argv = [self.python, "script.py", *args]
        found = forkable(argv, str(self.folder), self.env, False)
        files = {"cwd": str(self.folder), "env_set": self.env, "main": found.main}
        slot.launch(*argv, **files, **limits)


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


# ── What it refuses ─────────────────────────────────────────────────────────────────────────────


def test_an_import_that_fails_is_named(bench: Bench) -> None:
    assert bench.news("no_such") == PreloadUnavailable(
        "import no_such fails: ModuleNotFoundError: No module named 'no_such'"
    )
    assert bench.refusal("1/0") == "import library fails: ZeroDivisionError: division by zero"
    assert "SystemExit: 3" in bench.refusal("raise SystemExit(3)")


def test_an_import_that_crashes_is_said(bench: Bench) -> None:
    text = "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)"
    assert bench.refusal(text) == "importing ended with signal 11"
    assert "status 5" in bench.refusal("import os; os._exit(5)")


def test_an_import_that_hangs_is_ended_with_all_that_it_started(bench: Bench) -> None:
    mark = token()
    text = f"import subprocess; subprocess.run(['sh', '-c', 'sleep 600; : {mark}'])"
    assert bench.refusal(text, limit=1.0) == "importing took longer than 1 s"
    assert marked(mark) == []


def test_threads_that_imports_leave_are_too_many(bench: Bench) -> None:
    text = "import threading, time\n"
    text += "threading.Thread(target=time.sleep, args=(600,), daemon=True).start()"
    assert "1 threads running" in bench.refusal(text)


def test_processes_that_imports_leave_are_ended(bench: Bench) -> None:
    mark = token()
    why = bench.refusal(
        f"import subprocess\np = subprocess.Popen(['sh', '-c', 'sleep 600; : {mark}'])"
    )
    assert why == "an import left a process running"
    assert marked(mark) == []


def test_a_card_in_use_is_known_by_its_descriptor(bench: Bench) -> None:
    node = bench.folder / "nvidia0"
    node.touch()
    cards = (str(bench.folder / "nvidia"),)
    assert bench.refusal(f"f = open({str(node)!r})", cards=cards) == (
        f"an import opened {node}: it uses the card"
    )


def test_connections_that_imports_leave_open_are_not_shared(bench: Bench) -> None:
    assert "connection" in bench.refusal("import socket; s = socket.socketpair()")
    assert "eventpoll" in bench.refusal("import select; e = select.epoll()")


def test_torch_is_asked_in_a_forked_child_whether_cuda_was_begun(bench: Bench) -> None:
    native = "import os\nME = os.getpid()\nclass _C:\n    @staticmethod\n"
    native += "    def _cuda_isInBadFork():\n        return os.getpid() != ME"
    news = bench.news(bench.library("torch", native))
    assert news == PreloadUnavailable("an import initialised CUDA")
    assert isinstance(
        bench.news(bench.library("torch", native.replace("!= ME", "== 0"))), PreloadReady
    )


DRIVER = """
static int begun;
int cuInit(unsigned flags) { begun = 1; return 0; }
int cuDeviceGetCount(int *count) { if (!begun) return 3; *count = 1; return 0; }
"""


def test_a_driver_that_is_only_mapped_is_told_from_one_that_was_begun(bench: Bench) -> None:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler (cc) to build a pretend libcuda with")
    library = bench.folder / "libcuda.so.1"
    source = bench.script(DRIVER, "cuda.c")
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, source], check=True)
    bench.env["LD_LIBRARY_PATH"] = str(bench.folder)
    mapped = "import ctypes; cuda = ctypes.CDLL('libcuda.so.1')"
    assert isinstance(bench.news(bench.library("mapped", mapped)), PreloadReady)
    assert bench.refusal(mapped + "; cuda.cuInit(0)") == "an import initialised CUDA's driver"


def test_what_replaces_the_keepers_tools_is_not_for_them(bench: Bench) -> None:
    text = "import time\ntime.sleep = lambda seconds: None"
    assert bench.refusal(text) == "an import replaces time.sleep"


def test_a_script_that_sets_what_imports_read_starts_cold(bench: Bench) -> None:
    bench.script("import os\nos.environ['LIBRARY_HOME'] = '/x'\nimport library\n")
    assert "sets LIBRARY_HOME" in bench.refusal("import os; HOME = os.getenv('LIBRARY_HOME')")
    assert isinstance(bench.news(bench.library("library", "")), PreloadReady)
    bench.script("import os\nos.environ.setdefault('OMP_NUM_THREADS', '1')\nimport library\n")
    assert "sets OMP_NUM_THREADS" in bench.refusal("")


def test_a_variable_that_each_attempt_has_its_own_cannot_be_read_once(bench: Bench) -> None:
    why = bench.refusal("import os; os.environ.get('GPULAUNCH_OUT')", own=("GPULAUNCH_OUT",))
    assert why == "an import reads GPULAUNCH_OUT, which every attempt has its own"


def test_a_file_beside_the_script_may_stand_before_one_of_pythons(bench: Bench) -> None:
    bench.script("X = 1", "ctypes.py")
    news = bench.news(bench.library("library"))
    assert isinstance(news, PreloadUnavailable)
    assert news.why.endswith("ctypes.py stands before Python's own module")


def test_an_interpreter_that_is_too_old_says_so_and_runs_nothing(bench: Bench) -> None:
    old = sorted(Path.home().glob(".pyenv/versions/[23].[67]*/bin/python"))
    if not old:
        pytest.skip("no Python older than 3.8 here")
    bench.script("open('ran', 'w')")
    for python in old:
        bench.python = str(python)
        assert bench.news("os") == PreloadUnavailable("it is no CPython of version 3.8 or newer")
    assert not (bench.folder / "ran").exists()


def test_an_interpreter_that_does_not_come_to_the_server_runs_no_script(bench: Bench) -> None:
    """The server's command line is the job's: it must not run it by accident."""
    program = bench.folder / "wrapped"
    program.write_text(f'#!/bin/sh\nunset PYTHONPATH\nexec {NEWEST} "$@"\n')
    program.chmod(0o755)
    bench.script("open('ran', 'w')")
    preload = Preload(
        str(program), (str(program),), ("script.py",), str(bench.folder), bench.env, ("os",)
    )
    with PreloadServer(preload, str(bench.folder / "imports")) as server:
        news = news_of(server)
    assert news == PreloadUnavailable(
        "it does not begin with what PYTHONPATH names (sitecustomize)"
    )
    assert not (bench.folder / "ran").exists()


# ── What it imports ─────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("python", [OLDEST, NEWEST])
def test_auto_finds_what_the_script_imports(bench: Bench, python: str) -> None:
    bench.python = python
    for name in ("heavy", "heavier.part", "lazy", "typed", "bitsandbytes", "behind", "optional"):
        bench.library(name)
    bench.library("broken", "import nothing_of_that_name")
    bench.script("import behind, json\n", "local.py")
    bench.script(
        "import os, local\nimport heavy as h\nfrom typing import TYPE_CHECKING\n"
        "from heavier.part import *\ntry:\n    import optional, absent\nexcept ImportError: pass\n"
        "if TYPE_CHECKING:\n    import typed\nimport bitsandbytes, broken\n"
        "def later():\n    import lazy\n"
    )
    news = bench.news(auto=True)
    assert isinstance(news, PreloadReady)
    assert news.modules == ("heavy", "heavier.part", "optional", "behind")
    assert news.left_out == {
        "bitsandbytes": "it initialises CUDA when it is imported",
        "broken": "ModuleNotFoundError: No module named 'nothing_of_that_name'",
    }


def test_auto_says_that_it_found_nothing(bench: Bench) -> None:
    assert bench.news(auto=True) == PreloadUnavailable("nothing to import was found in script.py")


def test_it_says_what_imports_read_but_not_what_they_hand_on(bench: Bench) -> None:
    text = "import os\nos.getenv('ONE')\ndict(os.environ)\nos.environ.copy()\n'TWO' in os.environ\n"
    text += "[os.environ[n] for n in os.environ if n.startswith('HO')]"
    news = bench.news(bench.library("library", text))
    assert isinstance(news, PreloadReady)
    assert news.reads == {"ONE", "TWO", "HOME"}


def test_what_imports_print_is_in_every_log_and_what_they_set_in_every_environment(
    bench: Bench,
) -> None:
    bench.library("library", "import os\nprint('noise')\nos.environ['SET'] = 'by it'")
    bench.script("import os, library\nprint(os.environ['SET'])")
    with bench.slot("library") as slot:
        for _ in range(2):
            assert bench.run(slot).end.outcome == Exited(0)
            assert slot.log.read_text() == "noise\nby it\n"


def test_random_numbers_are_drawn_anew_unless_an_import_has_seeded(bench: Bench) -> None:
    bench.library("library", "import random\nrandom.seed(3)")
    bench.script("import random\nprint(random.random())")
    logs = []
    for module in ("library", "library", "random", "random"):
        with bench.slot(module) as slot:
            bench.run(slot)
            logs.append(slot.log.read_text())
    assert logs[0] == logs[1]
    assert len(set(logs)) == 3


def test_a_local_file_that_changed_since_is_read_anew(bench: Bench) -> None:
    bench.script("VALUE = 1", "local.py")
    bench.script("import local\nprint(local.VALUE)")
    with bench.slot("local") as slot:
        bench.run(slot)
        assert slot.log.read_text() == "1\n"
        bench.script("VALUE = 'another'", "local.py")
        bench.launch(slot)
        assert "local.py" in slot.expect(StartedCold).why
        slot.expect(AttemptOver)
        assert slot.log.read_text() == "another\n"


# ── What imports have called at forks ───────────────────────────────────────────────────────────

AT_FORK = """
import os, threading, time
forks = os.path.join({folder!r}, "forks")
def hook():
    with open(forks, "a") as file:
        file.write("x")
    if os.path.getsize(forks) >= {nth}:
        {does}
os.register_at_fork({when}=hook)
"""
HANG = "os.read(os.pipe()[0], 1)"
REGISTERED = "what is called at forks (os.register_at_fork, pthread_atfork)"


def at_fork(bench: Bench, when: str, does: str, nth: int = 1) -> str:
    text = AT_FORK.format(folder=str(bench.folder), when=when, does=does, nth=nth)
    return bench.library("library", text)


@pytest.mark.parametrize("python", [OLDEST, NEWEST])
@pytest.mark.parametrize("when", ["before", "after_in_child"])
def test_a_hook_that_hangs_at_the_first_fork_is_refused(
    bench: Bench, python: str, when: str
) -> None:
    bench.python = python
    mark = bench.env["MARK"] = token()
    news = bench.news(at_fork(bench, when, HANG), at_fork=1.0)
    assert news == PreloadUnavailable(f"{REGISTERED} had not returned after 1 s")
    assert marked(mark, "environ") == []


@pytest.mark.parametrize("when", ["before", "after_in_child"])
def test_a_hook_that_ends_the_process_is_refused(bench: Bench, when: str) -> None:
    mark = bench.env["MARK"] = token()
    news = bench.news(at_fork(bench, when, "os._exit(0)"))
    assert isinstance(news, PreloadUnavailable)
    assert news.why.startswith(f"{REGISTERED} ended ")
    assert marked(mark, "environ") == []


@pytest.mark.parametrize("python", [OLDEST, NEWEST])
@pytest.mark.parametrize(
    ("does", "what"), [(HANG, "had not returned after 3 s"), ("os._exit(0)", "ended the process")]
)
@pytest.mark.parametrize("nth", [2, 3])
def test_a_hook_that_holds_up_a_later_child_has_its_job_start_cold(
    bench: Bench, python: str, does: str, what: str, nth: int
) -> None:
    bench.python = python
    mark = bench.env["MARK"] = token()
    bench.script("import sys\nprint('library' in sys.modules)")
    with bench.slot(at_fork(bench, "after_in_child", does, nth), at_fork=3.0) as slot:
        for _ in range(nth - 2):
            assert bench.run(slot).end.outcome == Exited(0)
            assert slot.log.read_text() == "True\n"
        bench.launch(slot, timeout=2.9)
        assert slot.expect(StartedCold) == StartedCold(
            f"job.{nth - 1}", f"{REGISTERED} {what}", for_good=True
        )
        assert slot.expect(AttemptOver).end.outcome == Exited(0)
        assert slot.log.read_text() == "False\n"
        assert bench.run(slot).end.outcome == Exited(0)
        slot.finish()
    wait_until(lambda: marked(mark, "environ") == [])


@pytest.mark.parametrize("when", ["before", "after_in_parent"])
def test_hooks_for_the_parent_hold_up_no_later_fork(bench: Bench, when: str) -> None:
    mark = bench.env["MARK"] = token()
    nth = 1 if when == "after_in_parent" else 2
    with bench.slot(at_fork(bench, when, HANG, nth)) as slot:
        for _ in range(3):
            assert bench.run(slot, outputs=("/nowhere",), timeout=30.0).end.leftovers == 0
        slot.finish()
    wait_until(lambda: marked(mark, "environ") == [])


def test_a_hook_that_takes_long_but_ends_counts_to_no_job(bench: Bench) -> None:
    with bench.slot(at_fork(bench, "after_in_child", "time.sleep(3)", nth=2)) as slot:
        ended = bench.run(slot, timeout=2.9)
        assert ended.end.outcome == Exited(0)
        assert slot.log.read_text() == "no import\n"


@pytest.mark.parametrize("when", ["before", "after_in_child"])
def test_a_hook_that_raises_is_ignored_as_at_any_fork(bench: Bench, when: str) -> None:
    with bench.slot(at_fork(bench, when, "print('x'); raise SystemExit(3)")) as slot:
        assert bench.run(slot).end.outcome == Exited(0)
        assert slot.log.read_text() == "no import\n"


def test_a_job_whose_hook_hangs_can_be_stopped(bench: Bench) -> None:
    with bench.slot(at_fork(bench, "after_in_child", HANG, nth=2), at_fork=600.0) as slot:
        bench.launch(slot)
        wait_until(lambda: (bench.folder / "forks").read_text() == "xx")
        slot.pair.stop("cancelled")
        assert slot.expect(AttemptOver).end.outcome == Cancelled()  # it was not the job yet
        slot.finish()


def test_nothing_that_hangs_at_a_fork_outlives_its_supervisor(bench: Bench) -> None:
    mark = bench.env["MARK"] = token()
    with bench.slot(at_fork(bench, "after_in_child", HANG, nth=2), at_fork=600.0) as slot:
        bench.launch(slot)
        wait_until(lambda: (bench.folder / "forks").read_text() == "xx")
    wait_until(lambda: marked(mark, "environ") == [])


@pytest.mark.parametrize("python", [OLDEST, NEWEST])
def test_a_jobs_own_forks_call_what_imports_registered(bench: Bench, python: str) -> None:
    bench.python = python
    bench.library(
        "library",
        "import os\nfrom os import register_at_fork as register\ncalls = []\n"
        "for name in ('before', 'after_in_parent', 'after_in_child'):\n"
        "    for n in (1, 2):\n"
        "        register(**{name: lambda word=f'{name} {n}': calls.append(word)})\n",
    )
    bench.script(
        "import library, os, sys\nprint(os.register_at_fork.__name__, type(os.register_at_fork))\n"
        "library.calls.clear()\n"
        "library.register(before=lambda: library.calls.append('late'))\nsys.stdout.flush()\n"
        "if os.fork():\n    os.wait()\nprint(library.calls, flush=True)\n"
    )
    before = ["late", "before 2", "before 1"]
    with bench.slot("library") as slot:
        assert bench.run(slot).end.outcome == Exited(0)
        assert slot.log.read_text().splitlines() == [
            "register_at_fork <class 'builtin_function_or_method'>",
            str([*before, "after_in_child 1", "after_in_child 2"]),
            str([*before, "after_in_parent 1", "after_in_parent 2"]),
        ]


def test_what_the_interpreter_would_not_register_is_refused_to_imports(bench: Bench) -> None:
    for call in ("os.register_at_fork()", "os.register_at_fork(before=3)"):
        assert "TypeError" in bench.refusal(f"import os\n{call}")


# ── Keepers' promises ───────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("python", ALL)
def test_timeouts_stops_and_sweeps_hold_for_forked_jobs(
    bench: Bench, python: str, nasty: str
) -> None:
    bench.python = python
    mark = token()
    bench.script(
        "import subprocess, sys, time\n"
        "if sys.argv[1] == 'daemons': sys.exit(subprocess.call(sys.argv[2:]))\n"
        "print('begun', flush=True)\ntime.sleep(600)\n"
    )
    with bench.slot("json") as slot:
        assert bench.run(slot, "daemons", nasty, "daemons-exit", mark).end.leftovers == 3
        ended = bench.run(slot, "sleeps", timeout=0.3, grace=5.0)
        assert ended.end.outcome == TimedOut("timeout", 0.3, Signaled(15))
        bench.launch(slot, "sleeps")
        pid = slot.expect(ProgramStarted).pid
        assert os.getsid(pid) == pid
        slot.pair.stop("cancelled")
        assert slot.expect(AttemptOver).end.outcome == Cancelled(Signaled(15))
        assert bench.run(slot, "sleeps", outputs=("/nowhere",), timeout=0.1).end.leftovers == 0
        slot.finish()
    assert marked(mark) == []


def test_a_forked_job_holds_its_lease_and_its_children_do(bench: Bench) -> None:
    name = f"\0gpulaunch-test/{token()}"
    bench.script(
        "import os, subprocess, sys\n"
        "print(sorted(int(n) for n in os.listdir('/proc/self/fd') if int(n) >= 100), flush=True)\n"
        "subprocess.call('ls /proc/self/fd', shell=True, close_fds=False)\n"
    )
    with socket.socket(socket.AF_UNIX) as lease:
        lease.bind(name)
        with bench.slot("json", leases=(lease.fileno(),)) as slot:
            bench.run(slot)
            first, *rest = slot.log.read_text().splitlines()
            assert first == "[100]"
            assert "100" in rest
            slot.finish()


def test_pairs_outlive_their_server(bench: Bench) -> None:
    bench.script("import sys\nprint(sys.stdin.read(), 'json' in sys.modules)")
    with bench.serving("json") as server:
        assert isinstance(news_of(server), PreloadReady)
        with Slot(server, bench.folder) as slot:
            (spawner,) = children_of(server.pid)
            wait_until(lambda: children_of(spawner))  # its guardian
            os.kill(spawner, signal.SIGKILL)
            assert news_of(server) == Vanished()
            assert bench.run(slot).end.outcome == Exited(0)
            slot.pair.end()
            slot.expect(Gone)


def test_nothing_is_left_when_it_is_closed_while_it_imports(bench: Bench) -> None:
    mark = token()
    text = f"import subprocess; subprocess.run(['sh', '-c', 'sleep 600; : {mark}'])"
    with bench.serving(bench.library("library", text)):
        wait_until(lambda: marked(mark))
    wait_until(lambda: marked(mark) == [])


SUPERVISOR = """
import sys, time
from pathlib import Path
from tests.process.test_preload import Bench
from gpulaunch.engines.client import ProgramStarted
folder, nasty, mark = sys.argv[1:]
bench = Bench(Path(folder))
bench.script("import subprocess, sys; print('x', flush=True); subprocess.call(sys.argv[1:])")
if nasty == "importing":
    text = f"import subprocess; subprocess.run(['sh', '-c', 'sleep 600; : {mark}'])"
    with bench.serving(bench.library("library", text)):
        time.sleep(600)
with bench.slot("json") as slot:
    for mode in ("daemons", "ignore-term", "tree"):
        pair = slot.spawner.pair()
        slot.pair = pair
        bench.launch(slot, nasty, mode, mark, grace=0.2)
        slot.expect(ProgramStarted)
    Path(folder, "up").touch()
    time.sleep(600)
"""


@pytest.mark.parametrize("victims", ["supervisor", "supervisor server", "server supervisor"])
def test_no_forked_job_survives_its_supervisor(tmp_path: Path, nasty: str, victims: str) -> None:
    mark = token()
    folder = tmp_path / "run"
    folder.mkdir()
    with _supervisor(folder, nasty, mark) as process:
        wait_until((folder / "up").exists)
        wait_until(lambda: len([pid for pid in marked(mark) if pid != process.pid]) >= 6)
        (guard,) = children_of(process.pid)
        pids = {"supervisor": process.pid, "server": children_of(guard)[0]}
        for who in victims.split():
            os.kill(pids[who], signal.SIGKILL)
        process.wait()
        wait_until(lambda: marked(mark) == [], 60.0, "every job gone")
        wait_until(lambda: marked(mark, "environ") == [], 60.0, "every keeper gone")


def test_an_import_does_not_survive_its_supervisor(tmp_path: Path) -> None:
    mark = token()
    folder = tmp_path / "run"
    folder.mkdir()
    with _supervisor(folder, "importing", mark) as process:
        wait_until(lambda: len(marked(mark)) >= 2)
        process.kill()
        process.wait()
        wait_until(lambda: marked(mark) == [], 60.0, "the import gone")
        wait_until(lambda: marked(mark, "environ") == [], 60.0, "guard and server gone")


@contextlib.contextmanager
def _supervisor(folder: Path, *argv: str) -> Iterator[subprocess.Popen[bytes]]:
    root = Path(__file__).parents[2]
    mark = argv[-1]
    process = subprocess.Popen(
        [sys.executable, "-c", SUPERVISOR, str(folder), *argv],
        env={**os.environ, "PYTHONPATH": str(root), "MARK": mark},
        start_new_session=True,
        preexec_fn=goes_along(),
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def test_a_forked_job_enters_its_cgroup_before_its_script(bench: Bench, tmp_path: Path) -> None:
    procs = tmp_path / "cgroup.procs"
    procs.touch()
    bench.script(f"import os; print(open({str(procs)!r}).read() == str(os.getpid()))")
    with bench.slot(bench.library("library")) as slot:
        assert bench.run(slot, cgroup=str(procs)).end.outcome == Exited(0)
        assert slot.log.read_text() == "True\n"
