"""What C libraries and .pth files have called at forks, under preload servers."""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import subprocess
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from gpulaunch.core.model import Cancelled, Exited
from gpulaunch.engines.client import AttemptOver, StartedCold
from gpulaunch.engines.local.preload_client import PreloadUnavailable
from tests.helpers import wait_until
from tests.process.support import Slot, children_of, marked, token
from tests.process.test_preload import HANG, NEWEST, OLDEST, Bench

SOURCE = Path(__file__).with_name("handlers.c")
AT_FORK = "what is called at forks (os.register_at_fork, pthread_atfork)"
LIBRARY = """
import ctypes
ctypes.CDLL({library!r}).begin({counted!r}.encode(), b"{hangs}", {nth}, b"{keeps}")
"""
IN_PTH = """
import os
forks = os.path.join({folder!r}, "forks")
def hook():
    with open(forks, "a") as file:
        file.write("x")
    if os.path.getsize(forks) >= {nth}:
        {does}
os.register_at_fork({when}=hook)
"""
PROBED = 3
"""So often each handler is called before a server serves."""

Registers = Callable[..., str]

quiet = pytest.mark.skipif(
    not hasattr(ctypes.CDLL(None), "_Fork"),
    reason="without _Fork (glibc 2.34, musl 1.2.3) handlers are called in keepers",
)


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    bench = Bench(tmp_path)
    bench.script("import sys\nprint('library' in sys.modules)")
    bench.env["MARK"] = token()
    return bench


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler (cc)")
    built = tmp_path_factory.mktemp("handlers") / "handlers.so"
    subprocess.run([compiler, "-shared", "-fPIC", str(SOURCE), "-o", str(built)], check=True)
    return built


@pytest.fixture
def in_c(bench: Bench, library: Path) -> Registers:
    def register(hangs: str = "", nth: int = 0, keeps: str = "") -> str:
        counted = str(bench.folder / "forks")
        text = LIBRARY.format(
            library=str(library), counted=counted, hangs=hangs, nth=nth, keeps=keeps
        )
        return bench.library("library", text)

    return register


@pytest.fixture
def in_pth(bench: Bench) -> Registers:
    """In the user's own site-packages, which is below HOME."""

    def register(when: str, nth: int) -> str:
        asked = [bench.python, "-c", "import site; print(site.getusersitepackages())"]
        done = subprocess.run(
            asked, env=bench.env, capture_output=True, text=True, check=True, timeout=60
        )
        site = Path(done.stdout.strip())
        site.mkdir(parents=True)
        (site / "hooks.pth").write_text("import hooks_of_a_pth_file\n")
        text = IN_PTH.format(folder=str(bench.folder), when=when, does=HANG, nth=nth)
        (site / "hooks_of_a_pth_file.py").write_text(text)
        return bench.library("library")

    return register


def keepers_of(slot: Slot) -> tuple[int, int]:
    """Guardian and monitor: below the guard is the server."""
    (server,) = wait_until(lambda: children_of(slot.spawner.pid))
    (guardian,) = wait_until(lambda: children_of(server))
    (monitor,) = wait_until(lambda: children_of(guardian))
    return guardian, monitor


def refuses(bench: Bench, module: str) -> None:
    news = bench.news(module, at_fork=1.0)
    assert news == PreloadUnavailable(f"{AT_FORK} had not returned after 1 s")
    assert marked(bench.env["MARK"], "environ") == []


def serves(bench: Bench, module: str, cold: bool) -> None:
    """Three jobs end, none by its timeout, and nobody is left after them."""
    with bench.slot(module, at_fork=2.0) as slot:
        for number in (1, 2, 3):
            bench.launch(slot, timeout=30.0)
            if cold and number == 1:
                assert slot.expect(StartedCold) == StartedCold(
                    "job.1", f"{AT_FORK} had not returned after 2 s", for_good=True
                )
            assert slot.expect(AttemptOver).end.outcome == Exited(0)
            assert slot.log.read_text() == f"{not cold}\n"
        slot.finish()
    wait_until(lambda: marked(bench.env["MARK"], "environ") == [])


@pytest.mark.parametrize("python", [OLDEST, NEWEST])
@pytest.mark.parametrize("hangs", ["prepare", "parent", "child"])
def test_a_c_librarys_handler_that_hangs_is_refused(
    bench: Bench, in_c: Registers, python: str, hangs: str
) -> None:
    bench.python = python
    refuses(bench, in_c(hangs, nth=1))


@pytest.mark.parametrize("keeps", ["parent", "child"])
def test_a_c_librarys_lock_that_is_kept_at_a_fork_is_refused(
    bench: Bench, in_c: Registers, keeps: str
) -> None:
    """It is the next fork that hangs: a job's own, which in a cold start would be the first."""
    refuses(bench, in_c(keeps=keeps))


@quiet
@pytest.mark.parametrize("python", [OLDEST, NEWEST])
@pytest.mark.parametrize("hangs", ["prepare", "parent", "child"])
def test_a_c_librarys_handler_that_hangs_later_holds_up_one_jobs_start_and_no_keeper(
    bench: Bench, in_c: Registers, python: str, hangs: str
) -> None:
    bench.python = python
    serves(bench, in_c(hangs, nth=PROBED + 1), cold=True)


@quiet
@pytest.mark.parametrize("hangs", ["prepare", "parent", "child"])
def test_a_job_that_a_c_librarys_handler_holds_up_can_be_stopped(
    bench: Bench, in_c: Registers, hangs: str
) -> None:
    module = in_c(hangs, nth=PROBED + 1)
    with bench.slot(module, at_fork=600.0) as slot:
        bench.launch(slot)
        wait_until(lambda: len((bench.folder / "forks").read_text()) == PROBED + 1)
        slot.pair.stop("cancelled")
        assert slot.expect(AttemptOver).end.outcome == Cancelled()  # it was not the job yet
        slot.finish()
    wait_until(lambda: marked(bench.env["MARK"], "environ") == [])


@quiet
@pytest.mark.parametrize("victim", ["the supervisor", "monitor", "guardian and monitor"])
@pytest.mark.parametrize("hangs", ["prepare", "parent", "child"])
def test_what_a_c_librarys_handler_holds_up_dies_with_its_keepers(
    bench: Bench, in_c: Registers, hangs: str, victim: str
) -> None:
    module = in_c(hangs, nth=PROBED + 1)
    with bench.slot(module, at_fork=600.0) as slot:
        guardian, monitor = keepers_of(slot)
        wait_until(lambda: len((bench.folder / "forks").read_text()) == PROBED + 1)
        for pid in {"monitor": [monitor], "guardian and monitor": [guardian, monitor]}.get(
            victim, []
        ):
            with suppress(ProcessLookupError):  # a monitor without a guardian may be gone by now
                os.kill(pid, signal.SIGKILL)
    wait_until(lambda: marked(bench.env["MARK"], "environ") == [])


@quiet
@pytest.mark.parametrize("python", [OLDEST, NEWEST])
def test_a_c_librarys_handlers_are_called_once_for_each_job(
    bench: Bench, in_c: Registers, python: str
) -> None:
    bench.python = python
    serves(bench, in_c("child", nth=1000), cold=False)
    assert len((bench.folder / "forks").read_text()) <= PROBED + 4  # a fourth job may be forked


@pytest.mark.parametrize("python", [OLDEST, NEWEST])
@pytest.mark.parametrize("when", ["before", "after_in_parent", "after_in_child"])
def test_a_pth_files_hook_that_hangs_is_refused(
    bench: Bench, in_pth: Registers, python: str, when: str
) -> None:
    bench.python = python
    refuses(bench, in_pth(when, nth=1))


@quiet
@pytest.mark.parametrize("python", [OLDEST, NEWEST])
@pytest.mark.parametrize("when", ["before", "after_in_parent", "after_in_child"])
def test_a_pth_files_hook_that_hangs_later_holds_up_one_jobs_start_and_no_keeper(
    bench: Bench, in_pth: Registers, python: str, when: str
) -> None:
    bench.python = python
    serves(bench, in_pth(when, nth=PROBED + 1), cold=True)
