"""Makes a Python program of a job say more about an uncaught device error. Not imported by name.

A job with `explain: true` finds this directory first on its PYTHONPATH, so that its interpreter
imports this file at start-up, where it would have imported a `sitecustomize` of its own. It takes
itself out again (sys.path, sys.modules, the importer's cache), leaves the hooks described below,
and imports the program's own `sitecustomize`: the next one on the path, with its errors, or none.

Nothing else happens until an error is uncaught. Then, if torch is imported, `../report` is loaded,
and its report goes to sys.stderr after the traceback:

- sys.excepthook and sys.__excepthook__ are one function, which calls the interpreter's own: a
  program that asks `sys.excepthook is sys.__excepthook__` hears yes, as ever, and one that sets its
  own hook and calls the former or the original one has the report in its place.
- A program's hook that calls neither (rich, typer) is not called differently: the interpreter puts
  the error into sys.last_exc or sys.last_value before any hook, and the last function at exit,
  registered here before any other, finds it there.
- threading.excepthook likewise, by the function in _thread that threading takes for it: threading
  itself is not imported.
- A child of multiprocessing catches its own error and prints it without any hook, or sends it to
  its parent as text (torch.multiprocessing.spawn): the error is looked at on its way out of the
  child's `run`. This report comes before the traceback.

What a program can see of it: PYTHONPATH in its environment (on purpose: its Python children are
reported as well); that sys.excepthook, sys.__excepthook__ and threading.excepthook are Python
functions; one more entry in atexit and in os.register_at_fork; in a spawned child, multiprocessing
imported a moment earlier; two lines more in the traceback when a sitecustomize of its own ends the
interpreter; with `python -S`, which runs no sitecustomize, one more entry in sys.path.

What gets no report: `python -I`, `-E` and `-S`; a child whose PYTHONPATH the program sets anew; an
error that is caught and logged before sys.exit(1), which no hook sees; an os._exit or a kill; a
thread's error where threading.excepthook was replaced without calling it, or where stacks are below
512 KiB; what comes after the twentieth report of a process.

Why not otherwise: `usercustomize` is off in most virtual environments; a .pth file is read in
site-packages only, which is not ours; an audit hook hears every import, open and id().

Start-up: 0.3 to 0.6 ms with its bytecode cached, 2 to 3 ms where that cannot be written (measured
on Python 3.8, 3.11 and 3.13, two cores). On Python 2.7 and 3.0 to 3.7 it only steps aside.
"""

import os
import sys

if False:  # For the type checker: typing is not imported here.
    from typing import Any  # noqa: F401

FOLDER = os.path.dirname(__file__)
REPORT = os.path.join(os.path.dirname(FOLDER), "report")
NAME = "gpulaunch_report"
MAX_FILES = 20
SMALL_STACK = 1 << 19

told = []  # type: list[int]  # The identity of the last uncaught error, once it is reported.
times = []  # type: list[bool]  # One entry a report.
waiting = []  # type: list[bool]  # Whether a process of multiprocessing is watched for.


# -- Getting out of the way ------------------------------------------------------------------------


def step_aside():
    # type: () -> list[str]
    """Leave everything that the program can see; return the path's entries before ours."""
    sys.path_importer_cache.pop(FOLDER, None)
    before = sys.path[: sys.path.index(FOLDER)] if FOLDER in sys.path else []
    sys.path[:] = [entry for entry in sys.path if entry != FOLDER]
    return before


def run_own(before, ours):
    # type: (list[str], Any) -> None
    """Import the program's own sitecustomize, with the outcome that it has without us.

    Entries before ours belong to another tool that works as this one does and has called us: what
    comes after it is meant, not the tool once more.
    """
    if not before:
        # An ImportError of that name says to the interpreter: there is none.
        import sitecustomize  # type: ignore[import-not-found]  # noqa: F401

        return
    from importlib.util import find_spec, module_from_spec

    whole = sys.path[:]
    sys.path[:] = whole[len(before) :]
    try:
        spec = find_spec("sitecustomize")
    finally:
        sys.path[:] = whole
    if spec is None or spec.loader is None:
        sys.modules["sitecustomize"] = ours  # The other tool has put it there.
        return
    module = sys.modules["sitecustomize"] = module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        sys.modules.pop("sitecustomize", None)
        raise


# -- An uncaught error -----------------------------------------------------------------------------


def explain(error, traceback):
    # type: (Any, Any) -> None
    """Report an exception, once, if torch is there; the program ends as it would have."""
    try:
        # At a KeyboardInterrupt nothing is compiled: the interpreter forgets that it is to die by
        # the signal when code is run by `eval`, which the standard library does.
        if error is None or isinstance(error, KeyboardInterrupt) or "torch" not in sys.modules:
            return
        if error is last():
            # Only this one can come again, and it lives: its identity is nobody else's.
            if told == [id(error)]:
                return
            told[:] = [id(error)]
        if len(times) == MAX_FILES:
            return  # A server whose threads fail one after another.
        times.append(True)
        loaded()(error, traceback)
    except BaseException:
        pass


def loaded():
    # type: () -> Any
    """Import the report's package under a name of its own, and let the program find nothing of it.

    Neither `gpulaunch` nor the directory that holds it is ever to be imported from here, and no
    .pyc is written beside files that are not the program's.
    """
    written = sys.dont_write_bytecode
    sys.dont_write_bytecode = True
    try:
        package = sys.modules[NAME] = type(sys)(NAME)
        package.__path__ = [REPORT]
        __import__(NAME + ".words")
        return sys.modules[NAME + ".words"].tell
    finally:
        sys.dont_write_bytecode = written
        for name in [n for n in sys.modules if n == NAME or n.startswith(NAME + ".")]:
            del sys.modules[name]
        sys.path_importer_cache.pop(REPORT, None)


def last():
    # type: () -> Any
    """Return the uncaught error that the interpreter remembers."""
    return getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)


def at_exit():
    # type: () -> None
    explain(last(), getattr(last(), "__traceback__", None))


def hooked(original):
    # type: (Any) -> Any
    def excepthook(exctype, value, traceback):
        # type: (Any, Any, Any) -> None
        original(exctype, value, traceback)
        explain(value, traceback)

    return alike(original, excepthook)


def thread_hooked(original):
    # type: (Any) -> Any
    import _thread

    def excepthook(args):
        # type: (Any) -> None
        original(args)
        # A compiler does not fit into a very small stack, and nothing catches its overflow.
        if not 0 < _thread.stack_size() < SMALL_STACK:
            explain(args.exc_value, args.exc_traceback)

    return alike(original, excepthook)


def alike(original, replacement):
    # type: (Any, Any) -> Any
    """Return the replacement under the original's name, module and docstring."""
    for name in ("__module__", "__name__", "__qualname__", "__doc__"):
        setattr(replacement, name, getattr(original, name, None))
    return replacement


# -- Processes of multiprocessing ------------------------------------------------------------------


def in_child():
    # type: () -> None
    """Watch the one process that multiprocessing may be about to be here."""
    process = sys.modules.get("multiprocessing.process")
    util = sys.modules.get("multiprocessing.util")
    if process is None or util is None or waiting:
        return
    waiting.append(True)
    if sys.version_info < (3, 11):
        # Its bootstrap forgets all finalizers first, then calls what is registered here.
        util.register_after_fork(in_worker, in_worker)
        return
    base = process.BaseProcess
    original = base._bootstrap

    def bootstrap(self, *args, **words):
        # type: (Any, *Any, **Any) -> Any
        del waiting[:]
        base._bootstrap = original
        self.run = watched(self, self.run)
        return original(self, *args, **words)

    base._bootstrap = bootstrap


def watched(process, run):
    # type: (Any, Any) -> Any
    def once():
        # type: () -> Any
        del process.run
        try:
            return run()
        except BaseException as error:
            explain(error, error.__traceback__)
            # Without this frame. Python 3.11 and newer re-raise with what the error has.
            error.__traceback__ = getattr(error.__traceback__, "tb_next", None)
            raise

    return once


def in_worker(_):
    # type: (Any) -> None
    del waiting[:]
    # Above all priorities: before it waits for children of its own.
    sys.modules["multiprocessing.util"].Finalize(None, in_flight, exitpriority=1 << 30)


def in_flight():
    # type: () -> None
    error = sys.exc_info()[1]
    explain(error, getattr(error, "__traceback__", None))


# -- Beginning -------------------------------------------------------------------------------------


def install():
    # type: () -> None
    import _thread
    import atexit

    interpreters = sys.__excepthook__
    ours = hooked(interpreters)
    if sys.excepthook is interpreters:
        sys.excepthook = ours
    sys.__excepthook__ = ours
    of_threads = _thread._excepthook
    _thread._excepthook = thread_hooked(of_threads)
    threading = sys.modules.get("threading")
    for name in ("excepthook", "__excepthook__"):
        if getattr(threading, name, None) is of_threads:
            setattr(threading, name, _thread._excepthook)
    atexit.register(at_exit)
    os.register_at_fork(after_in_child=in_child)
    if "--multiprocessing-fork" in getattr(sys, "argv", ()):
        import multiprocessing.util  # noqa: F401  # A spawned child imports it next.

        in_child()


def begin():
    # type: () -> None
    ours = sys.modules.pop("sitecustomize", None)  # Held: Python 2 empties a module that is let go.
    before = step_aside()
    if sys.version_info >= (3, 8) and sys.implementation.name == "cpython":
        try:
            install()
        except Exception:
            pass  # No report is better than no program.
    run_own(before, ours)


begin()
