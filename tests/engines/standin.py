"""A program in the place of the one that pulls: it does what the image's name says.

`here`: it is there; `slow`: it is pulled once somebody writes to its standard input; `none`: there
is no such image; `silent`: it ends without a word; `killed`: so does it, by SIGKILL; `noise`: its
own words come between; `file`: its digest follows; `echo`: the id says what it was asked for.
"""

from __future__ import annotations

import json
import os
import signal
import sys


def main() -> None:
    """Do what the image's name says."""
    asked = json.loads(sys.argv[3])
    match asked["image"]:
        case "here":
            _say("ready", id="sha256:1", digest="sha256:10", pulled=False)
        case "echo":
            _say("ready", id=sys.argv[3], digest="", pulled=False)
        case "file":
            _say("ready", id="/a.sif", digest="", pulled=False)
            _say("digest", digest="sha256:40")
        case "noise":
            print("Copying blob 5d2f... done", flush=True)
            print(json.dumps({"said": "nothing that is known"}), flush=True)
            _say("ready", id="sha256:2", digest="", pulled=True)
        case "slow":
            _say("pulling")
            _say("pulling")
            sys.stdin.read(1)
            _say("ready", id="sha256:3", digest="sha256:30", pulled=True)
        case "none":
            _say("failed", why="no such image; look at its name")
        case "silent":
            sys.exit(3)
        case "killed":
            os.kill(os.getpid(), signal.SIGKILL)


def _say(said: str, **more: object) -> None:
    print(json.dumps({"said": said, **more}), flush=True)
