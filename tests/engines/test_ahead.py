"""What is prepared while others run: used for exactly the launch that comes, for no other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from gpulaunch.core.events import Ended, Launch, Release
from gpulaunch.core.model import (
    AttemptId,
    Demand,
    Exited,
    FastaRecord,
    Gpu,
    Job,
    NotStarted,
    Service,
    Worker,
)
from gpulaunch.core.template import Slot, Template
from gpulaunch.engines.environment import AttemptPlace
from gpulaunch.engines.local import attempts
from gpulaunch.engines.local.ahead import PreparedAhead, PreparedAttempt
from gpulaunch.engines.local.pairs import PairKind
from gpulaunch.errors import GpulaunchError
from gpulaunch.farside.ports import PortLease
from gpulaunch.gpus.port import PortPool
from gpulaunch.process.client import Pair
from gpulaunch.process.command import Command
from gpulaunch.process.ends import EndSlots
from tests.engines.bench import Bench, fresh_pool, run_directory, sh

SHOWN = "echo $GPULAUNCH_GPU_INDEX $GPULAUNCH_ATTEMPT $WORD $GPULAUNCH_OUT $MASTER_PORT {}"


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(run_directory(tmp_path / "run"), fresh_pool())
    made.hold(*made.gpus)
    yield made
    made.close()


@pytest.fixture
def anew(monkeypatch: pytest.MonkeyPatch) -> list[AttemptId]:
    """The attempts that were prepared at their launch, and not before."""
    seen: list[AttemptId] = []
    prepare = attempts.prepare

    def preparing(launch: Launch, *rest: Any) -> Command:
        seen.append(launch.attempt)
        return prepare(launch, *rest)

    monkeypatch.setattr(attempts, "prepare", preparing)
    return seen


def launch_of(bench: Bench, card: int = 0, number: int = 1, **fields: object) -> Launch:
    job = sh(SHOWN.format(""), demand=Demand(gpus=1), **{"env": {"WORD": "one"}, **fields})
    return Launch(AttemptId("a", number), job, (bench.gpus[card],))


def said(bench: Bench, launch: Launch) -> list[str]:
    """Launch, and return what the job wrote to its log."""
    bench.engine.carry_out(launch)
    assert bench.expect(Ended).end.outcome == Exited(0)
    with open(bench.run.log_file(launch.attempt)) as log:
        return log.read().split()


def test_what_was_prepared_runs_as_what_was_not(bench: Bench, anew: list[AttemptId]) -> None:
    first, second = launch_of(bench), launch_of(bench, number=2)
    plain = said(bench, first)
    bench.engine.foresee([second])
    prepared = said(bench, second)
    assert anew == [first.attempt]
    assert (plain[:3], prepared[:3]) == (["0", "1", "one"], ["0", "2", "one"])
    assert prepared[3] == bench.run.out_dir(second.attempt)
    assert int(prepared[4]) > 0


@pytest.mark.parametrize(
    ("change", "shown"),
    [
        ({"card": 1}, ["1", "1", "one"]),
        ({"number": 2}, ["0", "2", "one"]),
        ({"env": {"WORD": "two"}}, ["0", "1", "two"]),
    ],
)
def test_another_card_attempt_or_environment_is_prepared_anew(
    bench: Bench, anew: list[AttemptId], change: dict[str, Any], shown: list[str]
) -> None:
    bench.engine.foresee([launch_of(bench)])
    launch = launch_of(bench, **change)
    assert said(bench, launch)[:3] == shown
    assert anew == [launch.attempt]


def test_a_job_that_was_read_again_is_prepared_anew_even_if_it_says_the_same(
    bench: Bench, anew: list[AttemptId]
) -> None:
    bench.engine.foresee([launch_of(bench)])
    launch = launch_of(bench)
    said(bench, launch)
    assert anew == [launch.attempt]


def test_what_is_never_launched_leaves_nothing(bench: Bench) -> None:
    before = sorted(bench.run.path.rglob("*"))
    bench.engine.foresee([launch_of(bench)])
    assert sorted(bench.run.path.rglob("*")) == before
    bench.engine.foresee([])
    said(bench, launch_of(bench, number=2))
    bench.engine.foresee([launch_of(bench, number=3)])
    bench.engine.recorded([AttemptId("a", 2)])
    bench.engine.close()
    assert not list(bench.run.ends.iterdir())  # no slot is taken for what was only foreseen
    assert not list((bench.run.path / "out").iterdir())


def pairs_of(bench: Bench) -> set[Pair]:
    return set(bench.engine._attempts.pairs._leases)


def test_the_pair_that_was_told_of_the_launch_runs_it(bench: Bench) -> None:
    said(bench, launch_of(bench))
    (pair,) = pairs_of(bench)
    second = launch_of(bench, number=2)
    bench.engine.foresee([second])
    bench.engine.carry_out(second)
    assert pair.attempt == "a.2"
    assert bench.expect(Ended).end.outcome == Exited(0)


def test_a_pair_that_was_told_of_another_launch_runs_this_one(bench: Bench) -> None:
    said(bench, launch_of(bench))
    (pair,) = pairs_of(bench)
    bench.engine.foresee([launch_of(bench, number=2)])
    third = launch_of(bench, number=3)
    bench.engine.carry_out(third)
    assert pair.attempt == "a.3"
    assert bench.expect(Ended).end.outcome == Exited(0)
    assert Path(bench.run.log_file(third.attempt)).read_text().split()[:3] == ["0", "3", "one"]


def test_a_card_that_is_given_back_takes_its_pair_with_it(bench: Bench) -> None:
    said(bench, launch_of(bench))
    second = launch_of(bench, number=2)
    bench.engine.foresee([second])
    bench.engine.carry_out(Release(bench.gpus[0].uuid))
    assert not pairs_of(bench)
    assert bench.engine._attempts.ahead.take(second) is None


def test_a_launch_goes_elsewhere_where_its_pair_has_gone(bench: Bench) -> None:
    said(bench, launch_of(bench))
    (pair,) = pairs_of(bench)
    second = launch_of(bench, number=2)
    bench.engine.foresee([second])
    pair.end()
    while pairs_of(bench):
        bench.loop.turn()
    assert said(bench, second)[:3] == ["0", "2", "one"]


def test_files_are_read_and_looked_for_at_the_launch(bench: Bench, tmp_path: Path) -> None:
    words, place = tmp_path / "words", tmp_path / "there"
    words.write_text("WORD=old\n")
    place.mkdir()
    launch = launch_of(bench, env={}, env_file=str(words), cwd=str(place))
    bench.engine.foresee([launch])
    words.write_text("WORD=new\n")
    assert said(bench, launch)[2] == "new"
    gone = launch_of(bench, number=2, cwd=str(place))
    bench.engine.foresee([gone])
    place.rmdir()
    bench.engine.carry_out(gone)
    ended = bench.expect(Ended)
    assert ended.end.outcome == NotStarted(f"its directory {place} does not exist")


def test_a_log_of_the_attempts_name_is_moved_out_of_the_way_at_the_launch(bench: Bench) -> None:
    launch = launch_of(bench)
    bench.engine.foresee([launch])
    log = Path(bench.run.log_file(launch.attempt))
    log.write_text("of a run that a power cut made forget it\n")
    assert said(bench, launch)[:3] == ["0", "1", "one"]
    assert len(list(log.parent.iterdir())) == 2


def test_what_cannot_be_prepared_is_told_by_the_launch_alone(bench: Bench) -> None:
    launch = launch_of(bench, env={"WORD": "a\0b"})
    bench.engine.foresee([launch])
    assert not bench.events
    bench.engine.carry_out(launch)
    assert isinstance(bench.expect(Ended).end.outcome, NotStarted)


def test_a_job_with_a_port_of_its_own_gets_it(bench: Bench) -> None:
    run = Template((SHOWN.format(""), Slot("port", "bare")))
    launch = replace(launch_of(bench), job=replace(launch_of(bench).job, run=run))
    bench.engine.foresee([launch])
    *_, master, port = said(bench, launch)
    assert len({int(master), int(port.strip("'"))}) == 2


# ── Which is kept ───────────────────────────────────────────────────────────────────────────────


class IdlePair:
    """A pair of keepers that may know what is foreseen."""

    def __init__(self) -> None:
        self.foreseen: Command | None = None

    def foresee(self, command: Command, message: bytes) -> None:
        assert self.foreseen is None
        self.foreseen = command

    def unforesee(self) -> None:
        assert self.foreseen is not None
        self.foreseen = None


class Shelf:
    """PreparedAhead without an engine; `made` holds what was prepared, in order.

    `at_rest`: its pairs without an attempt, which know at most one that is foreseen.
    """

    def __init__(self, pairs: int = 1) -> None:
        self.at_rest = [IdlePair() for _ in range(pairs)]
        self.slots = EndSlots("/run/ends")
        self.ports = PortPool()
        self.ports.keep(cast(Any, SimpleNamespace(port=port)) for port in (1, 2, 3, 4))
        self.made: list[Launch] = []
        self.broken = False
        self.ahead = PreparedAhead(cast(Any, self), self.ports, self.slots, self.make)

    def take_idle(self, kind: PairKind) -> IdlePair | None:
        return self.at_rest.pop() if self.at_rest else None

    def idle(self, kind: PairKind) -> int:
        return len(self.at_rest)

    def keep(self, pair: Any, kind: PairKind) -> None:
        assert pair.foreseen is None
        self.at_rest.append(pair)

    def make(
        self, launch: Launch, ports: Sequence[PortLease]
    ) -> tuple[AttemptPlace, Command, bytes]:
        self.slots.of(str(launch.attempt))
        if self.broken:
            raise GpulaunchError("no")
        self.made.append(launch)
        place = AttemptPlace(launch.gpus, "index", "", ports[0].port)
        return place, Command(str(launch.attempt), ("x",), "/l", "/e"), repr(launch).encode()

    def kept(self) -> int:
        """How many ports are the pool's."""
        return len(self.ports._kept)


JOBS = [Job(name, "x", demand=Demand(gpus=1)) for name in ("a", "b")]
GPUS = [Gpu(f"GPU-{n}", n, "", "A100", 1) for n in range(2)]
launches = st.builds(
    lambda job, number, gpu, again: Launch(
        AttemptId(job.name, number), replace(job) if again else job, (gpu,)
    ),
    st.sampled_from(JOBS), st.integers(1, 2), st.sampled_from(GPUS), st.booleans(),
)  # fmt: skip
foreseen = st.lists(launches, max_size=3, unique_by=lambda launch: launch.attempt)
steps = st.one_of(
    st.tuples(st.sampled_from(["foresee", "break"]), foreseen),
    st.tuples(st.sampled_from(["launch", "release", "leave"]), st.lists(launches, min_size=1)),
)


def same(one: Launch, other: Launch | None) -> bool:
    return other is not None and one.job is other.job and one == other


@given(st.integers(0, 3), st.lists(steps, max_size=30))
def test_of_any_history_only_the_very_launches_are_taken_and_nothing_is_lost(
    pairs: int, history: list[tuple[str, list[Launch]]]
) -> None:
    shelf = Shelf(pairs)
    kept: dict[AttemptId, Launch] = {}
    for what, coming in history:
        match what:
            case "launch":
                ready = shelf.ahead.take(coming[0])
                exact = same(coming[0], kept.get(coming[0].attempt))
                assert (ready is not None) == exact
                if ready is not None:
                    assert (ready.launch, ready.message) == (coming[0], repr(coming[0]).encode())
                    assert str(coming[0].attempt) in shelf.slots._taken
                    if ready.pair is not None:
                        there = cast(Any, ready.pair)
                        assert there.foreseen is ready.command
                        there.foreseen = None  # it goes, and ends
                        shelf.keep(there, ready.kind)
                    shelf.ports.keep(ready.ports)
                    shelf.slots.give_back(str(coming[0].attempt))
                else:
                    assert shelf.at_rest or not told_of(shelf, coming[0])
                kept = {ready.launch.attempt: ready.launch for ready in of(shelf)}
                assert coming[0].attempt not in kept
            case "foresee" | "break":
                shelf.broken = what == "break"
                stays = {one.attempt for one in coming if same(one, kept.get(one.attempt))}
                shelf.ahead.foresee(coming)
                kept = {
                    one.attempt: one for one in coming if one.attempt in stays or not shelf.broken
                }
            case "release":
                (gpu,) = coming[0].gpus
                shelf.ahead.drop_on(gpu.uuid)
                kept = {name: one for name, one in kept.items() if gpu not in one.gpus}
            case "leave":
                for ready in [one for one in of(shelf) if one.pair is not None][:1]:
                    shelf.ahead.forget(cast(Pair, ready.pair))
                    pairs -= 1
        assert {ready.launch.attempt: ready.launch for ready in of(shelf)} == kept
        told = sum(ready.pair is not None for ready in of(shelf))
        assert len(shelf.at_rest) == pairs - told
        assert shelf.kept() == 4 - len(kept)
        assert len(shelf.slots._taken) == len(kept)
    shelf.ahead.drop()
    assert (shelf.kept(), shelf.slots._taken) == (4, {})


def of(shelf: Shelf) -> list[PreparedAttempt]:
    return list(shelf.ahead._ready.values())


def told_of(shelf: Shelf, launch: Launch) -> list[PreparedAttempt]:
    """What is prepared for the launch's cards, and known to a pair."""
    uuids = tuple(gpu.uuid for gpu in launch.gpus)
    return [one for one in of(shelf) if one.pair is not None and one.kind.leases == uuids]


def test_launches_are_prepared_one_at_a_time_while_nothing_else_is_to_be_done() -> None:
    shelf = Shelf(pairs=2)
    due: list[Any] = []
    shelf.ahead = PreparedAhead(cast(Any, shelf), shelf.ports, shelf.slots, shelf.make, due.append)
    coming = [Launch(AttemptId(job.name, 1), job, (GPUS[0],)) for job in JOBS]
    shelf.ahead.foresee(coming)
    assert (shelf.made, len(due)) == (coming[:1], 1)
    due.pop()()
    assert (shelf.made, due) == (coming, [])
    shelf.ahead.foresee(coming)  # as they are
    assert (shelf.made, due) == (coming, [])


@pytest.mark.parametrize(
    "fields",
    [
        {"env_file": "/env"}, {"python": "/bin/python"}, {"preload": ("torch",)},
        {"batch": ("/a",)}, {"fasta": FastaRecord("/f", 0, 1, "")}, {"needs": ("service",)},
        {"service": Service("tcp:1")}, {"worker": Worker(run=("x",))}, {"isolation": "strict"},
    ],
    ids=lambda fields: next(iter(fields)),
)  # fmt: skip
def test_a_job_for_which_more_is_read_or_made_is_not_prepared_ahead(fields: Any) -> None:
    shelf = Shelf()
    launch = Launch(AttemptId("a", 1), replace(JOBS[0], **fields), (GPUS[0],))
    shelf.ahead.foresee([launch])
    assert (shelf.made, shelf.ahead.take(launch), shelf.kept()) == ([], None, 4)
