"""Every reason has words, and nothing that happens depends on them."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import get_args

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from gpulaunch.base import wording
from gpulaunch.core.causes import Because, ByCluster, Cause, ClusterCause, EndCause
from gpulaunch.core.reasons import (
    CardAway,
    CardIs,
    CardNow,
    CardReason,
    CardsAre,
    JobReason,
    NeedsCards,
    OthersThere,
    RunReason,
    WaitReason,
)
from tests.cli.launcher import Launcher

LIST = """\
    jobs:
      - name: fine
        run: "true"
      - name: bad
        run: "echo RuntimeError: no such model >&2; exit 3"
        retries: 1
      - name: lost
        run: "true"
        needs: [bad]
      - name: late
        run: sleep 100
        timeout: 0.2
      - name: nowhere
        run: no-such-program
"""
WORDLESS = """\
import inspect, sys
from gpulaunch.base import wording
for name, function in inspect.getmembers(wording, inspect.isfunction):
    if function.__module__ == "gpulaunch.base.wording":
        setattr(wording, name, lambda *given: "x")
from gpulaunch.__main__ import main
sys.exit(main())
"""


@pytest.mark.parametrize("cause", get_args(Cause))
def test_every_cause_has_words(cause: Cause) -> None:
    assert wording.cause(Because(cause))


@pytest.mark.parametrize("what", get_args(ClusterCause))
def test_what_a_cluster_did_has_words_with_all_that_is_known_of_it(what: ClusterCause) -> None:
    assert wording.cause(ByCluster(what))
    assert "{" not in wording.cause(ByCluster(what, "n1", "its word"))


def test_a_cluster_is_quoted_with_the_node() -> None:
    assert wording.cause(ByCluster("preempted")) == "preempted by Slurm"
    assert wording.cause(ByCluster("preempted", "n1")) == "preempted by Slurm (n1)"
    said = wording.cause(ByCluster("unrecorded", "n1", "COMPLETED"))
    assert said == "Slurm says COMPLETED, and it left no record of its end (n1)"
    assert wording.cause(ByCluster("node_unfit", "", "no Python")).startswith("the nodes cannot")


@pytest.mark.parametrize(
    ("union", "said"),
    [
        (JobReason, wording.job_reason),
        (WaitReason, wording.job_reason),
        (RunReason, wording.run_reason),
        (RunReason, wording.pause),
        (EndCause, wording.cause),
        (CardReason, wording.card_reason),
    ],
)
def test_every_reason_has_words(union: object, said: object) -> None:
    for kind in get_args(union):

        @given(st.from_type(kind))
        def check(reason: object) -> None:
            assume(not re.search("inf|nan", repr(reason)))  # no span is endless
            text = said(reason)  # type: ignore[operator]
            assert isinstance(text, str)
            assert type(reason).__name__ not in text, "a value that was not worded"

        check()


GB = 10**9
ANN = CardAway("occupied", OthersThere("ann (pid 7): python"))


def little(free_below: int) -> CardAway:
    return CardAway("occupied", OthersThere("1 GiB are in use there by nobody", free_below))


@pytest.mark.parametrize(
    ("cards", "told"),
    [
        ([(0, ANN)], "GPU 0 is in use: ann (pid 7): python; --share-busy takes it all the same"),
        ([(0, little(2 * GB))], "by nobody; --free-below 2GB takes it all the same"),
        ([(0, ANN), (1, ANN)], "; --share-busy takes them all the same"),
        ([(0, little(2 * GB)), (3, little(4 * GB))], "; --free-below 4GB takes them all the same"),
        (
            [(0, ANN), (1, little(2 * GB)), (2, CardIs("given_back"))],
            "; --free-below 2GB takes GPU 1, --share-busy takes GPU 0 all the same",
        ),
        ([(0, CardAway("elsewhere", OthersThere("x"))), (1, CardIs("free"))], "GPU 1 is free"),
    ],
)
def test_the_options_that_take_cards_are_told_once(
    cards: list[tuple[int, CardNow]], told: str
) -> None:
    alike: dict[CardNow, list[int]] = {}
    for index, state in cards:
        alike.setdefault(state, []).append(index)
    parts = tuple(CardsAre(tuple(some), state) for state, some in alike.items())
    said = wording.job_reason(NeedsCards(1, 0, parts))
    assert said.endswith(told)
    assert said.count("all the same") <= 1


def states(result_dir: Path) -> list[tuple[str, str, list[str]]]:
    """Each fact's kind, with the job and the states in it, in an order that chance does not set."""
    found = []
    for line in (result_dir / "events.jsonl").read_text().splitlines():
        fact = json.loads(line)
        kinds = [fact[key]["kind"] for key in ("reason", "why", "outcome") if fact.get(key)]
        found.append((fact.get("job", ""), fact["e"], [fact.get("state", ""), *kinds]))
    return sorted(found)


def test_a_run_without_words_comes_to_the_same_states_and_status(launcher: Launcher) -> None:
    launcher.file("jobs.yaml", LIST)
    wordless = Launcher(launcher.path, command=[sys.executable, "-c", WORDLESS])
    argv = ("run", "jobs.yaml", "--simulate", "2", "--run-dir")
    said, silent = launcher(*argv, "said"), wordless(*argv, "silent")
    assert said.status == silent.status == 1
    assert states(launcher.path / "said") == states(launcher.path / "silent")
    assert "needs bad, which failed" in said.err
    assert "needs bad" not in silent.err
