"""What becomes the job's program: its log, its directory, its file, and words for what is wrong."""

from __future__ import annotations

import errno
import os

from ..wire import shown


class Refusal(Exception):
    """The program could not be started; the text says why. `full`: there was no room on a disk."""

    def __init__(self, text: str, full: bool = False) -> None:
        super().__init__(text)
        self.full = full


def join_cgroup(procs: bytes) -> None:
    """Let this process, and all that it will fork, count in the cgroup whose list `procs` is.

    Empty: it stays where it is. Raises Refusal.
    """
    if not procs:
        return
    try:
        fd = os.open(procs, os.O_WRONLY)
        try:
            os.write(fd, b"0")  # whoever writes it
        finally:
            os.close(fd)
    except OSError as problem:
        text = f"cannot enter its cgroup by {shown(procs)}: {problem.strerror}"
        raise Refusal(text) from None


def stdio(log: bytes) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_NOCTTY
    try:
        fd = os.open(log, flags, 0o600)
    except OSError as problem:
        text = f"cannot create the log {shown(log)}: {problem.strerror}"
        raise Refusal(text, problem.errno == errno.ENOSPC) from None
    os.dup2(fd, 1)
    os.dup2(fd, 2)
    os.close(fd)


def enter(cwd: bytes) -> None:
    try:
        os.chdir(cwd)
    except OSError as problem:
        what = {
            errno.ENOENT: "does not exist",
            errno.ENOTDIR: "is not a directory",
            errno.EACCES: "may not be entered (permission denied)",
        }.get(problem.errno or 0, f"cannot be entered: {problem.strerror}")
        raise Refusal(f"the working directory {shown(cwd)} {what}") from None


def execute(argv: list[bytes], environment: dict[bytes, bytes]) -> None:
    """Replace this process by the program, found in the job's own PATH. Raises Refusal."""
    name = argv[0]
    if b"/" in name:
        places = [name]
    else:
        path = environment.get(b"PATH", os.defpath.encode())
        places = [os.path.join(folder or b".", name) for folder in path.split(b":")]
    worst: tuple[int, bytes] | None = None
    for place in places:
        try:
            os.execve(place, argv, environment)
        except OSError as problem:
            code = problem.errno or 0
            searched = b"/" not in name or code in (errno.ENOENT, errno.ENOTDIR)
            absent = searched and not os.path.lexists(place)
            if not absent and worst is None:
                worst = (code, place)
            if not absent and code not in (errno.EACCES, errno.ENOENT, errno.ENOTDIR):
                break
    raise Refusal(why_not(name, worst, argv, environment))


def why_not(
    name: bytes, worst: tuple[int, bytes] | None, argv: list[bytes], env: dict[bytes, bytes]
) -> str:
    if worst is None and b"/" in name:
        return f"there is no program {shown(name)}"
    if worst is None:
        return f"{shown(name)}: not found in the job's PATH"
    code, place = worst
    where = shown(place)
    if os.path.isdir(place):
        return f"{where} is a directory, not a program"
    if code == errno.ENOENT:
        return f"{where} {missing_interpreter(place)}"
    if code == errno.EACCES:
        return (
            f"{where} may not be executed (permission denied): chmod +x it, or name its interpreter"
        )
    if code == errno.ENOEXEC:
        return f"{where} is no program for this machine, and has no #! line: name its interpreter"
    if code == errno.E2BIG:
        size = sum(len(word) + 1 for word in argv)
        size += sum(len(name) + len(value) + 2 for name, value in env.items())
        return f"{where}: arguments and environment are too long for the kernel ({size:,} bytes)"
    return f"{where} cannot be executed: {os.strerror(code)}"


def missing_interpreter(place: bytes) -> str:
    try:
        with open(place, "rb") as file:
            line = file.read(256).split(b"\n", 1)[0]
    except OSError:
        return "is a link to a file that does not exist"
    if not line.startswith(b"#!"):
        return "exists, but the loader it asks for does not (built for another system?)"
    if line.endswith(b"\r"):
        return "has Windows line ends, so its #! line names no interpreter: convert it (dos2unix)"
    words = line[2:].split() or [b""]
    return f"exists, but its interpreter {shown(words[0])} does not"
