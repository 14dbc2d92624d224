"""Scripts, notebooks, exits, signals and forks: the process that holds the executor."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from tests.executor import script
from tests.executor.test_workers import alive
from tests.helpers import wait_until

EVERYTHING = """
from __future__ import annotations
import dataclasses, enum, os
from gpulaunch import GpuExecutor

model = None
settings = {"factor": 2}

class Colour(enum.Enum):
    RED = 1

@dataclasses.dataclass
class Point:
    x: int
    made = 0
    def moved(self) -> "Point":
        return Point(self.x + settings["factor"])

class Predictor:
    weights = None

def load(value):
    global model
    model = value
    Predictor.weights = value

def predict(x):
    return model * x * settings["factor"], Predictor.weights

def even(n):
    return n == 0 or odd(n - 1)

def odd(n):
    return n != 0 and even(n - 1)

def maker(n):
    def inner(x):
        return x + n
    return inner

def shift(point):
    return point.moved()

def itself():
    return predict, Point, Colour.RED

def remember(cache=[]):
    cache.append(1)
    return len(cache)

executor = GpuExecutor(simulate=1, initializer=load, initargs=(10,))
assert executor.submit(predict, 1).result(60) == (20, 10)
settings["factor"] = 3
assert executor.submit(predict, 1).result(60) == (30, 10), "what has changed here is sent again"
assert executor.submit(even, 4).result(60)
assert executor.submit(maker(5), 1).result(60) == 6
assert executor.submit(lambda: model).result(60) == 10
moved = executor.submit(shift, Point(1)).result(60)
assert isinstance(moved, Point) and moved == Point(4), moved
assert executor.submit(itself).result(60) == (predict, Point, Colour.RED)
assert list(executor.map(shift, [Point(1), Point(2)])) == [Point(4), Point(5)]
def predict(x):
    return "anew", model
assert executor.submit(predict, 1).result(60) == ("anew", 10), "a cell that was run again"
executor.shutdown()
print("all is well")
"""


def test_a_script_needs_no_guard(tmp_path: Path) -> None:
    out, err, status = script.run(tmp_path / "script.py", EVERYTHING)
    assert (out, status) == ("all is well\n", 0), err
    assert not err


def test_a_guarded_script_works_as_well(tmp_path: Path) -> None:
    text = """
    import sys
    from gpulaunch import GpuExecutor
    print("imported")
    def double(x):
        return 2 * x
    def main():
        with GpuExecutor(simulate=1) as executor:
            print(executor.submit(double, 4).result(60))
    if __name__ == "__main__":
        main()
    """
    assert script.run(tmp_path / "script.py", text) == ("imported\n8\n", "", 0)


def test_a_main_without_a_file_works_as_well() -> None:
    out, err, status = script.typed(EVERYTHING, "-W", "error", "-")
    assert (out, status) == ("all is well\n", 0), err


def test_an_interactive_session_works_as_well() -> None:
    text = """
    from gpulaunch import GpuExecutor
    e = GpuExecutor(simulate=1)
    def f(x): return helper(x)

    def helper(x): return x + 1

    e.submit(f, 1).result(60)
    def helper(x): return x + 10

    e.submit(f, 1).result(60)
    exit()
    """
    out, err, status = script.typed(text, "-i", "-q")
    assert (out.split(), status) == (["2", "11"], 0), err


def test_prints_and_crash_notes_go_where_the_scripts_own_go(tmp_path: Path) -> None:
    text = """
    from gpulaunch import GpuExecutor
    from tests.executor import work
    with GpuExecutor(simulate=1) as executor:
        executor.submit(work.say, "hello").result(60)
        executor.submit(work.leave, 3, "last words").exception(60)
    """
    out, err, status = script.run(tmp_path / "script.py", text)
    assert (out, status) == ("out hello\n", 0)
    assert err.splitlines() == ["err hello", "last words"]


def test_closed_standard_streams_are_no_obstacle(tmp_path: Path) -> None:
    text = """
    import os, sys
    for fd in (0, 1, 2):
        os.close(fd)
    from gpulaunch import GpuExecutor
    from tests.executor import work
    with GpuExecutor(simulate=1) as executor:
        executor.submit(work.say, "hello").result(60)
        result = executor.submit(work.double, 4).result(60)
    os._exit(result)
    """
    assert script.run(tmp_path / "script.py", text)[2] == 8


# ── Exit ────────────────────────────────────────────────────────────────────────────────────────

# gh-113964: an exiting interpreter starts no thread there, and so no worker.
starts_threads_at_exit = pytest.mark.skipif(
    (3, 12) <= sys.version_info < (3, 12, 3), reason="Python 3.12.0 to 3.12.2"
)


@starts_threads_at_exit
def test_pending_work_is_done_at_exit(tmp_path: Path) -> None:
    text = """
    from gpulaunch import GpuExecutor
    from tests.executor import work
    executor = GpuExecutor(simulate=1)
    for n in range(4):
        executor.submit(work.double, n).add_done_callback(lambda done: print(done.result()))
    """
    out, err, status = script.run(tmp_path / "script.py", text)
    assert (out.split(), err, status) == (["0", "2", "4", "6"], "", 0)


@starts_threads_at_exit
def test_pending_work_is_done_after_an_exception(tmp_path: Path) -> None:
    text = """
    from gpulaunch import GpuExecutor
    from tests.executor import work
    executor = GpuExecutor(simulate=1)
    executor.submit(work.double, 4).add_done_callback(lambda done: print(done.result()))
    raise ValueError("mine")
    """
    out, err, status = script.run(tmp_path / "script.py", text)
    assert (out, status) == ("8\n", 1)
    assert err.endswith("ValueError: mine\n")


@pytest.mark.parametrize("inside", [True, False], ids=["with", "without"])
def test_a_ctrl_c_that_nobody_catches_ends_script_and_workers(tmp_path: Path, inside: bool) -> None:
    text = """
    import signal, sys
    from gpulaunch import GpuExecutor
    from tests.executor import work
    signal.signal(signal.SIGINT, signal.default_int_handler)
    def main():
        future = executor.submit(work.daemonise, sys.argv[1])
        print(future.result(60), flush=True)
        executor.submit(work.wait_for, "/never").result()
    executor = GpuExecutor(simulate=1)
    if sys.argv[2] == "True":
        with executor:
            main()
    else:
        main()
    """
    process = script.begun(tmp_path / "script.py", text, tmp_path / "daemon", inside)
    assert process.stdout
    worker = int(process.stdout.readline())
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=120)
    assert process.returncode in (-signal.SIGINT, 130), err
    assert err.endswith("KeyboardInterrupt\n")
    assert not alive(worker)
    assert not alive(int((tmp_path / "daemon").read_text()))


# ── Death of the holder ─────────────────────────────────────────────────────────────────────────

HOLDER = """
import os, sys, time, warnings
warnings.simplefilter("ignore", DeprecationWarning)  # threads and fork: the point of this
from gpulaunch import GpuExecutor
from tests.executor import work
here = sys.argv[1]
executor = GpuExecutor(simulate=2)
notes = [f"{here}/daemon-{n}" for n in range(2)]
marks = [f"{here}/mark-{n}" for n in range(2)]
sent = [executor.submit(work.appear_and_wait, *pair) for pair in (marks, marks[::-1])]
[future.result(60) for future in sent]
sent = [executor.submit(work.daemonise, note) for note in notes]
pids = [future.result(60) for future in sent]
for _ in range(2):
    executor.submit(work.wait_for, "/never")
if sys.argv[2] == "fork" and not os.fork():
    os.close(1)
    work.wait_for(f"{here}/child-may-end")
    os._exit(0)
print(*pids, flush=True)
time.sleep(1000)
"""


@pytest.mark.parametrize("how", ["alone", "fork"])
def test_nobody_survives_a_killed_holder_and_its_cards_are_free(tmp_path: Path, how: str) -> None:
    pool = f"test-{os.getpid()}-{how}"
    process = script.begun(
        tmp_path / "script.py", HOLDER, tmp_path, how, env={"GPULAUNCH_SIM_POOL": pool}
    )
    with process:
        assert process.stdout
        workers = [int(word) for word in process.stdout.readline().split()]
        process.kill()
        assert len(workers) == 2, process.stderr and process.stderr.read()
    daemons = [int((tmp_path / f"daemon-{n}").read_text()) for n in range(2)]
    wait_until(lambda: not any(alive(pid) for pid in (*workers, *daemons)), 60)
    text = """
    from gpulaunch import GpuExecutor
    from tests.executor import work
    with GpuExecutor(simulate=2, wait=60) as executor:
        print(executor.submit(work.double, 4).result(60))
    """
    again = script.run(tmp_path / "again.py", text, env={"GPULAUNCH_SIM_POOL": pool})
    assert again[0] == "8\n", again
    (tmp_path / "child-may-end").touch()


# ── Fork ────────────────────────────────────────────────────────────────────────────────────────


def test_a_forked_child_neither_uses_nor_ends_its_parents_executor(tmp_path: Path) -> None:
    text = """
    import os, sys, warnings
    warnings.simplefilter("ignore", DeprecationWarning)  # threads and fork: the point of this
    from gpulaunch import GpuExecutor
    from tests.executor import work
    executor = GpuExecutor(simulate=1)
    before = executor.submit(work.pid).result(60)
    child = os.fork()
    if child == 0:
        try:
            executor.submit(work.double, 1)
        except RuntimeError as error:
            assert "forked" in str(error), error
        else:
            os._exit(1)
        executor.shutdown()
        executor.terminate_workers()
        del executor
        with GpuExecutor(simulate=1) as own:
            assert own.submit(work.double, 4).result(60) == 8
        sys.exit(3)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
    assert executor.submit(work.pid).result(60) == before
    executor.shutdown()
    print("fine")
    """
    out, err, status = script.run(tmp_path / "script.py", text)
    assert (out, status) == ("fine\n", 0), err


def test_a_killed_holder_is_found_out_while_no_item_runs(tmp_path: Path) -> None:
    text = """
    import time
    from gpulaunch import GpuExecutor
    from tests.executor import work
    executor = GpuExecutor(simulate=1)
    print(executor.submit(work.pid).result(60), flush=True)
    time.sleep(1000)
    """
    with script.begun(tmp_path / "script.py", text) as process:
        assert process.stdout
        worker = int(process.stdout.readline())
        process.kill()
    wait_until(lambda: not alive(worker), 60)


def test_multiprocessing_beside_it_is_left_alone(tmp_path: Path) -> None:
    text = """
    import multiprocessing, warnings
    warnings.simplefilter("ignore", DeprecationWarning)
    from gpulaunch import GpuExecutor
    from tests.executor import work
    def in_child(queue):
        queue.put(work.double(4))
    executor = GpuExecutor(simulate=1)
    executor.submit(work.pid).result(60)
    context = multiprocessing.get_context("fork")
    queue = context.SimpleQueue()
    child = context.Process(target=in_child, args=(queue,))
    child.start()
    print(queue.get(), executor.submit(work.double, 5).result(60))
    child.join()
    """
    assert script.run(tmp_path / "script.py", text)[:2] == ("8 10\n", "")


def test_a_traceback_of_a_script_s_function_names_its_file_and_shows_its_line(
    tmp_path: Path,
) -> None:
    text = """
    from gpulaunch import GpuExecutor
    def fail():
        def inner():
            raise ValueError("why")
        inner()
    with GpuExecutor(simulate=1) as executor:
        executor.submit(fail).result(60)
    """
    _, err, status = script.run(tmp_path / "script.py", text)
    assert status == 1
    assert err.count(f'File "{tmp_path / "script.py"}", line 5, in inner') == 1, err
    assert 'raise ValueError("why")' in err
