from __future__ import annotations

import pytest

from gpulaunch.gpus import parse
from gpulaunch.gpus.machine import Fault

CARD = {
    "index": 2,
    "uuid": "GPU-1",
    "name": "NVIDIA A100",
    "memory": 80,
    "bus": "00000000:C1:00.0",
    "minor": 5,
    "mig_mode": 0,
    "errors": {},
}


@pytest.mark.parametrize(
    ("bus", "key"),
    [
        ("00000000:C1:00.0", "0000:c1:00.0"),
        ("0000:C1:00.0", "0000:c1:00.0"),
        ("00010000:C1:00.0", "00010000:c1:00.0"),
        ("C1", None),
        (None, None),
        (7, None),
    ],
)
def test_the_place_on_the_bus_is_spelt_as_the_kernel_does(bus: object, key: str | None) -> None:
    assert parse.bus_id(bus) == key


def test_a_card_without_a_name_or_a_minor_number_can_be_used() -> None:
    (gpu,), faults = parse.cards({**CARD, "name": None, "minor": None})
    assert (gpu.name, gpu.minor, faults) == ("NVIDIA card of unknown name", None, ())


@pytest.mark.parametrize("missing", ["uuid", "memory", "bus"])
def test_a_card_that_cannot_be_identified_is_a_fault_and_never_a_zero(missing: str) -> None:
    gpus, (fault,) = parse.cards({**CARD, missing: None})
    assert gpus == ()
    assert fault.card == "card 2"
    error = {"code": 3, "kind": "NVMLError_NotSupported", "text": "Not Supported"}
    _, (fault,) = parse.cards({**CARD, missing: None, "errors": {missing: error}})
    assert fault == Fault(f"card 2, its {missing}", "Not Supported")


def test_a_boolean_or_a_word_is_no_number() -> None:
    assert parse.number(True) is None
    assert parse.number("80") is None
    assert parse.number(0) == 0


@pytest.mark.parametrize(
    ("version", "read"), [(12040, "12.4"), (11080, "11.8"), (13000, "13.0"), (None, None)]
)
def test_the_cuda_version(version: int | None, read: str | None) -> None:
    assert parse.cuda_version({"cuda": version}) == read


@pytest.mark.parametrize(
    ("listed", "kind"), [("G", "G"), ("C", "C"), ("GC", "C+G"), ("GCM", "M"), ("CM", "M")]
)
def test_a_process_listed_twice_is_one(listed: str, kind: str) -> None:
    entry = {"pid": 7, "memory": 1, "user": None, "command": None}
    (process,) = parse.processes({f"processes_{each}": [entry] for each in listed})
    assert (process.kind, process.memory) == (kind, 1)


def test_memory_that_one_list_tells_is_known() -> None:
    told, untold = ({"pid": 7, "memory": memory} for memory in (5, None))
    (process,) = parse.processes({"processes_G": [told], "processes_C": [untold]})
    assert (process.kind, process.memory) == ("C+G", 5)


def test_an_empty_answer_is_a_look_that_knows_nothing() -> None:
    look = parse.look({"uuid": "GPU-1"})
    assert (look.used, look.total, look.sick, look.processes) == (None, None, None, ())
