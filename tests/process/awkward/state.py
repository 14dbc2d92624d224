"""What a process inherits: `state.py CASE`."""

import os
import sys

case = sys.argv[1]

if case == "signals":
    import signal

    for number in sorted(signal.valid_signals()):
        print(number, signal.getsignal(number))
    print(signal.pthread_sigmask(signal.SIG_BLOCK, []))
if case == "environment":
    import ctypes

    print(sorted(os.environb.items()))
    get = ctypes.CDLL(None).getenv
    get.restype = ctypes.c_char_p
    print(get(b"MINE"), get(b"GPULAUNCH_PRELOAD"), get(b"PYTHONPATH"))
    print(sorted(open("/proc/self/environ", "rb").read().split(b"\0")))
    sys.stdout.flush()
    os.system("echo $MINE $PYTHONPATH")
if case == "streams":
    for stream in (sys.stdin, sys.stdout, sys.stderr):
        print(stream.name, stream.mode, stream.encoding, stream.errors, stream.line_buffering)
        print(getattr(stream, "write_through", None), stream.isatty(), type(stream.buffer))
        print(stream.fileno(), stream.closed, stream.seekable())
    print(repr(sys.stdin.read()), sys.__stdout__ is sys.stdout)
if case == "order":
    print("buffered or not")
    os.write(1, b"written\n")
    print("error", file=sys.stderr)
    sys.stdout.write("no newline")
    os.write(1, b"written\n")
if case == "descriptors":
    print(sorted(map(int, os.listdir("/proc/self/fd")))[:-1])
    print(os.readlink("/proc/self/fd/0"))
if case == "limits":
    import resource

    print(resource.getrlimit(resource.RLIMIT_NOFILE), resource.getrlimit(resource.RLIMIT_CORE))
    print(oct(os.umask(0)), os.nice(0), len(os.sched_getaffinity(0)), os.getuid(), os.getgroups())
if case == "locale":
    import locale

    print(sys.getfilesystemencoding(), sys.getfilesystemencodeerrors(), locale.getlocale())
    print(locale.setlocale(locale.LC_ALL), locale.localeconv()["decimal_point"])
    print("\u00e4 \u2192", "\udc80")
if case == "collector":
    import gc

    print(gc.isenabled(), gc.get_threshold(), gc.get_debug(), gc.callbacks)
if case == "threads":
    import threading

    print(threading.current_thread() is threading.main_thread(), threading.main_thread().name)
    print(threading.active_count(), threading.main_thread().ident == threading.get_ident())
    print(
        os.listdir("/proc/self/task") == [str(os.getpid())],
        threading.get_native_id() == os.getpid(),
    )
if case == "hash":
    print(hash("a"), hash(b"b"), list({"x", "y", "z", "w"}))
if case == "seeded":
    import random

    random.seed(7)
    print(random.random(), random.getrandbits(64))
if case == "filters":
    import warnings

    print([(f[0], f[2].__name__, f[4]) for f in warnings.filters])
if case == "logging":
    import logging

    logging.warning("to stderr")
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(processName)s %(message)s")
    logging.info("told")
    print(logging.root.handlers, logging.getLogger("a").parent)
if case == "handlers":
    import asyncio

    async def main():
        process = await asyncio.create_subprocess_exec("sh", "-c", "exit 4")
        print(await process.wait())

    asyncio.run(main())
if case == "python":
    import subprocess

    sys.stdout.flush()
    code = "import sys, os; print(sys.path, sys.flags, os.environ.get('PYTHONPATH'))"
    print(subprocess.call([sys.executable, "-c", code]))
