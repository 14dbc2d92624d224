"""A Python function as a worker: loads once, then is called with item after item."""

from __future__ import annotations

import contextlib
import os
import signal
import sys

from .pipes import LOADED, ItemPipes, open_log

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

# Errors after which a process is not trusted with another item: the device's context is gone, or
# its memory is full of what the failed item left.
SPOILING_NAMES = (
    "OutOfMemoryError", "AcceleratorError", "CudaError", "CUDARuntimeError", "CUDADriverError",
    "XlaRuntimeError", "CUDABackendError",
)  # fmt: skip
SPOILING_WORDS = (
    "out of memory", "cuda error", "cuda driver", "cuda runtime", "device-side assert", "hip error",
    "cublas", "cudnn", "cufft", "cusolver", "nccl", "illegal memory access", "misaligned address",
    "resource_exhausted", "unable to find an engine",
)  # fmt: skip


class Item(dict):  # type: ignore[type-arg]
    """A job's item: `item["stem"]`, or `item.stem` unless dict itself has an attribute so named.

    It is of the program that runs, to whatever pickles it, so that other processes find it there.
    """

    __module__ = "__main__"

    def __getattr__(self, name: str) -> str:
        try:
            value: str = self[name]
        except KeyError:
            raise AttributeError(
                f"an item has no {name!r}; it has: {', '.join(sorted(self))}"
            ) from None
        return value


class Calls:
    """Loads once, then calls the function with each item."""

    def __init__(self, channel: ItemPipes, function: str, load: str) -> None:
        self.channel = channel
        self.names = (function, load)
        self.function: Callable[..., object] = lambda *_: None
        self.arguments: list[object] = []
        self.pid = os.getpid()
        self.spoiled = False

    def serve(self) -> int:
        while not self.spoiled:
            task = self.channel.next()
            if task is None:
                return 0
            try:
                self.begin(task)
            except OSError as error:
                text = f"cannot begin: {error.strerror}: {error.filename}"
                self.channel.answer(task["item"], error=text)
                continue
            code = self.load() if task["fresh"] else 0
            if not self.spoiled:
                code = self.guarded(self.call, task)
            if os.getpid() != self.pid:
                return code  # a child that the item forked has come back through here
            flush()
            self.channel.answer(task["item"], code, self.spoiled)
        return 0

    def begin(self, task: dict[str, Any]) -> None:
        """Switch to the item's log, variables and directory."""
        if not task["fresh"]:
            flush()
            log = open_log(task["log"])
            os.dup2(log, 1)
            os.dup2(log, 2)
            os.close(log)
            os.environ.update(task["env"])
        os.chdir(task["cwd"])

    def load(self) -> int:
        code = self.guarded(self.load_all, {})
        if os.getpid() == self.pid:
            flush()
            # The next item would fail the same way, or find the loading half done.
            if self.spoiled and not code:
                print("worker: the loading ended the program", file=sys.stderr)
                code = 1
            self.spoiled = self.spoiled or code != 0
            self.channel.answer(LOADED)
        return code

    def load_all(self, _: dict[str, Any]) -> int:
        function, load = self.names
        self.function = find(function)
        self.arguments = [find(load)()] if load else []
        return 0

    def call(self, task: dict[str, Any]) -> int:
        result = self.function(*self.arguments, Item(task["values"]))
        if result is False:
            print("the function returned False", file=sys.stderr)
            return 1
        kind = type(result).__name__
        if kind in ("coroutine", "generator", "async_generator"):
            getattr(result, "close", lambda: None)()
            print(f"the function returned a {kind}: nothing was run", file=sys.stderr)
            return 1
        return 0

    def guarded(self, act: Callable[[dict[str, Any]], int], task: dict[str, Any]) -> int:
        """Call `act` and return its exit code; print a traceback as the interpreter would."""
        try:
            return act(task)
        except SystemExit as error:
            self.spoiled = True
            return exit_code(error)
        except KeyboardInterrupt as error:
            self.spoiled = True
            tell(error)
            return 128 + signal.SIGINT
        except BaseException as error:
            self.spoiled = self.spoiled or spoils(error)
            tell(error)
            return 1


def find(name: str) -> Callable[..., object]:
    """Return the function of `FILE.py:function` or `package.module:function`."""
    import importlib

    place, _, attribute = name.rpartition(":")
    module = load_file(place) if place.endswith(".py") else importlib.import_module(place)
    found: Any = module
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise SystemExit(f"worker: there is no {attribute} in {place}")
        found = getattr(found, part)
    if not callable(found):
        raise SystemExit(f"worker: {attribute} in {place} is no function")
    function: Callable[..., object] = found
    return function


def load_file(path: str) -> Any:
    """Import the file once, as a module of its own name, by which its objects can be pickled."""
    from importlib.util import module_from_spec, spec_from_file_location

    name = os.path.basename(path)[: -len(".py")]
    known = sys.modules.get(name)
    if known is not None and getattr(known, "__file__", None) == path:
        return known
    if known is not None:
        name = "gpulaunch_worker_" + name  # a module of the interpreter has that name
        if name in sys.modules:
            return sys.modules[name]
    spec = spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise SystemExit(f"worker: {path} is no Python file")
    module = sys.modules[name] = module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def spoils(error: BaseException | None) -> bool:
    """Tell whether the error, or its cause, shows that the process must not take another item."""
    seen = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        if isinstance(error, MemoryError) or not isinstance(error, Exception):
            return True
        if any(kind.__name__ in SPOILING_NAMES for kind in type(error).__mro__):
            return True
        text = str(error).lower()
        if any(word in text for word in SPOILING_WORDS):
            return True
        error = error.__cause__ or error.__context__
    return False


def tell(error: BaseException) -> None:
    """Print the traceback from the function's own file on, by the program's excepthook if set."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    error.__traceback__ = trace
    try:
        sys.excepthook(type(error), error, trace)
    except BaseException:
        sys.__excepthook__(type(error), error, trace)


def exit_code(error: SystemExit) -> int:
    """Return the status as the interpreter would: None is 0, a number itself, other text 1."""
    if error.code is None:
        return 0
    if isinstance(error.code, int):
        return error.code & 255
    print(error.code, file=sys.stderr)
    return 1


def flush() -> None:
    """Flush Python's buffers, then C libraries', so that an item's output is in its own log."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, OSError, ValueError):
            stream.flush()
    try:
        import ctypes

        ctypes.CDLL(None).fflush(None)
    except (ImportError, OSError, AttributeError):
        pass


def call(channel: ItemPipes, function: str, load: str) -> int:
    place = function.rpartition(":")[0]
    is_file = place.endswith(".py")
    sys.path.insert(0, os.path.dirname(place) if is_file else os.getcwd())
    sys.argv = [place]
    sys.modules["__main__"].Item = Item  # type: ignore[attr-defined]
    return Calls(channel, function, load).serve()
