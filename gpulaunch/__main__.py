"""The entry point of `gpulaunch` and `python -m gpulaunch`."""

import gc
import os
import signal
import sys
from contextlib import suppress
from typing import NoReturn

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
    """Set what a parent may have left in a way that this process, and all below, cannot work with.

    Window managers, sudo and daemons start programs with SIGCHLD ignored, others with signals
    blocked: then the end of a child is not told, and SIGTERM is not heard. With a umask that takes
    rights from the owner, this process could not open the files that it has made.
    """
    for number in signal.valid_signals() - _KEPT:
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    os.umask(os.umask(0o077) & 0o077)


def main() -> int:
    """Run the command line and return the exit status."""
    _set_inherited()
    # Ctrl-C while modules are imported ends the process as it ends any other: without a traceback.
    # Where it is ignored (`gpulaunch run ... &` in a script), it stays so.
    handler = signal.getsignal(signal.SIGINT)
    if handler is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    # What is imported, and what a list of jobs is read into, stays: to look through it for garbage
    # after every 700 objects takes a tenth of a command's time.
    gc.set_threshold(20_000)
    from gpulaunch.cli import main as cli_main

    signal.signal(signal.SIGINT, handler)
    return cli_main()


def command() -> NoReturn:
    """Run the command line and end the process.

    At once: the interpreter would take down piece by piece what a long list was read into.
    """
    status = main()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):  # no reader, no room, or closed: `main` has told
            stream.flush()
    if own_files := sys.modules.get("gpulaunch.own_files"):
        own_files.OWN.close()
    os._exit(status)


if __name__ == "__main__":
    command()
