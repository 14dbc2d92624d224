"""A forked child's last steps: changes what a job has of its own beside its script."""

from __future__ import annotations

import ctypes
import os
import sys

from ..kernel import PR_SET_NAME, libc
from ..proc import stat_fields
from ..wire import Any

PR_SET_MM, PR_SET_MM_MAP = 35, 14


def show_anew(line: bytes, environment: bytes) -> bool:
    """Make /proc show this command line and environment; return False if the kernel cannot.

    PR_SET_MM_MAP (prctl(2)) wants every bound of the address space at once, and no privilege.
    """
    fields = [int(number) for number in stat_fields("self")[23:49]]
    memory = ctypes.create_string_buffer(line + environment, len(line) + len(environment))
    at = ctypes.addressof(memory)
    sbrk = ctypes.CDLL(None).sbrk
    sbrk.restype = ctypes.c_void_p
    sbrk.argtypes = [ctypes.c_ssize_t]
    bounds = (ctypes.c_uint64 * 13)(
        fields[0], fields[1], fields[19], fields[20], fields[21], sbrk(0) or 0, fields[2],
        at, at + len(line), at + len(line), at + len(memory), 0, 0xFFFFFFFF << 32,
    )  # fmt: skip
    size = ctypes.c_ulong(ctypes.sizeof(bounds))
    if libc.prctl(PR_SET_MM, PR_SET_MM_MAP, ctypes.byref(bounds), size, 0):
        return False
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(memory))  # the kernel reads it as long as we live
    return True


def overwrite(room: bytes, line: bytes, environment: dict[bytes, bytes]) -> None:
    """Write what fits of command line and environment into the space reserved at the start.

    For kernels that cannot show other memory. `room` is the variable that reserves the space. Of
    the environment only GPULAUNCH_ variables are written, which tell whose process this is.
    """
    start, end, env_start, env_end = (int(number) for number in stat_fields("self")[45:49])
    if 0 < start < end:
        ctypes.memset(start, 0, end - start)
        ctypes.memmove(start, line, min(len(line), end - start - 1))
    if 0 < env_start < env_end:
        at = ctypes.string_at(env_start, env_end - env_start).find(room)
        ours = [n + b"=" + v for n, v in environment.items() if n.startswith(b"GPULAUNCH_")]
        text = b"\0".join(ours) + b"\0"
        if at >= 0 and len(text) < len(room):
            ctypes.memset(env_start + at, 0, len(room))
            ctypes.memmove(env_start + at, text, len(text))


def show(room: bytes, name: bytes, argv: list[bytes], environment: dict[bytes, bytes]) -> None:
    """Make /proc show the job's name, command line and environment for this process."""
    libc.prctl(PR_SET_NAME, ctypes.c_char_p(name[:15]), 0, 0, 0)
    line = b"\0".join(argv) + b"\0"
    shown = b"".join(name + b"=" + value + b"\0" for name, value in environment.items())
    if not show_anew(line, shown):
        overwrite(room, line, environment)


def seeds() -> Any:
    """Return the state of `random`, to be compared and to be set again."""
    import random

    return random.getstate()


def reseed(seeded: Any) -> None:
    """Seed the random generators, so that two jobs draw different numbers, as after cold starts.

    A generator that an import seeded keeps its state. `seeded`: that of `random`, else None.
    """
    if seeded is not None:
        sys.modules["random"].setstate(seeded)
    numpy: Any = sys.modules.get("numpy.random")
    if numpy is not None and not seeded_by_number(numpy.get_state()):
        numpy.seed()
    torch: Any = sys.modules.get("torch")
    # Torch draws 64 bits for a seed of its own; what people choose is smaller.
    if torch is not None and getattr(torch, "initial_seed", int)() >= 1 << 32:
        torch.default_generator.seed()


def seeded_by_number(state: Any) -> bool:
    """Tell whether a legacy state of numpy comes from `seed(N)`: a formula then gives its words.

    Source: Knuth's initialisation of MT19937 (init_genrand).
    """
    try:
        key = [int(word) for word in state[1][:3]]
    except (TypeError, IndexError, ValueError):
        return False
    return all(
        key[i] == (1812433253 * (key[i - 1] ^ (key[i - 1] >> 30)) + i) & 0xFFFFFFFF for i in (1, 2)
    )


def refresh_multiprocessing() -> None:
    """Set what multiprocessing recorded of the process when it was imported to this process's."""
    process: Any = sys.modules.get("multiprocessing.process")
    if process is None:
        return
    process.ORIGINAL_DIR = os.path.abspath(os.getcwd())
    key = process.AuthenticationString(os.urandom(32))
    process._current_process._config["authkey"] = key
