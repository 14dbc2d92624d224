"""The cards and the runs of this machine, as people see them and as JSON."""

from __future__ import annotations

import json
import re
import time

import pytest
from msgspec.structs import replace

from gpulaunch.base.documents import MachineCard
from gpulaunch.core.model import Gpu, Instant
from gpulaunch.gpus.inventory import unusable, usable
from gpulaunch.gpus.machine import CardReading, Fault, Process
from gpulaunch.gpus.socket_locks import Holder, NamedHold
from gpulaunch.observe.present.plan import RunRow, runs_json
from gpulaunch.observe.terminal.machine import print_gpus, print_runs
from tests.views.history import START
from tests.views.screen import rendered


def card(index: int, uuid: str, used: int = 0, *on_it: Process) -> tuple[Gpu, CardReading]:
    gpu = Gpu(uuid, index, "", "NVIDIA H200", 141 << 30)
    return gpu, CardReading(uuid, total=gpu.memory, used=used, processes=on_it)


ON_IT = (Process(4211, "C", 40 << 30, "ann", "python"), Process(9, "C"))
HOLDER = Holder(7, 1000, "ann", run="20261120-074215-a1b2c3")
LOST = Fault("NVIDIA\x1b[2J H200", "lost: the driver does not answer for it", index=2)
FREE = usable(*card(0, "GPU-5f3c"))
USED = usable(*card(1, "GPU-77aa", 41 << 30, *ON_IT), HOLDER)
ROWS: tuple[MachineCard, ...] = (FREE, USED, {**unusable(LOST), "uuid": "GPU-dead"})


def test_cards_with_who_uses_them_who_holds_them_and_their_health() -> None:
    assert rendered(lambda c: print_gpus(c, ROWS), 40) == (
        "GPU 0  NVIDIA H200            0 B of 141 GiB  free\n"
        "       GPU-5f3c\n"
        "GPU 1  NVIDIA H200         41 GiB of 141 GiB  leased\n"
        "       leased by ann (pid 7, run 20261120-074215-a1b2c3)\n"
        "       python (pid 4211) of ann, 40 GiB\n"
        "       pid 9\n"
        "       GPU-77aa\n"
        "GPU 2  NVIDIA\\x1b[2J H200                  ?  lost: the driver does not answer for it\n"
        "       GPU-dead"
    )


def test_a_card_that_is_held_has_the_users_name_for_it_and_its_end() -> None:
    hold = NamedHold("lunch demo", time.time() + 3600.0)
    row = usable(*card(0, "GPU-5f3c"), Holder(7, 1000, "ann", "bash", hold=hold))
    first, second, _ = rendered(lambda c: print_gpus(c, [row]), 40).splitlines()
    assert first.endswith("held")
    assert re.fullmatch(r" +held by ann for 'lunch demo' until \d\d:\d\d \(pid 7\): bash", second)


def test_a_card_whose_memory_is_used_by_nobody_named_is_not_free() -> None:
    why = "5 GiB are in use there by nobody that the driver names"
    unnamed = usable(*card(0, "GPU-5f3c", 5 << 30))
    text = rendered(lambda c: print_gpus(c, [unnamed, USED]), 40)
    assert text.splitlines()[:2] == [
        "GPU 0  NVIDIA H200   5 GiB of 141 GiB  in use",
        f"       {why}",
    ]


def test_a_card_that_the_inherited_mask_leaves_out_says_so() -> None:
    row = usable(*card(0, "GPU-5f3c"), outside="CUDA_VISIBLE_DEVICES=2,3")
    text = rendered(lambda c: print_gpus(c, [row]), 40)
    assert text.splitlines()[1:] == [
        "       not used from here: CUDA_VISIBLE_DEVICES=2,3",
        "       GPU-5f3c",
    ]


def test_simulated_cards_say_so_and_json_has_every_field() -> None:
    gpu, look = card(0, "GPU-5f3c")
    row = usable(replace(gpu, simulated=True), look)
    assert "simulated GPU 0" in rendered(lambda c: print_gpus(c, [row]))
    found = json.loads(json.dumps(USED))
    assert found["users"][0] == {
        "pid": 4211,
        "user": "ann",
        "command": "python",
        "memory": 40 << 30,
    }
    assert found["lease"].startswith("ann (pid 7")


def test_runs_with_how_far_they_are() -> None:
    rows = [
        RunRow(
            "20261120-074215-a1b2c3", 7, "ann", "nanobodies", "/data/gpulaunch-runs/n-1", "running",
            START - 3723, "GPUs 0, 1", True, {"succeeded": 310, "failed": 2, "waiting": 688},
        ),
        RunRow("20261119-010203-ffffff", 8, "bob"),
    ]  # fmt: skip
    assert rendered(lambda c: print_runs(c, rows, Instant(0, START))) == (
        "run                     user  pid     time  jobs                    cards"
        "                  directory\n"
        "nanobodies              ann     7  1:02:03  312 of 1,000, 2 failed  "
        "GPUs 0, 1 (simulated)  /data/gpulaunch-runs/n-1\n"
        "20261119-010203-ffffff  bob     8           ?"
    )
    first = runs_json(rows)["runs"][0]
    assert first["started"] == "2026-11-20T06:40:12.250000Z"
    assert first["counts"] == {"succeeded": 310, "failed": 2, "waiting": 688}


@pytest.mark.parametrize("columns", [40, 80])
def test_runs_on_a_screen_too_narrow_for_columns_have_lines_of_their_own(columns: int) -> None:
    cards = "0, 1, 2, 3, 4, 5, 6, 7"
    rows = [
        RunRow("a", 7, "ann", "x" * 30, "/data/runs/n-1", "running", START - 3, cards, True, {}),
        RunRow("20261119-010203-ffffff", 8, "bob"),
    ]
    assert rendered(lambda c: print_runs(c, rows, Instant(0, START)), columns) == (
        f"{'x' * 30}  ann  pid 7  0:03\n  0 of 0\n  {cards} (simulated)\n  /data/runs/n-1\n"
        "20261119-010203-ffffff  bob  pid 8"
    )


def test_a_pipe_gets_columns_however_long_one_of_them_is() -> None:
    rows = [RunRow("r", 7, "ann", "x", f"/{'d' * 4000}", "running", START)]
    text = rendered(lambda c: print_runs(c, rows, Instant(0, START)))
    assert text.startswith("run  user  pid  time  jobs  cards  directory\nx    ann ")


def test_no_run_is_said_plainly() -> None:
    text = rendered(lambda c: print_runs(c, [], Instant(0, START)))
    assert text == "no run is alive on this machine"
