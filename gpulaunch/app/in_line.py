"""The line in which `exec` waits for its turn to ask for cards: see `farside.line`.

exec ─▶ Turn.take ─▶ several are ahead: becomes a small program ─▶ `exec --turn` ─▶ Turn.come
                 └─▶ one is, or nobody: waits here, and asks for cards
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import reduce
from operator import or_
from typing import Any
from zlib import crc32

import msgspec
from msgspec import Struct

from gpulaunch import __version__
from gpulaunch.config.model import CardSettings
from gpulaunch.core.model import Demand
from gpulaunch.engines.context import ImageHere
from gpulaunch.engines.environment import as_given
from gpulaunch.engines.pool import CardPool
from gpulaunch.errors import EXEC_OWN_FAILURE, UsageError
from gpulaunch.farside import client, line, wire
from gpulaunch.gpus import lockfile
from gpulaunch.gpus.lease import lease_name, scope_of
from gpulaunch.own_files import KEPT_AFTER, OWN

OPTION = "--turn"
"""The option, of nobody's but our own, with which `exec` goes on when its turn has come."""
_GOES_ON = f"""\
import json, sys, time
sys.path = json.loads(sys.argv.pop(1))
sys.argv[0] = "gpulaunch"
for left in reversed(range(120)):
    try:
        import gpulaunch.app.single, gpulaunch.cli.exec
        break
    except Exception:
        if not left:
            sys.stderr.write("gpulaunch exec: its turn has come, but gpulaunch is not installed\\n")
            sys.exit({EXEC_OWN_FAILURE})
        for name in [name for name in sys.modules if name.partition(".")[0] == "gpulaunch"]:
            del sys.modules[name]
        time.sleep(0.5)  # between two versions there is none
        sys.path_importer_cache.clear()
from gpulaunch.__main__ import command
command()
"""


class TurnOption(Struct, frozen=True, array_like=True):
    """What `--turn` says: our version, the place's descriptor, and what a Turn has beside it.

    Whatever comes after the first two may be otherwise in another version.
    """

    version: str
    place: int
    until: float | None
    image: ImageHere | None
    config: CardSettings = CardSettings()


class Turn(Struct):
    """A launcher's place in its line, which ends with it, or when it becomes its command.

    `until`: when the launcher has waited long enough, in monotonic seconds; None: never. `image`:
    what was pulled before the launcher took its place, and need not be looked for when it is first.
    `config`: what the configuration said when the launcher began; nobody's edit meanwhile counts.
    """

    place: socket.socket
    until: float | None
    image: ImageHere | None = None
    config: CardSettings = CardSettings()

    @classmethod
    def take(
        cls,
        pool: CardPool,
        demand: Demand,
        until: float | None,
        image: ImageHere | None,
        environ: Mapping[str, str],
    ) -> Turn:
        """Take the last place among the launchers that ask for the same. Raises OSError."""
        return cls(line.take_place(line_of(pool, demand, environ)), until, image, pool.config)

    @classmethod
    def come(cls, told: str) -> Turn | None:
        """Return the turn that has come, by what `--turn` says of it. Raises UsageError.

        None: another version took the place, which is given up.
        """
        try:
            version, number, *_ = msgspec.json.decode(told, type=list[Any])
            place = socket.socket(fileno=number)
            if not bytes(place.getsockname()).startswith(line.PREFIX):
                raise ValueError
            what = None
            if version == __version__:
                what = msgspec.json.decode(told, type=TurnOption)
        except (msgspec.MsgspecError, OSError, ValueError, TypeError):
            raise UsageError(f"{OPTION} is gpulaunch's own: leave it out") from None
        line.interrupts(True)
        if what is None:
            place.close()
            return None
        place.set_inheritable(False)
        return cls(place, what.until, what.image, what.config)

    @property
    def left(self) -> float | None:
        """Seconds that it may still wait; None: for ever."""
        return None if self.until is None else max(0.0, self.until - time.monotonic())

    @property
    def ahead(self) -> int:
        """How many launchers are ahead."""
        return len(line.names_ahead(self.place)) if line.is_behind(self.place, 1) else 0

    @property
    def is_far(self) -> bool:
        """True where so many are ahead that this need not be a launcher until they are fewer."""
        return line.is_behind(self.place, line.SMALL)

    def wait(self) -> None:
        """Wait until nobody is ahead, or the time is over."""
        if line.is_behind(self.place, 1):
            OWN.keep(after=KEPT_AFTER)
        line.wait(self.place, self.until)

    def become_small(self, words: Sequence[str], environ: Mapping[str, str]) -> None:
        """Become the small program, which goes on as `gpulaunch exec` with these words.

        Returns only where that cannot be: it is then waited for here.
        """
        if signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, ()):
            return  # as the caller has it; the small program would let them through
        until = "" if self.until is None else repr(self.until)
        place = self.place.fileno()
        what = TurnOption(__version__, place, self.until, self.image, self.config)
        turn = msgspec.json.encode(what).decode()
        goes_on = [sys.executable, "-I", "-c", _GOES_ON, json.dumps(sys.path)]
        goes_on += ["exec", OPTION, turn, *words]
        with wire.memory_file("exec") as file, suppress(OSError):
            file.write(b"".join(os.fsencode(word) + b"\0" for word in goes_on))
            file.flush()
            told = f"{place}:{file.fileno()}:{until}"
            small = client.command(sys.executable, "line", told, "gpulaunch", "exec", *words)
            os.set_inheritable(file.fileno(), True)
            os.set_inheritable(place, True)
            line.interrupts(False)
            os.execve(small[0], small, as_given(environ))
        line.interrupts(True)
        self.place.set_inheritable(False)


def line_of(pool: CardPool, demand: Demand, environ: Mapping[str, str]) -> str:
    """Return the name of the line of all launchers of this user that any card suits alike."""
    leases = sorted(lease_name(gpu.key, scope_of(environ)) for gpu in pool.gpus)
    allowed = pool.limit, pool.allowance, pool.share_busy, pool.free_below
    same = repr((os.geteuid(), leases, environ.get(lockfile.VARIABLE), allowed, demand))
    return _cards(leases) + hashlib.sha256(same.encode()).hexdigest()[:16]


def own_place(pool: CardPool, environ: Mapping[str, str]) -> socket.socket | None:
    """Take a place in a line that nobody else joins, so that who comes later sees that one waits.

    Return None where there can be none.
    """
    leases = [lease_name(gpu.key, scope_of(environ)) for gpu in pool.gpus]
    with suppress(OSError):
        return line.take_place(_cards(leases) + f"{os.getpid():016x}")
    return None


def bit_of(lease: str) -> int:
    """Return the bit of the card whose lease has this name."""
    return 1 << crc32(lease.encode()) % (4 * line.DIGITS)


def _cards(leases: Iterable[str]) -> str:
    """Return the first digits of a line's name: which cards it waits for."""
    return f"{reduce(or_, map(bit_of, leases), 0):0{line.DIGITS}x}"
