"""A worker between its keeper and its items: what it is handed, what ends it, what it costs."""

from __future__ import annotations

import os
import signal
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpulaunch.agent.client import PROGRAM
from gpulaunch.core.model import (
    Cancelled,
    Exited,
    Interrupted,
    MissingOutput,
    NotStarted,
    Signaled,
    TimedOut,
)
from gpulaunch.engines.client import (
    AttemptOver,
    Gone,
    ProgramStarted,
    Spawner,
    Unbegun,
    WorkerReaped,
)
from gpulaunch.engines.command import Task
from gpulaunch.engines.isolation import why_no_isolation
from gpulaunch.journal.ends import read_end
from tests.helpers import held_by, wait_until
from tests.process.support import WorkerSlot, children_of, keepers_of, made_before

FUNCTIONS = """
    import atexit, ctypes, os, signal, subprocess, sys, time

    def load():
        print("loading")
        atexit.register(print, "leaving")
        return {"pid": os.getpid(), "seen": 0}

    def act(model, item):
        assert os.getpid() == model["pid"]
        model["seen"] += 1
        print(model["seen"], item.what, os.environ["WHAT"], sys.stdin.read(), flush=True)
        exec(item.what)
"""


class Bench(WorkerSlot):
    """A pair that is handed items for one function."""

    def __init__(self, spawner: Spawner, folder: Path, leases: tuple[int, ...] = ()) -> None:
        super().__init__(spawner, folder, leases)
        self.file = folder / "made.py"
        self.file.write_text(textwrap.dedent(FUNCTIONS))
        self.load = f"{self.file}:load"

    def item(self, what: str = "pass", **more: Any) -> None:
        limits = {k: more.pop(k) for k in ("items", "memory", "load_timeout", "key") if k in more}
        task = Task(limits.pop("key", "k"), {"what": what}, {"WHAT": str(self.number)}, **limits)
        argv = (sys.executable, PROGRAM, "worker", "call", f"{self.file}:act", self.load)
        env = {"WHAT": str(self.number), "MARK": self.mark}
        more.setdefault("cwd", str(self.folder))
        unset = ("PYTHONUNBUFFERED",)
        self.launch(*argv, env_set=env, env_unset=unset, task=task, **more)

    def says(self, word: str, number: int) -> None:
        """Wait until that item has printed the word in a line of its own; its code is there too."""
        wait_until(lambda: self.log.exists() and word in self.text(number).splitlines())

    def do(self, what: str = "pass", **more: Any) -> AttemptOver:
        self.item(what, **more)
        return self.expect(AttemptOver)


@pytest.fixture
def bench(spawner: Spawner, tmp_path: Path) -> Iterator[Bench]:
    with Bench(spawner, tmp_path) as bench:
        yield bench


def test_a_worker_loads_once_and_each_item_has_its_own_log(bench: Bench) -> None:
    for _ in range(3):
        ended = bench.do()
        assert (ended.end.outcome, ended.kept, ended.end.leftovers) == (Exited(0), True, 0)
    assert bench.text(1) == "loading\n1 pass 0 \n"
    assert bench.text(2) == "2 pass 1 \n"
    assert bench.text(3) == "3 pass 2 \n"
    assert len(bench.alive) == 1


def test_a_worker_enters_its_cgroup_once(bench: Bench, tmp_path: Path) -> None:
    procs = tmp_path / "cgroup.procs"
    procs.touch()
    for _ in range(2):
        assert bench.do(cgroup=str(procs)).kept
    assert procs.read_text() == "0"


def test_each_item_is_said_to_have_started_in_the_same_process(bench: Bench) -> None:
    pids = set()
    for _ in range(2):
        bench.item()
        pids.add(bench.expect(ProgramStarted).pid)
        bench.expect(AttemptOver)
    assert pids == set(bench.alive)


def test_a_worker_that_is_to_retire_leaves_in_good_order(bench: Bench) -> None:
    bench.do()
    bench.pair.retire()
    bench.expect(WorkerReaped)
    assert bench.alive == []
    assert bench.text(1).endswith("leaving\n")
    assert bench.do().end.outcome == Exited(0)
    assert bench.text(2).startswith("loading\n1 ")


def test_an_item_can_be_handed_to_a_process_that_multiprocessing_spawns(bench: Bench) -> None:
    pool = "import multiprocessing as m; pool = m.get_context('spawn').Pool(1)"
    ended = bench.do(f"{pool}; print(pool.apply(repr, (item,)) == repr(item)); pool.terminate()")
    assert ended.end.outcome == Exited(0)
    assert bench.text(1).endswith("True\n")


def test_where_no_worker_is_left_it_is_gone_at_once(bench: Bench) -> None:
    bench.pair.retire()
    bench.expect(WorkerReaped)


def test_a_worker_that_ignores_everything_is_killed_after_its_grace(bench: Bench) -> None:
    bench.do(
        "signal.signal(signal.SIGTERM, signal.SIG_IGN);"
        "import threading; threading.Thread(target=time.sleep, args=(600,)).start()",
        grace=0.3,
    )
    bench.pair.retire()
    bench.expect(WorkerReaped)
    assert bench.alive == []


STAYS = "import threading; threading.Thread(target=time.sleep, args=(600,)).start()"


@pytest.mark.parametrize("items", [None, 1], ids=["retired", "its last item"])
def test_a_worker_that_stays_has_a_term_in_its_grace(bench: Bench, items: int | None) -> None:
    says = "signal.signal(signal.SIGTERM, lambda *_: (print('told', flush=True), os._exit(0)))"
    assert bench.do(f"{says}\n{STAYS}", grace=3.0, items=items).kept is (items is None)
    if items is None:
        bench.pair.retire()
        bench.expect(WorkerReaped)
    assert bench.text(1).endswith("told\n")


def test_an_attempt_that_waits_for_a_worker_to_go_can_be_stopped(bench: Bench) -> None:
    bench.do(f"signal.signal(signal.SIGTERM, signal.SIG_IGN); {STAYS}", grace=0.5)
    bench.launch("sleep", "600")
    bench.pair.stop("cancelled")
    assert isinstance(bench.expect(AttemptOver).end.outcome, Cancelled)


def test_what_a_killed_worker_had_started_is_not_said_to_be_left_behind(bench: Bench) -> None:
    child = "subprocess.Popen(['sleep', '600'], start_new_session=True)"
    ignores = f"signal.signal(signal.SIGTERM, signal.SIG_IGN); {STAYS}"
    ended = bench.do(f"{child}; {ignores}", items=1, grace=0.2)
    assert (ended.end.outcome, ended.end.leftovers, bench.alive) == (Exited(0), 0, [])


def test_to_retire_now_waits_for_no_grace(bench: Bench) -> None:
    bench.do(
        "signal.signal(signal.SIGTERM, signal.SIG_IGN);"
        "import threading; threading.Thread(target=time.sleep, args=(600,)).start()",
        grace=600.0,
    )
    bench.pair.retire()
    bench.pair.retire(now=True)
    bench.expect(WorkerReaped)
    assert bench.alive == []


def test_an_exception_is_the_items_and_the_worker_goes_on(bench: Bench) -> None:
    ended = bench.do("raise ValueError('no such chain')")
    assert (ended.end.outcome, ended.kept) == (Exited(1), True)
    log = bench.text(1)
    assert log.endswith("ValueError: no such chain\n")
    assert 'made.py", line' in log
    assert "agent" not in log
    assert bench.do().end.outcome == Exited(0)
    assert bench.text(2).startswith("2 ")


@pytest.mark.parametrize(
    ("what", "outcome"),
    [
        ("sys.exit(7)", Exited(7)),
        ("sys.exit(0)", Exited(0)),
        ("raise MemoryError", Exited(1)),
        ("raise RuntimeError('CUDA error: device-side assert triggered')", Exited(1)),
        ("raise KeyboardInterrupt", Exited(130)),
        ("os._exit(5)", Exited(5)),
        ("os._exit(0)", Exited(1)),
        ("os.kill(os.getpid(), signal.SIGSEGV)", Signaled(signal.SIGSEGV)),
        ("os.kill(os.getpid(), signal.SIGKILL)", Signaled(signal.SIGKILL)),
        ("os.closerange(3, 256)", Exited(1)),
    ],
)
def test_what_spoils_the_process_costs_one_item_and_a_fresh_worker(
    bench: Bench, what: str, outcome: object
) -> None:
    bench.do()
    ended = bench.do(what)
    assert (ended.end.outcome, ended.kept) == (outcome, False)
    assert bench.alive == []
    assert bench.do().end.outcome == Exited(0)
    assert bench.text(3).startswith("loading\n1 ")


def test_an_error_out_of_a_spoiling_one_spoils_as_well(bench: Bench) -> None:
    bench.do(
        "class OutOfMemoryError(RuntimeError): pass\n"
        "try: raise OutOfMemoryError('CUDA')\n"
        "except OutOfMemoryError as e: raise ValueError('too long') from e"
    )
    assert not bench.alive


def test_what_is_false_is_a_failure_and_what_was_never_run_too(bench: Bench) -> None:
    bench.file.write_text(
        "def act(item): return item.what != 'bad'\nasync def later(item): pass\ndef load(): pass"
    )
    bench.load = ""
    assert bench.do("good").end.outcome == Exited(0)
    assert bench.do("bad").end.outcome == Exited(1)
    assert bench.text(2) == "the function returned False\n"


def test_a_function_that_cannot_be_awaited_here_is_not_taken_for_done(bench: Bench) -> None:
    bench.file.write_text("async def act(item): pass")
    bench.load = ""
    ended = bench.do()
    assert ended.end.outcome == Exited(1)
    assert bench.text(1) == "the function returned a coroutine: nothing was run\n"


@pytest.mark.parametrize(
    ("program", "words"),
    [
        ("def act(m, i): pass", "there is no load in"),
        ("act = 3\ndef load(): pass", "is no function"),
        ("import no_such_module", "ModuleNotFoundError"),
        ("raise SystemExit(0)", "the loading ended the program"),
        ("def act(m, i): pass\ndef load(): 1/0", "ZeroDivisionError"),
    ],
)
def test_a_loading_that_fails_is_the_first_items_failure(
    bench: Bench, program: str, words: str
) -> None:
    bench.file.write_text(program)
    ended = bench.do()
    assert (ended.end.outcome, ended.kept) == (Exited(1), False)
    assert words in bench.text(1)


def test_what_c_libraries_and_children_print_is_in_the_items_log(bench: Bench) -> None:
    bench.do("ctypes.CDLL(None).printf(b'from C\\n')")
    bench.do("subprocess.run(['echo', 'from a child'])")
    assert "from C\n" in bench.text(1)
    assert bench.text(2).endswith("from a child\n")


def test_an_item_may_close_or_read_standard_input(bench: Bench) -> None:
    assert bench.do("os.close(0)").end.outcome == Exited(0)
    assert bench.do("os.close(0)").end.outcome in (Exited(0), Exited(1))
    assert bench.do().end.outcome in (Exited(0), Exited(1))
    assert len(bench.alive) == 1


def test_a_forked_child_that_comes_back_answers_for_nobody(bench: Bench) -> None:
    ended = bench.do("if os.fork() == 0: raise ValueError('in the child')\nos.wait()")
    assert (ended.end.outcome, ended.kept) == (Exited(0), True)
    assert bench.do().end.outcome == Exited(0)
    assert bench.text(2).startswith("2 ")


def test_an_item_that_takes_too_long_ends_its_worker_alone(bench: Bench) -> None:
    bench.do()
    ended = bench.do("time.sleep(600)", timeout=0.2)
    assert isinstance(ended.end.outcome, TimedOut)
    assert not ended.kept
    assert bench.alive == []
    assert bench.do().end.outcome == Exited(0)


def test_a_silent_item_is_ended_and_a_silent_loading_is_not(bench: Bench) -> None:
    text = bench.file.read_text()
    slow = text.replace('print("loading")', 'time.sleep(1.5); print("loading")')
    bench.file.write_text(slow)
    assert bench.do(idle_timeout=1.0).end.outcome == Exited(0)
    ended = bench.do("time.sleep(600)", idle_timeout=0.2)
    assert isinstance(ended.end.outcome, TimedOut)
    assert ended.end.outcome.limit == "idle_timeout"


def test_loading_has_a_time_of_its_own(bench: Bench) -> None:
    text = bench.file.read_text()
    bench.file.write_text(text.replace('print("loading")', "time.sleep(600)"))
    ended = bench.do(timeout=600.0, load_timeout=0.3)
    assert ended.end.outcome == TimedOut("timeout", 0.3, Signaled(signal.SIGTERM))
    # Of another size: compiled modules are told apart by that and by the second of their change.
    bench.file.write_text(text.replace('print("loading")', "time.sleep(1.500)"))
    assert bench.do(timeout=1.0, load_timeout=600.0).end.outcome == Exited(0)


@pytest.mark.parametrize(
    ("reason", "kind"), [("cancelled", Cancelled), ("interrupted", Interrupted)]
)
def test_a_stop_ends_the_worker_with_its_item(bench: Bench, reason: Any, kind: type) -> None:
    bench.do()
    bench.item("print('there', flush=True); time.sleep(600)")
    bench.says("there", 2)
    bench.pair.stop(reason, by="a person")
    ended = bench.expect(AttemptOver)
    assert isinstance(ended.end.outcome, kind)
    assert not ended.kept
    assert bench.alive == []


def test_an_item_that_finishes_in_its_grace_ends_its_worker_all_the_same(bench: Bench) -> None:
    bench.item(
        "signal.signal(signal.SIGTERM, lambda *_: None); print('there', flush=True);"
        "signal.sigtimedwait([signal.SIGTERM], 600) if False else signal.pause()",
        grace=30.0,
    )
    bench.says("there", 1)
    bench.pair.stop("cancelled")
    ended = bench.expect(AttemptOver)
    assert ended.end.outcome == Cancelled(Exited(0))
    assert not ended.kept
    assert bench.alive == []


def test_a_worker_is_replaced_after_so_many_items(bench: Bench) -> None:
    kept = [bench.do(items=2).kept for _ in range(4)]
    assert kept == [True, False, True, False]
    assert bench.text(3).startswith("loading\n1 ")
    assert bench.text(2).endswith("leaving\n")


def test_a_worker_is_replaced_when_its_memory_grows(bench: Bench) -> None:
    assert bench.do(memory=200 << 20).kept
    assert not bench.do("model['x'] = b'x' * (300 << 20)", memory=200 << 20).kept
    assert bench.alive == []


def test_what_a_child_holds_counts_as_the_workers_memory(bench: Bench) -> None:
    hold = "import sys; x = b'x' * (300 << 20); print('held', flush=True); sys.stdin.read()"
    what = (
        f"p = subprocess.Popen([sys.executable, '-c', {hold!r}], stdin=subprocess.PIPE,"
        " stdout=subprocess.PIPE); p.stdout.readline(); model['p'] = p"
    )
    assert not bench.do(what, memory=200 << 20).kept
    assert bench.alive == []


def test_what_an_item_leaves_behind_lives_until_its_worker_ends(bench: Bench) -> None:
    bench.do("subprocess.Popen(['sleep', '600'], start_new_session=True)")
    wait_until(lambda: len(bench.alive) == 2)  # as soon as the kernel shows its environment
    assert bench.do().kept
    bench.pair.retire()
    bench.expect(WorkerReaped)
    assert bench.alive == []


def test_a_worker_that_dies_between_items_is_nobodys_failure(bench: Bench) -> None:
    bench.do("subprocess.Popen(['sleep', '600'], start_new_session=True)")
    (worker,) = [p for p in bench.alive if b"agent" in Path(f"/proc/{p}/cmdline").read_bytes()]
    os.kill(worker, signal.SIGKILL)
    wait_until(lambda: not bench.alive)
    ended = bench.do()
    assert (ended.end.outcome, ended.kept) == (Exited(0), True)
    assert bench.text(2).startswith("loading\n1 ")


def test_another_key_never_gets_this_ones_worker(bench: Bench) -> None:
    bench.do(key="one")
    assert bench.do(key="two").end.outcome == Exited(0)
    assert bench.text(2).startswith("loading\n1 ")
    assert len(bench.alive) == 1


def test_an_ordinary_attempt_begins_when_the_worker_is_gone(bench: Bench) -> None:
    bench.do()
    assert bench.run("sh", "-c", "exit 4").end.outcome == Exited(4)
    assert bench.alive == []


def test_outputs_are_looked_for_after_each_item(bench: Bench, tmp_path: Path) -> None:
    outputs = (str(tmp_path / "made"),)
    ended = bench.do("pass", outputs=outputs)
    assert isinstance(ended.end.outcome, MissingOutput)
    assert ended.kept
    ended = bench.do("open('made', 'w').write('x')", outputs=outputs)
    assert (ended.end.outcome, ended.kept) == (Exited(0), True)
    made_before(tmp_path / "made")
    ended = bench.do("pass", outputs=outputs)
    assert isinstance(ended.end.outcome, MissingOutput)


def test_a_log_that_cannot_be_made_is_no_end_of_the_worker(bench: Bench, tmp_path: Path) -> None:
    bench.do()
    ended = bench.do(log=str(tmp_path / "nowhere" / "x.log"))
    assert isinstance(ended.end.outcome, NotStarted)
    assert "nowhere" in ended.end.outcome.error
    assert ended.kept
    assert bench.do().end.outcome == Exited(0)


def test_nothing_is_left_when_the_supervisor_goes(spawner: Spawner, tmp_path: Path) -> None:
    with Bench(spawner, tmp_path) as bench:
        bench.do("subprocess.Popen(['sleep', '600'], start_new_session=True)")
        wait_until(lambda: len(bench.alive) == 2)
        bench.pair.close()
        wait_until(lambda: not bench.alive)
        assert bench.text(1).endswith("leaving\n")


@pytest.mark.parametrize("victim", [0, 1])
def test_nothing_is_left_when_a_keeper_is_killed(tmp_path: Path, victim: int, keeper: str) -> None:
    with Spawner(keeper) as spawner, Bench(spawner, tmp_path) as bench:
        bench.do("subprocess.Popen(['sleep', '600'], start_new_session=True)")
        os.kill(keepers_of(spawner)[victim], signal.SIGKILL)
        if victim == 0:
            bench.pair.close()
        else:
            bench.expect(Gone)
        wait_until(lambda: not bench.alive)


def test_an_idle_pair_ends_its_worker_before_it_goes(bench: Bench) -> None:
    bench.do()
    bench.pair.end()
    bench.expect(Gone)
    assert bench.alive == []


def test_a_worker_holds_the_leases_of_its_pair(spawner: Spawner, tmp_path: Path) -> None:
    read, write = os.pipe()
    with Bench(spawner, tmp_path, leases=(write,)) as bench:
        os.close(write)
        bench.do("signal.signal(signal.SIGTERM, signal.SIG_IGN)")
        (worker,) = bench.alive
        assert os.readlink(f"/proc/self/fd/{read}") in held_by(worker)
    os.close(read)


def test_a_strict_worker_reads_its_items(bench: Bench) -> None:
    if why := why_no_isolation():
        pytest.skip(why)
    for _ in range(2):
        what = "print(os.path.exists('/dev/full'))"
        ended = bench.do(what, hidden=("/dev/full",))
        assert (ended.end.outcome, ended.kept) == (Exited(0), True)
        assert bench.text(bench.number).endswith("\nFalse\n")


def test_a_big_item_comes_through_whole(bench: Bench) -> None:
    padding = "x" * 300_000
    assert bench.do(f"print(len({padding!r}))").end.outcome == Exited(0)
    assert bench.do(f"print(len({padding!r}))").end.outcome == Exited(0)
    assert bench.text(2).endswith("300000\n")


def test_answers_that_nobody_asked_for_end_the_worker(bench: Bench) -> None:
    what = (
        "import gc\n"
        "c = next(o for o in gc.get_objects() if type(o).__name__ == 'ItemPipes')\n"
        "os.write(c.answers, {words!r})\n"
        "time.sleep(600 if {wait} else 0)"
    )
    invalid = (
        b"hello\n",
        b"1 0\n",
        b"1 256 0 \n",
        b"1 -1 0 \n",
        b" 0 0 \n",
        b"9" * 5000 + b" 0 0 \n",
    )
    for words in (*invalid, b"99 0 0 \n", b"x" * 70_000):
        ended = bench.do(what.format(words=words, wait=True))
        assert (ended.end.outcome, ended.kept) == (Signaled(signal.SIGKILL), False)
        assert "answer that is none" in ended.note
    assert bench.do(what.format(words=b"0 0 0 \n", wait=True)).kept is False


def test_a_worker_that_says_something_between_items_gets_none_any_more(bench: Bench) -> None:
    go, said = bench.folder / "go", bench.folder / "said"
    what = (
        "import gc\n"
        "c = next(o for o in gc.get_objects() if type(o).__name__ == 'ItemPipes')\n"
        "c.answer(1)\n"
        f"while not os.path.exists({str(go)!r}): time.sleep(0.001)\n"
        "c.answer(1)\n"
        f"open({str(said)!r}, 'w').close()\n"
        "time.sleep(600)"
    )
    assert bench.do(what, grace=0.2).kept
    go.touch()
    wait_until(said.exists)
    assert bench.do().end.outcome == Exited(0)
    assert bench.text(2).startswith("loading\n1 ")


# ── One ahead ───────────────────────────────────────────────────────────────────────────────────


def waits_for(bench: Bench, name: str) -> tuple[str, Path]:
    """What an item does that waits for a file; and the file."""
    file = bench.folder / name
    return f"while not os.path.exists({str(file)!r}): time.sleep(0.001)", file


def test_an_item_that_is_behind_another_begins_when_that_has_ended(bench: Bench) -> None:
    waits, file = waits_for(bench, "go")
    bench.item(waits)
    first = bench.expect(ProgramStarted)
    bench.item(behind=True)
    file.touch()
    ended = bench.expect(AttemptOver)
    assert (ended.attempt, ended.kept) == ("job.1", True)
    assert bench.expect(ProgramStarted).pid == first.pid
    ended = bench.expect(AttemptOver)
    assert (ended.attempt, ended.end.outcome, ended.kept) == ("job.2", Exited(0), True)
    assert bench.text(2) == "2 pass 1 \n"
    assert bench.do().kept


@pytest.mark.parametrize("more", [{}, {"items": 1}], ids=["crash", "its last item"])
def test_it_never_begins_where_the_worker_does_not_stay(bench: Bench, more: dict[str, Any]) -> None:
    waits, file = waits_for(bench, "go")
    bench.item(f"{waits}\n{'pass' if more else 'os._exit(3)'}", **more)
    bench.expect(ProgramStarted)
    bench.item(behind=True)
    file.touch()
    assert not bench.expect(AttemptOver).kept
    assert bench.expect(Unbegun) == Unbegun("job.2")
    assert not bench.log.exists()
    assert bench.do().end.outcome == Exited(0)
    assert bench.text(3).startswith("loading\n1 ")


def test_it_never_begins_where_the_guardian_is_gone(bench: Bench) -> None:
    waits, file = waits_for(bench, "go")
    bench.item(waits)
    bench.expect(ProgramStarted)
    bench.item(behind=True)
    guardian, monitor = keepers_of(bench.spawner)
    os.kill(guardian, signal.SIGKILL)
    wait_until(lambda: monitor in children_of(bench.spawner.pid))
    file.touch()
    assert bench.expect(AttemptOver).end.outcome == Exited(0)
    assert bench.expect(Unbegun) == Unbegun("job.2")
    bench.expect(Gone)
    assert bench.alive == []


@pytest.mark.parametrize("how", ["taken back", "stopped"])
def test_it_is_withdrawn_before_it_begins(bench: Bench, how: str) -> None:
    waits, file = waits_for(bench, "go")
    bench.item(waits)
    bench.expect(ProgramStarted)
    bench.item(behind=True)
    if how == "stopped":
        bench.pair.stop("cancelled", attempt="job.2")
    else:
        bench.pair.take_back("job.2")
    assert bench.expect(Unbegun) == Unbegun("job.2")
    file.touch()
    assert bench.expect(AttemptOver).end.outcome == Exited(0)
    assert bench.do().end.outcome == Exited(0)
    assert not (bench.folder / "2.log").exists()


def test_one_that_has_begun_is_stopped_and_not_taken_back(bench: Bench) -> None:
    bench.item("pass")
    bench.item("time.sleep(600)", behind=True)
    bench.expect(AttemptOver)
    bench.expect(ProgramStarted)
    bench.pair.take_back("job.2")
    bench.pair.stop("cancelled", attempt="job.2")
    assert isinstance(bench.expect(AttemptOver).end.outcome, Cancelled)


@pytest.mark.parametrize("stays", [True, False])
def test_one_that_comes_after_the_others_end_begins_if_the_worker_stays(
    bench: Bench, stays: bool
) -> None:
    bench.item("pass" if stays else "os._exit(3)")
    wait_until(lambda: bench.end_file.exists() and bench.end())
    wait_until(lambda: stays or not bench.alive)
    bench.item(behind=True)
    assert bench.expect(AttemptOver).kept is stays
    if stays:
        assert bench.expect(AttemptOver).end.outcome == Exited(0)
    else:
        assert bench.expect(Unbegun) == Unbegun("job.2")


def test_a_dead_supervisors_next_item_never_begins(bench: Bench) -> None:
    bench.item("time.sleep(600)")
    bench.expect(ProgramStarted)
    bench.item(behind=True)
    bench.pair.close()
    wait_until(lambda: not children_of(bench.spawner.pid))  # the keepers, which write the end
    assert bench.alive == []
    first = read_end(bench.folder / "1.end")
    assert first is not None
    assert isinstance(first.end.outcome, Interrupted)
    assert not bench.end_file.exists()
    assert not bench.log.exists()
