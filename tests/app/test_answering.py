"""Requests with an unexpected error or of too large a size: the run goes on unchanged."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gpulaunch.base.loop import Loop
from gpulaunch.core.job_list import ListChange
from gpulaunch.jobfile.plan import empty_plan
from gpulaunch.journal.rundir import RunDir
from gpulaunch.run.control_handlers import Answers
from gpulaunch.run.control_protocol import REQUEST_BYTES, Add, Asking, Reload, SetFields

CHANGE = "a change"
ADDED = '{"jobs": [{"name": "a", "run": "true"}]}'


class Client:
    """A client's connection, with what it was sent."""

    def __init__(self) -> None:
        self.abandoned = False
        self.told: list[Mapping[str, Any]] = []

    def send(self, reply: Mapping[str, Any]) -> None:
        self.told.append(reply)


class Run:
    """A live run whose job list calls `change`. `changed`: the events that its core received."""

    def __init__(self, folder: Path, change: Callable[..., Any], **more: Any) -> None:
        self.changed: list[object] = []
        self.loop = Loop()
        the_list: Any = SimpleNamespace(
            taken=0, set=change, reloaded=change, summary=lambda change: ListChange()
        )
        supervisor: Any = SimpleNamespace(
            ledger=SimpleNamespace(stopping=False),
            take=lambda event, facts, then: (self.changed.append(event), then()),
        )
        filed: Any = SimpleNamespace(
            file=folder / "jobs.yaml", read=lambda following: empty_plan("a", folder)
        )
        self.answers = Answers(
            RunDir(folder),
            cast(Any, None),
            filed,
            the_list,
            supervisor,
            self.loop,
            lambda names, environ: None,
            **more,
        )

    def ask(self, asking: Asking) -> Client:
        client = Client()
        self.answers.answer(cast(Any, client), asking)
        return client

    def read(self) -> None:
        """Wait until what is being read was read."""
        while self.answers.busy:
            self.loop.turn()


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Callable[..., Run]]:
    made: list[Run] = []

    def make(change: Callable[..., Any], **more: Any) -> Run:
        made.append(Run(tmp_path, change, **more))
        return made[-1]

    yield make
    for one in made:
        with closing(one.loop):
            one.read()


def fail(*_: object) -> None:
    raise RuntimeError("nobody thought of this")


@pytest.mark.parametrize("asking", [SetFields(("a",), {"priority": "5"}), Reload(True)])
def test_an_error_that_nobody_foresaw_is_an_answer_to_who_asked(
    run: Callable[..., Run], asking: Asking
) -> None:
    live = run(fail)
    client = live.ask(asking)
    live.read()
    why = "RuntimeError('nobody thought of this')"
    assert client.told == [{"error": f"this cannot be done ({why}): nothing was changed"}]
    assert live.changed == []


def test_one_request_sets_no_more_than_it_could_hold(run: Callable[..., Run]) -> None:
    live = run(lambda *_: CHANGE)
    names = tuple(f"job-{number}" for number in range(REQUEST_BYTES // 1000 + 1))
    (answer,) = live.ask(SetFields(names, {"priority": "5" * 1000})).told
    assert answer == {"error": "too much for one request: set fewer jobs at a time"}
    assert live.changed == []
    assert "error" not in live.ask(SetFields(names, {"priority": "5"})).told[0]
    assert live.changed == [CHANGE]


def test_lists_that_are_read_at_once_are_bounded_together(run: Callable[..., Run]) -> None:
    live = run(fail, held=REQUEST_BYTES)
    (answer,) = live.ask(Add("1", ADDED, "a list", "/", {})).told
    assert answer["error"].endswith("reads other lists of jobs: try again")


def test_a_list_whose_client_went_while_it_was_read_changes_nothing(
    run: Callable[..., Run],
) -> None:
    looked: list[object] = []
    live = run(looked.append)
    client = live.ask(Reload(True))
    client.abandoned = True
    live.read()
    assert (looked, client.told, live.changed) == ([], [], [])
