"""A worker's own side: one process that loads once and takes item after item.

    worker call FUNCTION LOAD        a Python function; runs in the job's interpreter
    worker lines PROGRAM [ARG ...]   any program: an item a line in, an answer a line out

It owns the worker's descriptors: which log they write to, and where items come from. It never
decides when the worker ends, how long an item may take, or what an end means: its keeper does.

    keeper ──{"item": 7, "fresh": false, "log": ..., "values": {...}}──▶ descriptor 0
           ◀──"7 0 0 "────────────────────────────────────────────────── descriptor 3

Both descriptors are moved to high numbers before anything else is imported: a function that reads
standard input or closes it finds /dev/null. An answer is a line: the item's number (0 says that the
worker has loaded), its exit code, 1 where the process is not to be used again, else 0, and the
error where the item could not be begun.

A program's items and answers look like this; what it prints goes into the item's log.

    its standard input  {"job": "fold-a", "path": "/data/a.fasta", "out": "...", ...}
    its descriptor 3    0    or {"exit": 0}, or {"error": "no such chain"}: that line, and status 1
"""

from __future__ import annotations

import sys

from .calls import call
from .lines import Lines
from .pipes import ItemPipes


def main() -> None:
    channel = ItemPipes()  # before anything of the program's own is imported
    if sys.argv[1] == "lines":
        sys.exit(Lines(channel, sys.argv[2:]).serve())
    sys.exit(call(channel, sys.argv[2], sys.argv[3]))
