from __future__ import annotations

import json
from typing import get_args
from zlib import crc32

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpulaunch.base.schemas import event_schema
from gpulaunch.core.causes import EndCause
from gpulaunch.core.events import Event, Instruction, Request
from gpulaunch.core.facts import (
    AttemptEnded,
    AttemptLaunched,
    AttemptQueued,
    AttemptStarted,
    Fact,
    JobSettled,
    Noted,
    RunOpened,
)
from gpulaunch.core.model import (
    AttemptId,
    End,
    Exited,
    Failure,
    Gpu,
    Instant,
    MissingOutput,
    Outcome,
)
from gpulaunch.core.reasons import CardReason, JobReason, RunReason, WaitReason
from gpulaunch.core.values import Value
from gpulaunch.journal import codec
from tests.journal.facts import FACTS, INSTANTS, opened, values

EVENT = jsonschema.Draft202012Validator(event_schema())
AT = Instant(4242.000001, 1795160535.123456)


@pytest.mark.parametrize("cls", get_args(Fact))
def test_every_fact_comes_back_as_it_was_written(cls: type) -> None:
    @given(values(cls), INSTANTS, st.integers(1, 10**9))
    def check(fact: Fact, at: Instant, number: int) -> None:
        line = codec.encode(number, fact, at)
        assert line.endswith(b"\n")
        assert line.count(b"\n") == 1
        assert codec.decode(line[:-1]) == codec.JournalLine(number, fact, at)
        assert codec.check(line[:-1]) == number

    check()


@given(FACTS, INSTANTS)
def test_a_line_keeps_to_its_published_schema(fact: Fact, at: Instant) -> None:
    EVENT.validate(json.loads(codec.encode(1, fact, at)))


def test_a_line_reads_as_documented() -> None:
    line = codec.encode(7, AttemptStarted(AttemptId("fold-a", 1), 4711), AT)
    body = (
        '{"n":7,"t":"2026-11-20T07:42:15.123456Z","m":4242.000001,"e":"attempt_started",'
        '"job":"fold-a","attempt":1,"pid":4711'
    )
    assert line == f'{body},"c":"{crc32((body + "}").encode()):08x}"}}\n'.encode()


def test_an_outcome_carries_its_kind() -> None:
    outcome = MissingOutput(("a.cif",), Exited(0))
    line = codec.encode(
        1,
        AttemptEnded(AttemptId("a", 2), End(outcome, Failure("missing_output")), charged=True),
        AT,
    )
    assert json.loads(line)["end"]["outcome"] == {
        "kind": "missing_output",
        "paths": ["a.cif"],
        "status": {"kind": "exited", "code": 0},
    }


def test_one_key_finds_all_about_a_job() -> None:
    facts = [JobSettled("a", "succeeded"), AttemptStarted(AttemptId("a", 1), 1), Noted("x", "a")]
    assert [json.loads(codec.encode(1, fact, AT))["job"] for fact in facts] == ["a"] * 3


def test_names_stay_readable_and_bytes_that_are_no_utf8_survive() -> None:
    assert "β-Amyloid".encode() in codec.encode(1, Noted("β-Amyloid"), AT)
    odd = Noted(b"caf\xe9.fasta".decode(errors="surrogateescape"))
    assert codec.decode(codec.encode(1, odd, AT)[:-1]).fact == odd


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("job", '"../x"'),
        ("job", '"\\ud800"'),
        ("cost", "NaN"),
        ("gpus", "9223372036854775808"),
        ("gpus", "1" * 5000),
        ("params", '{"\\ud800":"x"}'),
        ("digest", "[" * 100_000 + "]" * 100_000),
    ],
)
def test_what_no_fact_can_hold_is_a_bad_line_though_its_checksum_is_right(
    key: str, value: str
) -> None:
    fields = {"job": '"a"', "group": "0", "gpus": "1", "digest": '"d"', key: value}
    told = ",".join(f'"{name}":{text}' for name, text in fields.items())
    body = f'{{"n":7,"t":"2026-11-20T07:42:15.123456Z","m":1.5,"e":"job_added",{told}'
    line = f'{body},"c":"{crc32((body + "}").encode()):08x}"}}'
    with pytest.raises(codec.BadLineError):
        codec.decode(line.encode())


def test_the_clock_gives_instants_that_survive_exactly() -> None:
    for _ in range(1000):
        now = codec.now()
        assert codec.decode(codec.encode(1, Noted(""), now)[:-1]).at == now


@given(st.integers(0, 4_000_000_000 * 10**6))
def test_a_time_written_is_the_time_read(micros: int) -> None:
    assert codec.from_iso(codec.iso(micros / 1_000_000)) == micros / 1_000_000


@given(FACTS, st.data())
def test_any_changed_byte_is_noticed(fact: Fact, data: st.DataObject) -> None:
    line = bytearray(codec.encode(1, fact, AT)[:-1])
    where = data.draw(st.integers(0, len(line) - 1))
    line[where] ^= data.draw(st.integers(1, 255))
    with pytest.raises(codec.BadLineError):
        codec.decode(bytes(line))
    with pytest.raises(codec.BadLineError):
        codec.check(bytes(line))


def sealed(body: dict[str, object]) -> bytes:
    raw = codec.to_json(body)
    return raw[:-1] + b',"c":"%08x"}' % crc32(raw)


HEAD: dict[str, object] = {"n": 1, "t": "2026-11-20T07:42:15.123456Z", "m": 1.5}


@pytest.mark.parametrize(
    "body",
    [
        {"e": "gpu_sang", "gpu": "GPU-0"},
        {"e": "noted", "text": "x", "job": None, "colour": "red"},
        {"e": "run_closed", "state": "levitating", "reason": ""},
        {"e": "attempt_ended", "job": "a", "attempt": 1, "charged": False,
         "end": {"outcome": {"kind": "ascended"}}},
        {"e": "noted", "text": 3},
        {"e": "noted"},
        {"e": "noted", "text": "x", "attempt": 1},
        {"e": "attempt_started", "job": "a", "attempt": True, "pid": 1},
        {"e": "attempt_started", "job": "a", "attempt": 0, "pid": 1},
        {"e": "attempt_started", "job": "a", "pid": 1},
        {"e": "attempt_started", "attempt": 1, "pid": 1},
        {"e": "job_added", "job": "a", "group": 0, "gpus": 1.0, "digest": ""},
        {"e": "job_added", "job": "a", "group": 0, "gpus": 1, "digest": "", "cost": 1e300},
        {"e": "job_added", "job": "a", "group": 0, "gpus": 1, "digest": "", "cost": "inf"},
    ],
)  # fmt: skip
def test_what_another_version_writes_is_told_apart(body: dict[str, object]) -> None:
    with pytest.raises(codec.UnknownKindError):
        codec.decode(sealed(HEAD | body))


def test_a_field_that_an_older_version_did_not_have_takes_its_default() -> None:
    line = sealed(HEAD | {"e": "job_settled", "job": "a", "state": "failed"})
    assert codec.decode(line).fact == JobSettled("a", "failed", None)


@pytest.mark.parametrize(
    ("body", "fact"),
    [
        (
            {"e": "attempt_launched", "gpus": ["GPU-0"], "worker": None},
            AttemptLaunched(AttemptId("a", 1), ("GPU-0",), queued=False),
        ),
        (
            {"e": "attempt_started", "pid": 4711},
            AttemptStarted(AttemptId("a", 1), 4711, gpus=(), node=""),
        ),
    ],
)
def test_facts_of_before_engines_had_queues_are_still_read(
    body: dict[str, object], fact: Fact
) -> None:
    line = sealed(HEAD | body | {"job": "a", "attempt": 1})
    assert codec.decode(line).fact == fact


def test_a_run_of_before_engines_had_queues_was_local() -> None:
    body = json.loads(codec.encode(1, opened(), AT))
    del body["c"]
    assert not {"engine", "node"} & {*body, *body["gpus"][0]}
    fact = codec.decode(sealed(body)).fact
    assert isinstance(fact, RunOpened)
    assert (fact.engine, fact.gpus[0].node) == ("local", "")


def test_what_an_engine_with_a_queue_tells_is_written() -> None:
    gpu = Gpu("n1/0", 0, "n1/0", "", 0, node="n1")
    a1 = AttemptId("a", 1)
    launched = AttemptLaunched(a1, (), queued=True)
    started = AttemptStarted(a1, 7, (gpu,), "n1")
    for fact in (opened(engine="slurm"), launched, AttemptQueued(a1, "Slurm job 12_3"), started):
        assert codec.decode(codec.encode(1, fact, AT)[:-1]).fact == fact
    body = json.loads(codec.encode(1, started, AT))
    assert (body["node"], body["gpus"][0]["node"]) == ("n1", "n1")


@pytest.mark.parametrize(
    "body",
    [
        {"e": "noted", "text": "x", "t": "yesterday"},
        {"e": "noted", "text": "x", "n": "1"},
        {"e": "noted", "text": "x", "m": None},
    ],
)
def test_a_line_of_the_wrong_form_is_refused(body: dict[str, object]) -> None:
    with pytest.raises(codec.BadLineError):
        codec.decode(sealed(HEAD | body))


@pytest.mark.parametrize("line", [b"", b"{}", b"[]", b"null", b"\x00" * 40, b"\xff" * 40])
def test_what_is_no_line_is_refused(line: bytes) -> None:
    with pytest.raises(codec.BadLineError):
        codec.decode(line)
    with pytest.raises(codec.BadLineError):
        codec.check(line)


def test_every_kind_has_a_name_of_its_own_apart_from_its_class() -> None:
    """A class may be renamed; what it is called in a journal stays."""
    kinds = [*get_args(Fact), *get_args(Event), *get_args(Instruction)]
    for union in (Outcome, EndCause, CardReason, RunReason, WaitReason, JobReason, Request):
        kinds += get_args(union)
    taken = {cls: cls.__struct_config__.tag for cls in kinds if issubclass(cls, Value)}
    assert len(taken) > 100
    assert all(tag and tag == tag.lower() and tag not in ("kind", "e") for tag in taken.values())
    assert len({taken[cls] for cls in get_args(Fact)}) == len(get_args(Fact))


def test_gpus_are_written_as_people_look_for_them() -> None:
    gpu = json.loads(codec.encode(1, opened(), AT))["gpus"][0]
    assert (gpu["uuid"], gpu["index"], gpu["name"]) == ("GPU-0", 0, "H200")
