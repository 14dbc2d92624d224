"""A run's jobs at a glance: names and states, off the journal's text, without a replay.

For a person who has typed half a name, and waits: ten thousand jobs take some 50 ms. What ran when
a launcher was killed is told as running.
"""

from __future__ import annotations

import json
import re
from contextlib import suppress

from gpulaunch.files import regular
from gpulaunch.journal.rundir import RunDir

MAX_BYTES = 1 << 28
"""Of a longer journal, the end is not looked at."""

_OF_JOB = re.compile(
    rb'"e":"(job_added|job_vanished|job_requeued|job_delayed|attempt_launched|job_settled)",'
    rb'"job":("(?:[^"\\]|\\.)*")(?:,"state":"(\w+)")?'
)
"""A journal's line begins with its kind and the job's name; in a text of a job's quotes are
escaped, so that none of them looks like one."""
_STATES = {b"job_vanished": "", b"attempt_launched": "running"}


def states_of(run: RunDir) -> dict[str, str]:
    """Return the states of a run's jobs by name, in the order of the list. Raises OSError."""
    with open(run.events, "rb", opener=regular) as file:
        text = file.read(MAX_BYTES)
    states: dict[str, str] = {}
    for match in _OF_JOB.finditer(text):
        kind, name, settled = match.groups()
        state = settled.decode() if settled else _STATES.get(kind, "waiting")
        with suppress(ValueError):  # it is no name, and its line is damaged
            states[json.loads(name)] = state
    return states
