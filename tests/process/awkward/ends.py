"""How programs end: `ends.py CASE`."""

import atexit
import os
import signal
import sys
import threading
import time

case = sys.argv[1]
print("begins", case)


class Last:
    def __del__(self):
        print("last words", flush=True)


def inner():
    raise KeyError("inner")


def outer():
    try:
        inner()
    except KeyError as error:
        raise ValueError("outer\nof two lines") from error


if case == "none":
    sys.exit()
if case == "number":
    sys.exit(3)
if case == "large":
    sys.exit(256 + 7)
if case == "negative":
    sys.exit(-1)
if case == "true":
    sys.exit(True)
if case == "text":
    sys.exit("a message")
if case == "object":
    raise SystemExit(("a", "tuple"))
if case == "exit":
    exit(5)
if case == "chained":
    outer()
if case == "context":
    try:
        inner()
    finally:
        1 / 0
if case == "assert":
    assert case == "other", "it is not"
if case == "group":
    raise (ExceptionGroup("many", [ValueError(1)]) if sys.version_info >= (3, 11) else OSError)
if case == "interrupt":
    raise KeyboardInterrupt
if case == "interrupted":
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(60)
if case == "terminated":
    atexit.register(print, "never")
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(60)
if case == "caught":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(9))
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(60)
if case == "killed":
    sys.stdout.flush()
    os.kill(os.getpid(), signal.SIGKILL)
if case == "aborted":
    os.abort()
if case == "at-once":
    atexit.register(print, "never")
    print("maybe lost")
    os._exit(4)
if case == "atexit":
    atexit.register(print, "first registered", "__file__" in globals(), __name__)
    atexit.register(lambda: 1 / 0)
    atexit.register(lambda: sys.exit(8))
    atexit.register(print, "last registered")
    last = Last()
    sys.exit(2)
if case == "finalize":
    import weakref

    last = Last()
    weakref.finalize(last, print, "finalized")
if case == "thread":
    threading.Thread(target=lambda: (time.sleep(0.05), print("thread ends"))).start()
    print("main ends")
if case == "daemon":
    threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
if case == "in-thread":
    thread = threading.Thread(target=outer, name="mine")
    thread.start()
    thread.join()
if case == "exit-in-thread":
    thread = threading.Thread(target=lambda: sys.exit(6))
    thread.start()
    thread.join()
if case == "hook":
    sys.excepthook = lambda *error: print("hooked", error[0].__name__, error[2].tb_lineno)
    outer()
if case == "bad-hook":
    sys.excepthook = lambda *error: 1 / 0
    outer()
if case == "unraisable":

    class Bad:
        def __del__(self):
            raise ValueError("in __del__")

    Bad()
if case == "recursion":

    def deeper():
        deeper()

    deeper()
if case == "closed":
    sys.stdout.close()
if case == "closed-below":
    print("this cannot be flushed")
    os.close(1)
if case == "pipe":
    read, write = os.pipe()
    os.close(read)
    os.write(write, b"x")
if case == "pipe-at-exit":
    read, write = os.pipe()
    os.close(read)
    os.dup2(write, 1)
    print("nobody reads")
if case == "exec":
    sys.stdout.flush()
    os.execv("/bin/sh", ["sh", "-c", "echo another; exit 12"])
if case == "fork":
    sys.stdout.flush()
    if os.fork() == 0:
        print("child")
        sys.exit(13)
    print("child's status", os.wait()[1])
if case == "generator":

    def generate():
        try:
            yield 1
        finally:
            print("closed", flush=True)

    kept = generate()
    next(kept)
if case == "input":
    input("asks: ")
if case == "crash":
    import faulthandler

    faulthandler.enable()
    os.kill(os.getpid(), signal.SIGSEGV)
if case == "warned":
    import warnings

    warnings.warn("once")
    warnings.warn("the caller's", stacklevel=2)
    warnings.warn("nobody's", DeprecationWarning, stacklevel=3)
    warnings.warn("deprecated", DeprecationWarning)
if case == "stack":
    import inspect
    import traceback

    traceback.print_stack()
    print([(frame.filename, frame.function, frame.lineno) for frame in inspect.stack()])
print("ends", case)
