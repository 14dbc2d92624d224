"""Keeps the hooks that imports register for forks (os.register_at_fork) from the keepers' forks.

    imports register ─▶ before: once, in the server ─▶ after_in_child: once, in each job's process
                                                   └─▶ the job's own forks call all, as after exec

No hook runs in a server that serves, or in keepers, so that none can hold them up. For the hooks
the server forks once, for all jobs, and does not return from that fork, so `after_in_parent` is for
the job's own forks alone.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

from ..wire import Any


class Hooks:
    """Replaces os.register_at_fork from `take` to `give_back`."""

    def __init__(self) -> None:
        self.real: Any = os.register_at_fork
        self.kept: list[dict[str, Callable[[], object]]] = []
        self.taken = False

    def take(self) -> None:
        """Keep the hooks that are registered from here on."""
        self.taken = True
        os.register_at_fork = self.register_at_fork  # type: ignore[assignment]

    def give_back(self) -> None:
        """Register the kept hooks with the interpreter, in a job, for the job's own forks."""
        self.taken = False
        if os.register_at_fork == self.register_at_fork:
            os.register_at_fork = self.real
        for kept in self.kept:
            self.real(**kept)

    def register_at_fork(self, **hooks: Callable[[], object]) -> None:
        """Keep the hooks, or register them. Raises TypeError where the interpreter would."""
        wrong = [hook for hook in hooks.values() if not callable(hook)]
        if wrong or not hooks or not self.taken or not hooks.keys() <= NAMES:
            self.real(**hooks)
        else:
            self.kept.append(hooks)

    def before(self) -> None:
        """Call the hooks for the parent before a fork, the last registered first."""
        call_all([kept["before"] for kept in reversed(self.kept) if "before" in kept])

    def after_in_child(self) -> None:
        """Call the hooks for a forked child."""
        call_all([kept["after_in_child"] for kept in self.kept if "after_in_child" in kept])


NAMES = {"before", "after_in_parent", "after_in_child"}


def call_all(hooks: list[Callable[[], object]]) -> None:
    """Call hooks and flush what they print; print what one raises, as the interpreter does.

    Output that stayed in a buffer would come to be in a job's log.
    """
    for hook in hooks:
        try:
            hook()
        except BaseException:
            sys.__excepthook__(*sys.exc_info())
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
