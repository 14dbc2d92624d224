from __future__ import annotations

import pytest

from gpulaunch.gpus import parse

CARD = {
    "index": 2,
    "uuid": "GPU-1",
    "name": "NVIDIA A100",
    "memory": {"total": 80},
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


@pytest.mark.parametrize(
    ("missing", "known"),
    [
        (("uuid",), ("PCI-0000:c1:00.0", "0000:c1:00.0", 80)),
        (("bus",), ("GPU-1", "GPU-1", 80)),
        (("uuid", "bus"), ("INDEX-2", "INDEX-2", 80)),
        (("memory",), ("GPU-1", "0000:c1:00.0", 0)),
    ],
)
def test_a_question_without_an_answer_costs_no_card(
    missing: tuple[str, ...], known: tuple[str, str, int]
) -> None:
    error = {"code": 3, "kind": "NVMLError_NotSupported", "text": "Not Supported"}
    errors = dict.fromkeys(missing, error)
    (gpu,), faults = parse.cards({**CARD, **dict.fromkeys(missing), "errors": errors})
    assert (gpu.uuid, gpu.key, gpu.memory) == known
    assert faults == ()


@pytest.mark.parametrize("told", ["", "GPU-a,b", "GPU-\x1b[31m", "GPU 1", "GPU-\xe9"])
def test_a_uuid_that_a_mask_cannot_hold_is_none(told: str) -> None:
    (gpu,), faults = parse.cards({**CARD, "uuid": told})
    assert (gpu.uuid, gpu.named, faults) == ("PCI-0000:c1:00.0", "2", ())


@pytest.mark.parametrize("field", ["uuid", "memory", "bus", "name"])
def test_a_card_that_the_driver_calls_lost_is_a_fault_at_whatever_question(field: str) -> None:
    error = {"code": 15, "kind": "NVMLError_GpuIsLost", "text": "GPU is lost"}
    gpus, (fault,) = parse.cards({**CARD, field: None, "errors": {field: error}})
    assert gpus == ()
    assert (fault.card, fault.what) == (f"card 2, its {field}", "GPU is lost")


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
