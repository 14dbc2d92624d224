"""Time zones whose clocks are put forward and back, made here: no machine has to know them."""

from __future__ import annotations

import io
import struct
from zoneinfo import ZoneInfo

RULES = {
    "Europe/Berlin": "CET-1CEST,M3.5.0,M10.5.0/3",
    "America/New_York": "EST5EDT,M3.2.0,M11.1.0",
}


def zone(name: str) -> ZoneInfo:
    """The zone by POSIX's rule for its clocks, as a file of the zone database has it."""
    rule = RULES[name].encode()
    head = struct.pack(">4sc15x6l", b"TZif", b"2", 0, 0, 0, 0, 1, 4)
    body = struct.pack(">lbb", 0, 0, 0) + b"XST\0"
    return ZoneInfo.from_file(io.BytesIO(2 * (head + body) + b"\n" + rule + b"\n"), key=name)


BERLIN = zone("Europe/Berlin")
NEW_YORK = zone("America/New_York")
