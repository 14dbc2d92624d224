"""The real pynvml in the real helper process, against the pretend library."""

from __future__ import annotations

import os
import pwd
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from gpulaunch.base.free_below import FreeBelow
from gpulaunch.base.loop import Loop
from gpulaunch.core.events import Occupied, Sick
from gpulaunch.core.model import Gpu
from gpulaunch.gpus.discover import ProbeClient, find, looks
from gpulaunch.gpus.machine import CardReading, Machine, drained, is_free
from gpulaunch.gpus.mask import style_for
from gpulaunch.gpus.probe import draws_windows, is_the_same_here
from gpulaunch.gpus.socket_locks import command_of
from tests.gpus.fake import GIB, MIB, FakeDriver
from tests.helpers import descriptors_left, wait_until

NO_PERMISSION, NOT_SUPPORTED, DRIVER_NOT_LOADED, LOST, RESET, MISMATCH = 4, 3, 9, 15, 16, 18


@pytest.fixture
def client(fake_driver: FakeDriver) -> Iterator[ProbeClient]:
    with ProbeClient(fake_driver.environ, limit=10.0) as client:
        yield client


def one(client: ProbeClient, gpu: Gpu) -> CardReading:
    return looks(client, [gpu])[gpu.uuid]


def indices(machine: Machine) -> list[int]:
    return [gpu.index for gpu in machine.gpus]


# ── Finding ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("count", [4, 16])
def test_every_card_is_found_by_uuid_and_keyed_by_its_place_on_the_bus(
    fake_driver: FakeDriver, count: int
) -> None:
    for n in range(count):
        fake_driver.card(n, minor=count - n)
    machine = find(fake_driver.environ)
    assert (machine.faults, machine.unopened) == ((), ())
    assert (machine.driver, machine.cuda) == ("550.54.15", "12.4")
    assert indices(machine) == list(range(count))
    assert machine.gpus[3] == Gpu(
        uuid="GPU-00000003-1111-2222-3333-444444444444",
        index=3,
        key="0000:04:00.0",
        name="NVIDIA A100-SXM4-80GB",
        memory=80 * GIB,
        minor=count - 3,
        compute=(8, 0),
    )
    assert style_for(machine) == ("index", "")


@pytest.mark.parametrize(
    ("code", "what", "advice"),
    [(LOST, "GPU is lost", "Xid 79"), (NO_PERMISSION, "Insufficient Permissions", "/dev/nvidia")],
)
def test_a_card_that_does_not_open_leaves_the_others_in_use(
    fake_driver: FakeDriver, code: int, what: str, advice: str
) -> None:
    for n in range(4):
        fake_driver.card(n)
    fake_driver.card(1, error_open=code)
    machine = find(fake_driver.environ)
    assert indices(machine) == [0, 2, 3]
    (fault,) = machine.faults
    assert (fault.card, fault.what, fault.index) == ("card 1", what, 1)
    assert advice in fault.advice
    assert style_for(machine)[0] == "uuid"


def test_a_card_lost_between_two_calls_is_a_fault_of_its_own(fake_driver: FakeDriver) -> None:
    for n in range(3):
        fake_driver.card(n)
    fake_driver.card(2, error_memory=LOST)
    machine = find(fake_driver.environ)
    assert indices(machine) == [0, 1]
    assert str(machine.faults[0]).startswith("card 2, its memory: GPU is lost")


def test_a_card_whose_call_hangs_is_named_and_the_others_are_found(
    fake_driver: FakeDriver,
) -> None:
    for n in range(4):
        fake_driver.card(n)
    fake_driver.card(1, hang="open")
    fake_driver.card(3, hang="name")
    began = time.monotonic()
    machine = find(fake_driver.environ, timeout=1.0)
    assert time.monotonic() - began >= 2.0
    assert indices(machine) == [0, 2]
    assert [(fault.card, fault.what) for fault in machine.faults] == [
        ("card 1", "the driver did not answer for it within 1 s"),
        ("card 3", "the driver did not answer for it within 1 s"),
    ]


def test_a_card_that_crashes_the_library_is_named_and_the_others_are_found(
    fake_driver: FakeDriver,
) -> None:
    for n in range(3):
        fake_driver.card(n)
    fake_driver.card(0, crash="uuid")
    machine = find(fake_driver.environ)
    assert indices(machine) == [1, 2]
    assert machine.faults[0].what == "the process that asked the driver died (by signal 6)"


def test_mig_instances_are_cards_of_their_own(fake_driver: FakeDriver, client: ProbeClient) -> None:
    fake_driver.card(0)
    fake_driver.mig(1, 0)
    fake_driver.mig(1, 2)
    fake_driver.process("1.2", pid=999_999, memory=GIB)
    machine = find(fake_driver.environ, client=client)
    assert [(gpu.index, gpu.mig) for gpu in machine.gpus] == [(0, False), (1, True), (1, True)]
    first, second = machine.gpus[1:]
    assert first.uuid == first.key == "MIG-00000001-0000-5000-8000-000000000000"
    assert (first.memory, first.minor) == (10 * GIB, 1)
    assert style_for(machine)[0] == "uuid"
    assert is_free(one(client, first)) is None
    assert isinstance(is_free(one(client, second)), Occupied)


def test_mig_mode_without_instances_is_said(fake_driver: FakeDriver) -> None:
    fake_driver.card(0)
    fake_driver.card(1, mig_mode=1)
    machine = find(fake_driver.environ)
    assert indices(machine) == [0]
    assert "MIG mode is on and it has no instances" in machine.faults[0].what
    assert style_for(machine)[0] == "uuid"


def test_an_instance_that_is_gone_is_sick_and_not_another_one(
    fake_driver: FakeDriver, client: ProbeClient
) -> None:
    fake_driver.mig(0, 0)
    (gpu,) = find(fake_driver.environ, client=client).gpus
    fake_driver.mig(0, 0, uuid="MIG-another")
    assert "no MIG instance" in str(one(client, gpu).sick)


def test_another_card_in_its_place_is_not_taken_for_it(
    fake_driver: FakeDriver, client: ProbeClient
) -> None:
    fake_driver.card(0)
    (gpu,) = find(fake_driver.environ, client=client).gpus
    fake_driver.card(0, uuid="GPU-another")
    assert one(client, gpu).sick == "another card is in its place now: GPU-another"


def test_mixed_models_are_told_apart(fake_driver: FakeDriver) -> None:
    fake_driver.card(0, name="NVIDIA GeForce RTX 4090", total=24 * GIB)
    fake_driver.card(1, name="NVIDIA L40S", total=48 * GIB)
    machine = find(fake_driver.environ)
    assert [(gpu.name, gpu.memory) for gpu in machine.gpus] == [
        ("NVIDIA GeForce RTX 4090", 24 * GIB),
        ("NVIDIA L40S", 48 * GIB),
    ]


def test_an_old_driver_without_the_newest_symbols_will_do(tmp_path: Path) -> None:
    driver = FakeDriver(tmp_path, old=True)
    driver.driver(version="450.80.02", cuda=11000)
    driver.card(0, used=GIB)
    driver.process(0, pid=999_999, memory=GIB)
    driver.card(1)
    with ProbeClient(driver.environ) as client:
        machine = find(driver.environ, client=client)
        assert (machine.driver, machine.cuda, machine.faults) == ("450.80.02", "11.0", ())
        busy, idle = (one(client, gpu) for gpu in machine.gpus)
    assert [process.pid for process in busy.processes] == [999_999]
    assert is_free(idle) is None
    assert idle.used == 504 * MIB  # the first kind of answer counts the driver's own share
    assert {"recovery", "remapped", "processes_M"} <= set(idle.unanswered)


@pytest.mark.parametrize(
    ("code", "what", "advice"),
    [
        (DRIVER_NOT_LOADED, "Driver Not Loaded", "modprobe nvidia"),
        (MISMATCH, "version mismatch", "reload the module or reboot"),
        (999, "Unknown Error", ""),
    ],
)
def test_a_driver_that_does_not_start_is_explained(
    fake_driver: FakeDriver, code: int, what: str, advice: str
) -> None:
    fake_driver.card(0)
    fake_driver.driver(error_init=code)
    machine = find(fake_driver.environ)
    assert machine.gpus == ()
    assert machine.faults[0].card == ""
    assert what in machine.faults[0].what
    assert advice in machine.faults[0].advice


def test_a_driver_that_hangs_at_once_is_a_fault_of_the_machine(fake_driver: FakeDriver) -> None:
    fake_driver.card(0)
    fake_driver.driver(hang="init")
    machine = find(fake_driver.environ, timeout=0.5)
    assert (machine.gpus, machine.faults[0].card) == ((), "")
    assert "did not answer" in machine.faults[0].what


def test_a_driver_without_a_card(fake_driver: FakeDriver) -> None:
    machine = find(fake_driver.environ)
    assert machine.gpus == ()
    assert machine.faults[0].what == "the driver is there and has no card"


@pytest.fixture
def no_library(fake_driver: FakeDriver, tmp_path: Path) -> dict[str, str]:
    """An environment in which the library cannot be loaded, even where a real one is installed."""
    directory = tmp_path / "broken"
    directory.mkdir()
    (directory / "libnvidia-ml.so.1").write_text("this is no library\n")
    return fake_driver.environ | {"LD_LIBRARY_PATH": str(directory)}


def test_no_library_at_all_is_explained(no_library: dict[str, str]) -> None:
    machine = find(no_library)
    assert machine.gpus == ()
    assert machine.faults[0].what == "NVML Shared Library Not Found"
    assert "--simulate" in machine.faults[0].advice


def test_cards_hidden_from_a_container_are_explained(no_library: dict[str, str]) -> None:
    machine = find(no_library | {"NVIDIA_VISIBLE_DEVICES": "void"})
    assert machine.faults[0].advice.startswith("NVIDIA_VISIBLE_DEVICES=void hides every card")


# ── Looking ─────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def gpu(fake_driver: FakeDriver, client: ProbeClient) -> Gpu:
    fake_driver.card(0)
    return find(fake_driver.environ, client=client).gpus[0]


def test_a_look_has_memory_health_and_load(client: ProbeClient, gpu: Gpu) -> None:
    look = one(client, gpu)
    assert (look.total, look.used, look.free) == (80 * GIB, 4 * MIB, 80 * GIB - 504 * MIB)
    assert (look.compute_mode, look.sick, look.notes) == ("default", None, ())
    assert (look.utilization, look.temperature, look.power) == (0, 30, 60.0)
    assert look.persistence is True
    assert look.unanswered == {}
    assert is_free(look) is None


in_a_container = os.readlink("/proc/self/ns/pid") != "pid:[4026531836]"


@pytest.mark.skipif(in_a_container, reason="PIDs of the host mean nothing in here")
def test_a_foreign_process_is_named(fake_driver: FakeDriver, client: ProbeClient, gpu: Gpu) -> None:
    with subprocess.Popen(["sleep", "60"]) as stranger:
        fake_driver.process(0, stranger.pid, memory=41 * GIB)
        wait_until(lambda: command_of(stranger.pid) == "sleep 60")
        busy = is_free(one(client, gpu))
        stranger.kill()
    user = pwd.getpwuid(os.getuid()).pw_name
    assert busy == Occupied(f"{user} (pid {stranger.pid}, 41 GiB): sleep 60", 0)


def test_an_unknown_pid_and_an_untold_memory_make_the_card_busy(
    fake_driver: FakeDriver, client: ProbeClient, gpu: Gpu
) -> None:
    fake_driver.process(0, pid=4_194_303)
    (process,) = one(client, gpu).processes
    assert (process.pid, process.memory, process.user, process.command) == (
        4_194_303,
        None,
        None,
        None,
    )
    assert isinstance(is_free(one(client, gpu)), Occupied)


def test_graphics_alone_is_not_busy(fake_driver: FakeDriver, client: ProbeClient, gpu: Gpu) -> None:
    fake_driver.card(0, used=700 * MIB)
    fake_driver.process(0, pid=999_999, memory=690 * MIB, kind="G")
    assert is_free(one(client, gpu)) is None
    fake_driver.process(0, pid=999_999, memory=690 * MIB, kind="C")
    look = one(client, gpu)
    assert [process.kind for process in look.processes] == ["C+G"]
    assert is_free(look) is None  # less than one per cent of the card
    assert isinstance(is_free(look, free_below=FreeBelow(600 * MIB)), Occupied)


def test_a_card_of_windows_is_told_by_the_driver_s_model(
    fake_driver: FakeDriver, client: ProbeClient, gpu: Gpu
) -> None:
    assert not one(client, gpu).windows
    fake_driver.card(0, driver_model=0)
    assert one(client, gpu).windows
    fake_driver.card(0, driver_model=1)  # TCC: it draws nothing
    assert not one(client, gpu).windows


def test_the_device_of_wsl_counts_where_the_driver_does_not_say(tmp_path: Path) -> None:
    import pynvml

    assert not draws_windows(pynvml, None, wsl=str(tmp_path / "dxg"))
    (tmp_path / "dxg").touch()
    assert draws_windows(pynvml, None, wsl=str(tmp_path / "dxg"))


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ({"compute_mode": 2}, "PROHIBITED"),
        ({"recovery": 1}, "it needs a reset"),
        ({"recovery": 2}, "the machine needs a reboot"),
        ({"remap_failed": 1}, "row remapping failed"),
        ({"error_memory": LOST}, "GPU is lost"),
        ({"error_open": LOST}, "GPU is lost"),
        ({"error_ecc": RESET}, "GPU requires restart"),
    ],
)
def test_an_unfit_card_is_sick(
    fake_driver: FakeDriver, client: ProbeClient, gpu: Gpu, values: dict[str, object], why: str
) -> None:
    fake_driver.card(0, **values)
    sick = is_free(one(client, gpu), share_busy=True)
    assert isinstance(sick, Sick)
    assert why in sick.why


def test_what_only_a_person_should_know_keeps_no_card_out_of_use(
    fake_driver: FakeDriver, client: ProbeClient, gpu: Gpu
) -> None:
    fake_driver.card(0, ecc=3, retiring=1, remap_pending=1)
    look = one(client, gpu)
    assert is_free(look) is None
    assert len(look.notes) == 3


def test_a_field_that_is_not_answered_leaves_the_others(
    fake_driver: FakeDriver, client: ProbeClient, gpu: Gpu
) -> None:
    fake_driver.card(0, error_processes=NOT_SUPPORTED, error_utilization=999, temperature=None)
    look = one(client, gpu)
    assert (look.used, look.utilization, look.temperature) == (4 * MIB, None, None)
    assert look.unanswered["utilization"] == "Unknown Error"
    assert "processes_C" in look.unanswered


def test_memory_drains_over_time(fake_driver: FakeDriver, client: ProbeClient, gpu: Gpu) -> None:
    before = one(client, gpu)
    seen = []
    for used in (40 * GIB, 2 * GIB, 5 * MIB):
        fake_driver.card(0, used=used)
        seen.append(drained(before, one(client, gpu)))
    assert seen == [False, False, True]


# ── The client in a loop ────────────────────────────────────────────────────────────────────────


class Looking:
    """A client in a loop, and what it has seen."""

    def __init__(self, environ: Mapping[str, str], limit: float = 10.0) -> None:
        self.loop = Loop()
        self.client = ProbeClient(environ, limit, self.loop)
        self.seen: list[CardReading] = []

    def look(self, gpu: Gpu) -> None:
        self.client.look(gpu, self.seen.append)

    def readings(self, count: int) -> list[CardReading]:
        """Turn until so many have come, and take them."""
        while len(self.seen) < count:
            self.loop.turn()
        seen, self.seen[:] = list(self.seen), []
        return seen

    def __enter__(self) -> Looking:
        return self

    def __exit__(self, *_: object) -> None:
        self.client.close()
        self.loop.close()


@pytest.fixture
def looking(fake_driver: FakeDriver) -> Iterator[Looking]:
    with Looking(fake_driver.environ) as made:
        yield made


def test_looks_come_in_without_blocking(fake_driver: FakeDriver, looking: Looking) -> None:
    for n in range(4):
        fake_driver.card(n)
    gpus = find(fake_driver.environ).gpus
    for gpu in gpus:
        looking.look(gpu)
    assert not looking.seen
    looking.look(gpus[0])  # asking twice is one question
    found = looking.readings(5)
    assert [look.uuid for look in found] == [gpu.uuid for gpu in (gpus[0], *gpus)]
    assert found[0] is found[1]


def test_a_hanging_card_is_named_and_the_rest_is_answered_by_a_new_helper(
    fake_driver: FakeDriver,
) -> None:
    for n in range(3):
        fake_driver.card(n)
    gpus = find(fake_driver.environ).gpus
    with Looking(fake_driver.environ, limit=1.0) as looking:
        looking.look(gpus[0])
        looking.readings(1)
        first = looking.client.pid
        fake_driver.card(0, hang="memory")
        for gpu in gpus:
            looking.look(gpu)
        stuck, *others = looking.readings(3)
        assert stuck.uuid == gpus[0].uuid
        assert stuck.sick == "the driver did not answer for it within 1 s"
        assert [look.uuid for look in others] == [gpu.uuid for gpu in gpus[1:]]
        assert looking.client.pid != first


def test_a_helper_that_somebody_stopped_says_nothing_about_a_card(fake_driver: FakeDriver) -> None:
    fake_driver.card(0)
    (gpu,) = find(fake_driver.environ).gpus
    with Looking(fake_driver.environ, limit=1.0) as looking:
        looking.look(gpu)
        looking.readings(1)
        assert looking.client.pid is not None
        os.kill(looking.client.pid, signal.SIGSTOP)
        looking.look(gpu)
        (unasked,) = looking.readings(1)
        assert not unasked.sick
        assert unasked.unasked == "the process that asks the driver is stopped"
        looking.look(gpu)
        (asked,) = looking.readings(1)
        assert (asked.unasked, asked.sick) == ("", None)


def test_a_helper_that_dies_answers_for_the_card_it_was_asked_about(
    fake_driver: FakeDriver, looking: Looking, gpu: Gpu
) -> None:
    fake_driver.card(0, crash="memory")
    looking.look(gpu)
    (look,) = looking.readings(1)
    assert "died (by signal 6)" in str(look.sick)
    fake_driver.card(0, crash=None)
    looking.look(gpu)
    assert looking.readings(1)[0].sick is None


def test_a_helper_that_somebody_kills_says_nothing_about_the_card(
    fake_driver: FakeDriver, looking: Looking, gpu: Gpu
) -> None:
    fake_driver.card(0, hang="memory")
    looking.look(gpu)
    assert looking.client.pid is not None
    os.kill(looking.client.pid, signal.SIGKILL)
    (look,) = looking.readings(1)
    assert look.sick is None
    assert isinstance(is_free(look, share_busy=True), Occupied)
    assert not drained(look, look)
    fake_driver.card(0, hang=None)
    looking.look(gpu)
    assert is_free(looking.readings(1)[0]) is None


def test_without_descriptors_a_card_is_neither_sick_nor_free_and_is_asked_about_later(
    fake_driver: FakeDriver, gpu: Gpu
) -> None:
    with Looking(fake_driver.environ) as looking:
        with descriptors_left(1):
            looking.look(gpu)
            (late,) = looking.readings(1)
        assert (late.uuid, late.sick) == (gpu.uuid, None)
        assert "Too many open files" in late.unasked
        assert isinstance(is_free(late), Occupied)
        looking.look(gpu)
        assert is_free(looking.readings(1)[0]) is None


def test_without_descriptors_a_blocking_look_answers_all_the_same(
    fake_driver: FakeDriver, gpu: Gpu
) -> None:
    with ProbeClient(fake_driver.environ) as client:
        with descriptors_left(0):
            seen = looks(client, [gpu])
            machine = find(fake_driver.environ, client=client)
        assert seen[gpu.uuid].unasked
        assert "cannot be asked now" in str(machine.faults[0])
        before = sorted(os.listdir("/proc/self/fd"))
        with descriptors_left(2):
            assert looks(client, [gpu])[gpu.uuid].unasked
        assert sorted(os.listdir("/proc/self/fd")) == before


def test_an_idle_helper_that_is_killed_is_replaced(
    fake_driver: FakeDriver, looking: Looking, gpu: Gpu
) -> None:
    looking.look(gpu)
    looking.readings(1)
    assert looking.client.pid is not None
    os.kill(looking.client.pid, 9)
    while looking.client.pid is not None:
        looking.loop.turn()
    looking.look(gpu)
    assert looking.readings(1)[0].sick is None


def test_closing_leaves_no_process_and_no_descriptor(fake_driver: FakeDriver) -> None:
    fake_driver.card(0, hang="open")
    before = os.listdir("/proc/self/fd")
    client = ProbeClient(fake_driver.environ)
    client.ask({"ask": "card", "index": 0}, print)
    pid = client.pid
    client.close()
    client.close()
    assert os.listdir("/proc/self/fd") == before
    assert not os.path.exists(f"/proc/{pid}")


def test_a_helper_stuck_in_the_driver_does_not_outlive_a_killed_client(
    fake_driver: FakeDriver,
) -> None:
    fake_driver.card(0, hang="open")
    code = """
import os
from gpulaunch.gpus.discover import ProbeClient
client = ProbeClient(os.environ)
client.run([{"ask": "machine"}])
client.ask({"ask": "card", "index": 0}, print)
print(client.pid, flush=True)
input()
"""
    with subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=Path(__file__).parents[2],
        env=fake_driver.environ,
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as owner:
        assert owner.stdout is not None
        helper = int(owner.stdout.readline())
        assert os.path.exists(f"/proc/{helper}")
        owner.kill()
    wait_until(lambda: state(helper) in ("", "Z"))


def state(pid: int) -> str:
    from gpulaunch.agent.proc import state_of

    return state_of(pid)


def test_the_helper_imports_nothing_from_the_working_directory(
    fake_driver: FakeDriver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_driver.card(0)
    for module in ("random", "socket", "pynvml", "ctypes"):
        (tmp_path / f"{module}.py").write_text("raise SystemExit('the user\\'s own file')\n")
    monkeypatch.setattr(sys, "path", [str(Path(__file__).parents[2]), *filter(None, sys.path)])
    monkeypatch.chdir(tmp_path)
    assert indices(find(fake_driver.environ)) == [0]


def test_the_mask_does_not_hide_cards_from_the_launcher_itself(fake_driver: FakeDriver) -> None:
    for n in range(2):
        fake_driver.card(n)
    assert indices(find(fake_driver.environ | {"CUDA_VISIBLE_DEVICES": ""})) == [0, 1]


def test_in_another_pid_namespace_only_a_process_seen_on_a_card_is_named(tmp_path: Path) -> None:
    (tmp_path / "self/ns").mkdir(parents=True)
    (tmp_path / "self/ns/pid").symlink_to("pid:[4026539999]")
    for pid, file in ((10, "/dev/nvidia0"), (11, "/dev/null")):
        (tmp_path / f"{pid}/fd").mkdir(parents=True)
        (tmp_path / f"{pid}/fd/3").symlink_to(file)
    proc = str(tmp_path)
    assert [is_the_same_here(pid, proc) for pid in (10, 11, 12)] == [True, False, False]
    (tmp_path / "self/ns/pid").unlink()
    (tmp_path / "self/ns/pid").symlink_to("pid:[4026531836]")
    assert is_the_same_here(11, proc)
