"""Runs a program beside this file as Python would, but compiles it once for all of its starts.

    python -I -S cached.py NAME.py ARGUMENTS...

What it owns: `compiled/` beside it, with a file for each program and each version of Python that
has run it there. A node starts a program for every attempt; compiling costs more than the rest.

INVARIANT: code from a file runs only if the file is the user's own, whole, and was made of this
very text by this very version of Python. In any other case, also if a file cannot be read or
written, the program is compiled, and runs. Several processes may write a file at once: each renames
a whole one.

It runs alone, on Python 3.8 and newer, with only those modules of the standard library that every
interpreter has loaded or that load in no time.
"""

from __future__ import annotations

import binascii
import marshal
import os
import stat
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import CodeType

VERSION = f"{sys.implementation.cache_tag}-{sys.hexversion:x}-{sys.flags.optimize}"


def main() -> None:
    """Run the program that the first argument names as `__main__`, with the other arguments."""
    folder = os.path.dirname(os.path.abspath(sys.argv[0]))
    del sys.argv[0]
    path = sys.argv[0] = os.path.join(folder, sys.argv[0])
    code = code_of(path)
    program = type(sys)("__main__")
    program.__file__ = path
    sys.modules["__main__"] = program
    exec(code, program.__dict__)


def code_of(path: str) -> CodeType:
    """Return the program's code, from its file or compiled. Raises OSError and SyntaxError."""
    with open(path, "rb") as file:
        source = file.read()
    folder, name = os.path.split(path)
    place = os.path.join(folder, "compiled", f"{name}-{VERSION}")
    known = read(place, source)
    if known is not None:
        return known
    code: CodeType = compile(source, path, "exec", dont_inherit=True)
    write(place, source, code)
    return code


def mark_of(source: bytes, path: str) -> bytes:
    """Return a file's first line: which source, in which place, which Python compiled."""
    return f"{VERSION} {len(source)} {binascii.crc32(source):08x} {path}\n".encode(
        "utf-8", "surrogateescape"
    )


def read(place: str, source: bytes) -> CodeType | None:
    """Return the code in that file; None if it cannot be read or trusted."""
    try:
        fd = os.open(place, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(fd, "rb") as file:
            found = os.fstat(fd)
            if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
                return None
            data = file.read()
    except OSError:
        return None
    mark = mark_of(source, place)
    body, end = data[len(mark) : -4], data[-4:]
    if not data.startswith(mark) or binascii.crc32(body).to_bytes(4, "little") != end:
        return None
    try:
        code = marshal.loads(body)
    except (EOFError, ValueError, TypeError):
        return None
    return code if isinstance(code, type(main.__code__)) else None


def write(place: str, source: bytes, code: CodeType) -> None:
    """Store the code in that file, whole or not at all. A failure is silent."""
    folder = os.path.dirname(place)
    draft = os.path.join(folder, f".new-{binascii.hexlify(os.urandom(8)).decode()}")
    body = marshal.dumps(code)
    try:
        os.makedirs(folder, 0o700, exist_ok=True)
        fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except OSError:
        return
    try:
        with open(fd, "wb") as file:
            file.write(mark_of(source, place) + body)
            file.write(binascii.crc32(body).to_bytes(4, "little"))
        os.replace(draft, place)
    except OSError:
        try:
            os.unlink(draft)
        except OSError:
            pass


if __name__ == "__main__":
    main()
