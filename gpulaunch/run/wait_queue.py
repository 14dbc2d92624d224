"""The line in which `exec` and `hold` wait for their turn to ask for cards.

    gpulaunch/1/line/<cards><line>/<since>-<pid>     a place: a listening socket

    exec ─▶ Turn.take ─▶ nobody is ahead: asks for cards
                    └──▶ Turn.wait: becomes a small program ─▶ `exec --turn` ─▶ Turn.come

A user's launchers that ask for the same cards are in one line and go in the order in which they
came: only the first of them asks. All others are the C program (native/wait.c), which takes little
memory and sleeps until the place ahead of it is gone.

Launchers in different lines may wait for the same card. <cards> has a bit for each card that a line
waits for, in hex digits. A card that comes free is left to whoever came earlier and waits for it in
another line, of whatever user, for half a second at most (`OtherLines`).

A place is no right to anything: only leases say who has a card. A launcher that cannot tell whether
somebody is ahead goes on, and two that go on at once are like any two launchers.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import reduce
from itertools import islice
from operator import or_
from typing import Any
from zlib import crc32

import msgspec
from msgspec import Struct

from gpulaunch import __version__
from gpulaunch.agent.proc import is_suspended
from gpulaunch.agent.wire import peer
from gpulaunch.base.errors import EXEC_OWN_FAILURE, UsageError
from gpulaunch.base.text import clip, shell_words
from gpulaunch.core.model import Demand
from gpulaunch.engines.context import ImageHere
from gpulaunch.engines.environment import as_given
from gpulaunch.engines.pool import CardPool
from gpulaunch.engines.programs import program_line
from gpulaunch.gpus import socket_locks
from gpulaunch.gpus.lease import lease_name, scope_of
from gpulaunch.gpus.socket_locks import bind_name, connect_name, listening
from gpulaunch.jobfile.config_model import CardSettings

PREFIX = "line/"
OPTION = "--turn"
"""The option, only gpulaunch's own, with which a launcher goes on when its turn has come."""
DIGITS = 16
"""Digits of a line's name that are its cards: two cards may have the same bit."""
_OTHERS = 64
"""Places in other lines that are looked at, at most."""
_TITLE = 300
"""Characters of the command line that is shown for a launcher that waits."""
_GOES_ON = f"""\
import json, sys, time
sys.path = json.loads(sys.argv.pop(1))
sys.argv[0] = "gpulaunch"
for left in reversed(range(120)):
    try:
        import gpulaunch.run.exec, gpulaunch.cli.exec
        break
    except Exception:
        if not left:
            sys.stderr.write("gpulaunch: the turn has come, but gpulaunch is not installed\\n")
            sys.exit({EXEC_OWN_FAILURE})
        for name in [name for name in sys.modules if name.partition(".")[0] == "gpulaunch"]:
            del sys.modules[name]
        time.sleep(0.5)  # between two versions there is none
        sys.path_importer_cache.clear()
from gpulaunch.__main__ import command
command()
"""


class Turn(Struct, frozen=True, array_like=True):
    """A launcher's place in its line, which ends with it, or when it becomes its command.

    `place` is the descriptor. `until`: when the launcher has waited long enough, in monotonic
    seconds; None: never. `image`: what was pulled before the launcher took its place. `config`:
    what the configuration said when the launcher began: later edits do not count. `--turn` hands
    all of it on; another version of gpulaunch may have other fields after the first two.
    """

    version: str
    place: int
    until: float | None
    image: ImageHere | None
    config: CardSettings

    @classmethod
    def take(
        cls,
        pool: CardPool,
        demand: Demand,
        wait: float | None,
        image: ImageHere | None,
        environ: Mapping[str, str],
    ) -> Turn:
        """Take the last place among the launchers that ask for the same. Raises OSError."""
        until = None if wait is None else time.monotonic() + wait
        place = take_place(line_of(pool, demand, environ)).detach()
        return cls(__version__, place, until, image, pool.config)

    @classmethod
    def come(cls, told: str) -> Turn | None:
        """Return the turn that has come, by what `--turn` says of it. Raises UsageError.

        None: another version took the place, which is given up.
        """
        try:
            version, place, *_ = msgspec.json.decode(told, type=list[Any])
            if not name_of(place).startswith(PREFIX):
                raise ValueError
            if version == __version__:
                os.set_inheritable(place, False)
                return msgspec.json.decode(told, type=cls)
        except (msgspec.MsgspecError, OSError, ValueError, TypeError):
            raise UsageError(f"{OPTION} is gpulaunch's own: leave it out") from None
        os.close(place)
        return None

    @property
    def left(self) -> float | None:
        """Seconds that it may still wait; None: for ever."""
        return None if self.until is None else max(0.0, self.until - time.monotonic())

    @property
    def ahead(self) -> int:
        """How many places are ahead in the line."""
        own = name_of(self.place)
        return sum(name < own for name in listening(own[: own.rindex("/") + 1]))

    def wait(self, command: str, words: Sequence[str], environ: Mapping[str, str]) -> None:
        """Become the small program, which goes on as `gpulaunch COMMAND` with these words.

        Returns only where that cannot be: the launcher then asks beside those ahead.
        """
        turn = msgspec.json.encode(self).decode()
        until = math.inf if self.until is None else self.until
        title = clip(f"gpulaunch {command} {shell_words(words)}", _TITLE)
        goes_on = [sys.executable, "-I", "-c", _GOES_ON, json.dumps(sys.path)]
        goes_on += [command, OPTION, turn, *words]
        small = program_line("wait", str(self.place), str(until), title, *goes_on)
        os.set_inheritable(self.place, True)
        with suppress(OSError):
            os.execve(small[0], small, as_given(environ))
        os.set_inheritable(self.place, False)

    def others(self) -> OtherLines:
        return OtherLines(name_of(self.place))

    def leave(self) -> None:
        os.close(self.place)


class OtherLines:
    """The launchers that came earlier than this one, in other lines, and the cards they wait for.

    Connects to each of their places only once, because nobody accepts connections there.
    """

    def __init__(self, place: str) -> None:
        self._line, self._since = _parts(place)
        self._links: dict[str, socket.socket | None] = {}

    def wait_for(self, card: int) -> bool:
        """Tell whether a launcher there waits for the card with this bit."""
        earlier = (name for name in listening(PREFIX) if self._is_earlier(name, card))
        return any(map(self._counts, islice(earlier, _OTHERS)))

    def _is_earlier(self, name: str, card: int) -> bool:
        line, since = _parts(name)
        return line != self._line and since < self._since and bool(_cards_of(line) & card)

    def _counts(self, name: str) -> bool:
        """Tell whether the place is there, and its process not stopped or frozen."""
        if name not in self._links:
            self._links[name] = None
            with suppress(OSError):
                self._links[name] = connect_name(name)
        link = self._links[name]
        pid = 0 if link is None else peer(link)[0]
        return link is not None and not (pid and is_suspended(pid))

    def close(self) -> None:
        for link in self._links.values():
            if link is not None:
                link.close()


def line_of(pool: CardPool, demand: Demand, environ: Mapping[str, str]) -> str:
    """Return the name of the line of all launchers of this user that any card suits alike."""
    leases = sorted(lease_name(gpu.key, scope_of(environ)) for gpu in pool.gpus)
    allowed = pool.limit, pool.allowance, pool.share_busy, pool.free_below
    same = repr((os.geteuid(), leases, environ.get(socket_locks.VARIABLE), allowed, demand))
    cards = reduce(or_, map(bit_of, leases), 0)
    return f"{cards:0{DIGITS}x}{hashlib.sha256(same.encode()).hexdigest()[:16]}"


def bit_of(lease: str) -> int:
    """Return the bit of the card whose lease has this name."""
    return 1 << crc32(lease.encode()) % (4 * DIGITS)


def take_place(line: str) -> socket.socket:
    """Take the last place of a line and return it. Raises OSError."""
    return bind_name(f"{PREFIX}{line}/{time.monotonic_ns():020}-{os.getpid()}")


def name_of(place: int) -> str:
    """Return the name of a place, as `listening` has it, by its descriptor. Raises OSError."""
    with socket.socket(fileno=os.dup(place)) as sock:
        return os.fsdecode(sock.getsockname()).removeprefix("\0" + socket_locks.PREFIX)


def _parts(name: str) -> tuple[str, str]:
    """Return the line of a place, and since when its launcher has it."""
    line, _, since = name.removeprefix(PREFIX).partition("/")
    return line, since


def _cards_of(line: str) -> int:
    try:
        return int(line[:DIGITS], 16)
    except ValueError:  # anybody may have made that name
        return 0
