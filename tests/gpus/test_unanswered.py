"""Each question that the driver is asked, without an answer: what becomes of the card and its jobs.

Drivers of GB10, Jetson and WSL, and those in some containers, say "Not Supported" to many of these.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import gpulaunch.gpus
from gpulaunch.base.cgroups import memory_of_machine, of_meminfo
from gpulaunch.core.model import Gpu
from gpulaunch.gpus.discover import ProbeClient, find, looks
from gpulaunch.gpus.doctor import examine
from gpulaunch.gpus.inventory import inventory
from gpulaunch.gpus.machine import drained, is_free, memory_free, not_drained
from gpulaunch.gpus.mask import visible
from gpulaunch.gpus.xid import hearing
from gpulaunch.observe.sampler.driver import CardSampler
from tests.cli.launcher import Launcher
from tests.gpus.fake import GIB, FakeDriver

NOT_SUPPORTED, NO_PERMISSION, NO_FUNCTION, LOST, UNKNOWN = 3, 4, 13, 15, 999
UNANSWERED = (NOT_SUPPORTED, NO_PERMISSION, NO_FUNCTION, UNKNOWN)

QUESTIONS = {
    "nvmlDeviceGetUUID": "uuid",
    "nvmlDeviceGetName": "name",
    "nvmlDeviceGetMemoryInfo": "memory",
    "nvmlDeviceGetPciInfo": "bus",
    "nvmlDeviceGetMinorNumber": "minor",
    "nvmlDeviceGetCudaComputeCapability": "capability",
    "nvmlDeviceGetCpuAffinity": "affinity",
    "nvmlDeviceGetNvLinkState": "links",
    "nvmlDeviceGetNvLinkRemoteDeviceType": "links",
    "nvmlDeviceGetNvLinkRemotePciInfo": "links",
    "nvmlDeviceGetComputeMode": "compute_mode",
    "nvmlDeviceGetPersistenceMode": "persistence",
    "nvmlDeviceGetMigMode": "mig_mode",
    "nvmlDeviceGetFieldValues": "recovery",
    "nvmlDeviceGetRemappedRows": "remap_pending",
    "nvmlDeviceGetRetiredPagesPendingStatus": "retiring",
    "nvmlDeviceGetTotalEccErrors": "ecc",
    "nvmlDeviceGetUtilizationRates": "utilization",
    "nvmlDeviceGetTemperature": "temperature",
    "nvmlDeviceGetPowerUsage": "power",
    "nvmlDeviceGetTotalEnergyConsumption": "energy",
    "nvmlDeviceGetProcessUtilization": "work",
    "nvmlDeviceGetCurrentClocksEventReasons": "throttled",
    "nvmlDeviceGetCurrentClocksThrottleReasons": "throttled",
    "nvmlDeviceGetCurrentDriverModel": "driver_model",
    "nvmlDeviceGetRunningProcesses": "processes",
    "nvmlDeviceGetSupportedEventTypes": "events",
    "nvmlDeviceRegisterEvents": "register",
}
"""What is asked about a card, by the name under which the pretend driver fails to answer it."""
OF_THE_DRIVER = {
    "nvmlSystemGetDriverVersion": "version",
    "nvmlSystemGetCudaDriverVersion": "cuda",
    "nvmlSystemGetCudaDriverVersion_v2": "cuda",
    "nvmlDeviceGetCount": "count",
    "nvmlEventSetCreate": "event_set",
    "nvmlEventSetWait_v2": "wait",
}
BEFORE_ANY = {"nvmlInit", "nvmlDeviceGetHandleByIndex", "nvmlDeviceGetHandleByUUID"}
OF_INSTANCES = {
    "nvmlDeviceGetMaxMigDeviceCount",
    "nvmlDeviceGetMigDeviceHandleByIndex",
    "nvmlDeviceGetDeviceHandleFromMigDeviceHandle",
    "nvmlDeviceGetGpuInstanceId",
    "nvmlDeviceGetComputeInstanceId",
}


def test_every_question_that_is_asked_is_tried_here() -> None:
    folder = Path(gpulaunch.gpus.__file__).parent
    asked = {
        name
        for file in folder.glob("*.py")
        for name in re.findall(r"nvml\.(nvml[A-Z]\w*)", file.read_text())
        if name != "nvmlMemory_v2"  # a version, and no question
    }
    tried = QUESTIONS.keys() | OF_THE_DRIVER.keys() | BEFORE_ANY | OF_INSTANCES
    assert asked == tried - {"nvmlDeviceGetRunningProcesses"}  # whose names are put together


class Bench:
    """A driver with one card, asked by one probe and one sampler."""

    def __init__(self, driver: FakeDriver) -> None:
        self.driver = driver
        driver.card(0)
        self.client = ProbeClient(driver.environ)
        self.sampler = CardSampler(
            [(0, "GPU-00000000-1111-2222-3333-444444444444")], driver.environ
        )

    def works(self) -> Gpu:
        """Check that the card may be used now, has a row, and is sampled; return it."""
        machine = find(self.driver.environ, client=self.client)
        assert machine.faults == ()
        (gpu,) = machine.gpus
        look = looks(self.client, [gpu])[gpu.uuid]
        assert (look.sick, look.unasked, is_free(look)) == (None, "", None)
        assert drained(look, look)
        (row,) = inventory(machine, self.client)
        assert (row["health"], row["state"]) == ("ok", None)
        assert visible([gpu], "index")["CUDA_VISIBLE_DEVICES"] == "0"
        seen = self.sampler.look(1e9, 1000.0, whole=True)
        assert len(seen.cards) == 1
        return gpu


@pytest.fixture
def bench(fake_driver: FakeDriver) -> Iterator[Bench]:
    bench = Bench(fake_driver)
    yield bench
    bench.client.close()
    bench.sampler.close()


@pytest.mark.parametrize("question", sorted(set(QUESTIONS.values())))
def test_a_question_without_an_answer_leaves_the_card_in_use(bench: Bench, question: str) -> None:
    for code in UNANSWERED:
        bench.driver.card(0, **{f"error_{question}": code})
        bench.works()


@pytest.mark.parametrize("question", ["version", "cuda", "count"])
def test_a_question_about_the_driver_without_an_answer_leaves_the_card_in_use(
    bench: Bench, question: str
) -> None:
    for code in UNANSWERED:
        bench.driver.driver(**{f"error_{question}": code})
        bench.works()


@pytest.mark.parametrize("question", ["events", "register", "event_set"])
def test_without_health_events_the_card_is_in_use(fake_driver: FakeDriver, question: str) -> None:
    uuid = fake_driver.card(0)
    for code in (NOT_SUPPORTED, NO_PERMISSION, NO_FUNCTION):
        if question in OF_THE_DRIVER.values():
            fake_driver.driver(**{f"error_{question}": code})
        else:
            fake_driver.card(0, **{f"error_{question}": code})
        gpus = find(fake_driver.environ).gpus
        assert [gpu.uuid for gpu in gpus] == [uuid]
        assert isinstance(hearing(gpus, fake_driver.environ)[uuid], str)  # why none are announced


@pytest.mark.parametrize(
    "question",
    sorted(set(QUESTIONS.values()) - {"affinity", "driver_model", "events", "register"}),
)
def test_a_card_that_is_lost_is_not_used_at_whatever_question_it_shows(
    bench: Bench, question: str
) -> None:
    bench.driver.card(0, **{f"error_{question}": LOST})
    machine = find(bench.driver.environ, client=bench.client)
    seen = looks(bench.client, machine.gpus)
    told = [look.sick for look in seen.values()] + [fault.advised for fault in machine.faults]
    asked_only_by_the_sampler = question in ("energy", "work", "throttled")
    assert asked_only_by_the_sampler or any(words and "GPU is lost" in words for words in told)
    bench.sampler.look(1e9, 1000.0, whole=True)


@pytest.mark.parametrize(
    ("code", "words"),
    [(NO_PERMISSION, "may this user open the card?"), (LOST, "fell off the bus"), (3, "Not ")],
)
def test_a_card_that_does_not_open_says_what_to_do(
    fake_driver: FakeDriver, code: int, words: str
) -> None:
    fake_driver.card(0, error_open=code)
    machine = find(fake_driver.environ)
    assert machine.gpus == ()
    assert words in machine.faults[0].advised


def test_without_an_index_or_a_uuid_that_counts_a_card_cannot_be_masked(
    fake_driver: FakeDriver,
) -> None:
    fake_driver.card(0, error_open=NO_PERMISSION)
    fake_driver.card(1, error_uuid=NOT_SUPPORTED)
    fake_driver.card(2)
    machine = find(fake_driver.environ)
    assert [gpu.index for gpu in machine.gpus] == [2]
    assert "neither its UUID" in machine.faults[1].what


def test_a_card_without_a_uuid_is_known_by_its_place_and_another_is_not_taken_for_it(
    bench: Bench,
) -> None:
    bench.driver.card(0, error_uuid=NOT_SUPPORTED)
    gpu = bench.works()
    assert (gpu.uuid, gpu.key) == ("PCI-0000:01:00.0", "0000:01:00.0")
    assert visible([gpu], "uuid") == {
        "CUDA_VISIBLE_DEVICES": "0",
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
    }
    bench.driver.card(0, bus="00000000:09:00.0")
    assert "another card" in (looks(bench.client, [gpu])[gpu.uuid].sick or "")


def test_processes_that_are_not_listed_leave_who_is_there_to_the_memory(bench: Bench) -> None:
    bench.driver.card(0, error_processes=NOT_SUPPORTED)
    gpu = bench.works()
    before = looks(bench.client, [gpu])[gpu.uuid]
    bench.driver.card(0, used=9 * GIB)
    look = looks(bench.client, [gpu])[gpu.uuid]
    busy = is_free(look)
    assert "9 GiB are in use there, and the driver does not say by whom (Not " in str(busy)
    assert not drained(before, look)
    assert "does not say by whom" in str(not_drained(look, 30.0))  # and is not unfit


# ── Unified memory ──────────────────────────────────────────────────────────────────────────────


def test_a_card_without_memory_of_its_own_has_the_hosts(bench: Bench) -> None:
    bench.driver.card(0, name="NVIDIA GB10", error_memory=NOT_SUPPORTED)
    gpu = bench.works()
    assert (gpu.unified, gpu.memory) == (True, memory_of_machine())
    look = looks(bench.client, [gpu])[gpu.uuid]
    assert 0 < memory_free(gpu, look) < gpu.memory
    assert (look.unified, look.used) == (True, 0)


@pytest.mark.parametrize("total", [0, of_meminfo("MemTotal")])
def test_a_driver_that_tells_the_hosts_memory_as_the_cards_is_not_believed(
    bench: Bench, total: int
) -> None:
    bench.driver.card(0, total=total, used=(total or 0) // 2, reserved=0)
    assert bench.works().unified


@pytest.mark.parametrize("code", [NO_PERMISSION, NO_FUNCTION, UNKNOWN])
def test_only_not_supported_means_that_the_memory_is_unified(bench: Bench, code: int) -> None:
    bench.driver.card(0, error_memory=code)
    gpu = bench.works()
    assert (gpu.unified, gpu.memory) == (False, 0)


def test_an_instance_has_no_unified_memory(fake_driver: FakeDriver) -> None:
    fake_driver.mig(0, 0, error_memory=NOT_SUPPORTED)
    (gpu,) = find(fake_driver.environ).gpus
    assert (gpu.mig, gpu.unified, gpu.memory) == (True, False, 0)


def test_on_unified_memory_the_processes_alone_say_whether_the_card_is_busy(bench: Bench) -> None:
    bench.driver.card(0, error_memory=NOT_SUPPORTED)
    gpu = bench.works()
    before = looks(bench.client, [gpu])[gpu.uuid]
    bench.driver.process(0, 4_194_303, memory=3 * GIB)  # one that has ended, and is listed still
    look = looks(bench.client, [gpu])[gpu.uuid]
    assert look.used == 3 * GIB
    assert "pid 4194303, 3 GiB" in str(is_free(look))
    assert not drained(before, look)
    assert bench.sampler.look(1e9, 1000.0, whole=True).cards[gpu.uuid].memory == 3 * GIB
    bench.driver.no_processes()
    bench.works()


def test_what_a_process_takes_of_unified_memory_may_be_unknown(bench: Bench) -> None:
    bench.driver.card(0, error_memory=NOT_SUPPORTED)
    gpu = bench.works()
    before = looks(bench.client, [gpu])[gpu.uuid]
    bench.driver.process(0, 4_194_303)
    look = looks(bench.client, [gpu])[gpu.uuid]
    assert look.used is None
    assert not drained(before, look)
    assert bench.sampler.look(1e9, 1000.0, whole=True).cards[gpu.uuid].memory is None


def test_the_doctor_says_what_unified_memory_means(fake_driver: FakeDriver) -> None:
    fake_driver.card(0, error_memory=NOT_SUPPORTED)
    fake_driver.card(1, error_memory=UNKNOWN, error_processes=NOT_SUPPORTED)
    told = [finding.what for finding in examine(fake_driver.environ)]
    assert any("GPU 0 (NVIDIA A100-SXM4-80GB) has unified memory" in what for what in told)
    assert any("GPU 1" in what and "does not tell the size" in what for what in told)
    assert any("GPU 1" in what and "does not list its processes: Not" in what for what in told)


# ── Whole runs ──────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("code", UNANSWERED)
def test_a_run_where_the_driver_answers_next_to_nothing(
    on_cards: Launcher, driver: FakeDriver, code: int
) -> None:
    """All questions of a card at once, but that for its UUID, by which tests have it alone."""
    driver.card(0, **{f"error_{name}": code for name in {*QUESTIONS.values()} - {"uuid"}})
    driver.driver(**{f"error_{name}": code for name in {*OF_THE_DRIVER.values()}})
    on_cards.file("jobs.yaml", "jobs: [{name: a, run: echo ran on $CUDA_VISIBLE_DEVICES}]\n")
    result = on_cards("run", "jobs.yaml", "--wait", "10s")
    assert result.status == 0, result.err
    assert on_cards.log("a") == "ran on 0\n"
    (row,) = json.loads(on_cards("gpus", "--json").out)["gpus"]
    assert (row["health"], row["unified"]) == ("ok", code == NOT_SUPPORTED)


def test_a_run_on_unified_memory(on_cards: Launcher, driver: FakeDriver) -> None:
    driver.card(0, name="NVIDIA GB10", error_memory=NOT_SUPPORTED)
    half = (memory_of_machine() or 0) * 6 // 10
    on_cards.file(
        "jobs.yaml",
        f"""\
        jobs:
          - {{name: plain, gpus: 0, memory: {half}B, run: 'until [ -e go ]; do sleep 0.02; done'}}
          - {{name: card, gpu_memory: 1MB, run: touch go}}
        """,
    )
    assert "GPU 0 has unified memory" in on_cards("check", "jobs.yaml").err
    result = on_cards("run", "jobs.yaml", "--wait", "10s")
    assert result.status == 0, result.err
    assert on_cards.status()["gpus"][0]["unified"]
    assert "unified memory: it uses the host's, of which" in on_cards("gpus").out
    on_cards.file("both.yaml", f"jobs: [{{name: a, gpu_memory: {half}B, memory: {half}B, run: x}}]")
    assert (
        "with its gpu_memory (the card's memory is the host's)"
        in on_cards("check", "both.yaml").err
    )
