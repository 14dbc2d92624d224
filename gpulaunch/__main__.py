"""The entry point of `gpulaunch` and `python -m gpulaunch`, and its last door.

What no command expected comes out here: `report` makes one line of it, and writes the traceback to
a file. Nothing is imported for that but what every Python has, as imports may be what failed.
"""

import gc
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import NoReturn

_OWN_FAULT, _EXEC_OWN_FAILURE = 70, 125  # as in `errors`, which may not be importable
_RUNS = ("run", "resume", "retry", "map", "each")
_NEEDED = ("/proc", "/dev", "/sys")
# Who starts a program in the background, or by nohup, has it ignore the first three; the next three
# are the terminal's, and the interpreter itself ignores the last two.
_KEPT = frozenset(
    {
        *(signal.SIGHUP, signal.SIGINT, signal.SIGQUIT),
        *(signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU),
        *(signal.SIGPIPE, signal.SIGXFSZ),
    }
)


def _set_inherited() -> None:
    """Reset signals, the signal mask and the umask, which a parent may have left unusable.

    Window managers, sudo and daemons start programs with SIGCHLD ignored, others with signals
    blocked: gpulaunch would not hear of the end of a child, nor of SIGTERM. If the umask took
    rights from the owner, gpulaunch could not open the files that it has made.
    """
    for number in signal.valid_signals() - _KEPT:
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    os.umask(os.umask(0o077) & 0o077)


def _use_utf8() -> None:
    """Begin this process again with UTF-8 for names of files, if the locale has another encoding.

    Job names are file names, and hold any character: Latin-1 or ASCII cannot name all of them. An
    option of the interpreter, because jobs inherit a variable.
    """
    if sys.getfilesystemencoding() != "utf-8" and sys.executable:
        again = [sys.executable, "-X", "utf8", *sys.orig_argv[1:]]
        os.execv(sys.executable, again)


def main() -> int:
    """Run the command line and return the exit status."""
    _use_utf8()
    # Ctrl-C while modules are imported ends the process as it ends any other: without a traceback.
    # Where it is ignored (`gpulaunch run ... &` in a script), it stays so.
    handler = signal.getsignal(signal.SIGINT)
    if handler is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    _set_inherited()
    # What is imported, and what a list of jobs is read into, stays: to look through it for garbage
    # after every 700 objects takes a tenth of a command's time.
    gc.set_threshold(20_000)
    try:
        from gpulaunch.cli import main as cli_main

        signal.signal(signal.SIGINT, handler)
        return cli_main()
    except Exception as error:
        return report(error, sys.argv[1:])


def report(error: Exception, argv: Sequence[str]) -> int:
    """Say in one line what ended the command unexpectedly; return the exit status.

    An error of its own, while it does so, changes nothing: the line has what is known by then.
    """
    command = argv[0] if argv else ""
    status = _EXEC_OWN_FAILURE if command in ("exec", "hold") else _OWN_FAULT
    text = what_failed(error)
    with suppress(Exception):
        text += f" (traceback: {written(error)})"
    if command in _RUNS:
        text += "; the jobs of a run that had begun are ended, `gpulaunch resume` goes on with it"
    with suppress(Exception):
        os.write(2, f"gpulaunch: {text}\n".encode("utf-8", "backslashreplace"))
        if "--json" in argv[: argv.index("--") if "--" in argv else len(argv)]:
            import json

            told = {"schema": 1, "error": text, "status": status, "mistakes": []}
            os.write(1, json.dumps(told).encode() + b"\n")
    return status


def what_failed(error: Exception) -> str:
    """Return what failed, and what to do, on one line."""
    try:
        words = " ".join(str(error).split())
    except Exception:  # an error that fails again while it is worded
        words = ""
    words = "".join(c if c.isprintable() else repr(c)[1:-1] for c in words[:500])
    if isinstance(error, MemoryError):
        return "out of memory: see `ulimit -v` and the limit of the container, or free some memory"
    if isinstance(error, OSError) and error.strerror:
        path = error.filename if isinstance(error.filename, str) else ""
        needed = next((place for place in _NEEDED if path.startswith(place + "/")), "")
        needs = f": gpulaunch needs {needed} as the kernel gives it" if needed else ""
        return f"{path}{': ' if path else ''}{error.strerror}{needs}"
    kind = type(error).__name__
    return f"a fault of gpulaunch: {kind}{': ' if words else ''}{words}; please report it"


def written(error: Exception) -> str:
    """Write the traceback to a new file and return its path. Raises OSError."""
    import tempfile
    import traceback

    fd, path = tempfile.mkstemp(".txt", "gpulaunch-traceback-")
    with open(fd, "w", errors="backslashreplace") as file:
        file.writelines(traceback.format_exception(type(error), error, error.__traceback__))
    return path


def command() -> NoReturn:
    """Run the command line and end the process.

    At once: the interpreter would take down piece by piece what a long list was read into.
    """
    status = main()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):  # no reader, no room, or closed: `main` has told
            stream.flush()
    os._exit(status)


if __name__ == "__main__":
    command()
