"""A pretend driver: the tests' `libnvidia-ml.so.1`, its state, and the environment that finds it.

    driver = FakeDriver(tmp_path)
    driver.card(0)
    driver.card(1, name="NVIDIA L40S", used=3 * GIB)
    driver.process(1, pid=os.getpid(), memory=3 * GIB)
    driver.card(2, drain=0.5)
    (driver.held / f"2.{pid}").write_text(str(GIB))  # as long as it lives, and half a second
    find(driver.environ)

Every change is there at the next call into the library, atomically.
"""

from __future__ import annotations

import atexit
import os
import shutil
import subprocess
import tempfile
import uuid
from functools import lru_cache
from pathlib import Path

import pytest

SOURCE = Path(__file__).with_name("fake_nvml.c")
GIB = 2**30
MIB = 2**20
TAKES = f'echo {GIB} > "$FAKE_NVML_STATE.held/$GPULAUNCH_GPU_INDEX.$$"'
"""A job's line, by which its shell has memory on the job's card for as long as it lives."""


class FakeDriver:
    """`old`: without the symbols that drivers before R510 lack. Names take spaces."""

    def __init__(self, directory: Path, old: bool = False) -> None:
        self.library = build(old)
        self.state = directory / "nvml-state"
        self.sysfs = directory / "sys"
        self.held = directory / "nvml-state.held"
        self.held.mkdir(exist_ok=True)
        self._driver: dict[str, object] = {"version": "550.54.15", "cuda": 12040}
        self._parts: dict[str, dict[str, object]] = {}
        self._processes: list[tuple[str, dict[str, object]]] = []
        self._events: list[tuple[str, dict[str, object]]] = []
        self._write()

    @property
    def environ(self) -> dict[str, str]:
        """This process's environment, with the pretend library and without any mask."""
        inherited = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("CUDA_", "SLURM_", "NVIDIA_", "GPULAUNCH_"))
        }
        return inherited | {
            "LD_LIBRARY_PATH": str(self.library),
            "FAKE_NVML_STATE": str(self.state),
            "GPULAUNCH_SYSFS": str(self.sysfs),
        }

    def driver(self, **values: object) -> None:
        """`version`, `cuda`, and `error_init=9` (the code that a call returns), `hang="init"`.

        Such calls are `init`, `version`, `count`, `event_set` and `wait`.
        """
        self._driver |= values
        self._write()

    def card(self, index: int, **values: object) -> str:
        """Add or change a card; None takes a field away. Returns its UUID.

        `uuid name bus minor total used reserved compute_mode persistence mig_mode recovery ecc
        retiring remap_pending remap_failed utilization bandwidth temperature power power_limit
        energy throttled events capability affinity links driver_model` (0: Windows', as under WSL),
        and `error_CALL=code`, `hang=CALL`, `crash=CALL`; CALL is a field, `open`, `memory`,
        `processes`, `work` or `register`. `energy` is in millijoules; usual cards have no such
        counter. `drain`: seconds within which memory in `held` comes back. `events` has the bits of
        what the card can announce, `registers` of what the driver then takes. `affinity` has bits
        of CPUs; `links` the far end of each NVLink, comma-separated: a bus id, `switch` or `down`.
        """
        card = self._parts.setdefault(f"card.{index}", usual(index))
        card |= values
        self._write()
        return str(card["uuid"])

    def near(self, index: int, numa: int, cpus: str) -> None:
        """The kernel tells of a card's NUMA node and CPUs (`0-3,8`)."""
        bus = str(self._parts[f"card.{index}"]["bus"])
        self._tell(f"bus/pci/devices/{bus[-12:].lower()}/numa_node", str(numa))
        self._tell(f"bus/pci/devices/{bus[-12:].lower()}/local_cpulist", cpus)

    def nodes(self, with_cpus: str) -> None:
        """The kernel tells which NUMA nodes have CPUs (`0-1`)."""
        self._tell("devices/system/node/has_cpu", with_cpus)

    def cores(self, *threads: str) -> None:
        """The kernel tells which CPUs are threads of one core: `0,2`, `1,3`."""
        for together in threads:
            for cpu in together.split(","):
                path = f"devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"
                self._tell(path, together)

    def _tell(self, path: str, line: str) -> None:
        file = self.sysfs / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(line + "\n")

    def swap(self, one: int, other: int) -> None:
        """Two cards change their places in NVML's order, as when another left the bus."""
        first, second = f"card.{one}", f"card.{other}"
        parts = self._parts
        parts[first], parts[second] = parts[second], parts[first]
        self._write()

    def mig(self, index: int, instance: int, **values: object) -> str:
        """Add or change a MIG instance, and switch the card to MIG. Returns its UUID."""
        self.card(index, mig_mode=1)
        part = self._parts.setdefault(
            f"mig.{index}.{instance}",
            {
                "uuid": f"MIG-{index:08d}-{instance:04d}-5000-8000-000000000000",
                "name": "NVIDIA A100-SXM4-80GB MIG 1g.10gb",
                "total": 10 * GIB,
                "used": 12 * MIB,
                "gi": instance + 1,
                "ci": 0,
            },
        )
        part |= values
        self._write()
        return str(part["uuid"])

    def process(
        self,
        card: int | str,
        pid: int,
        memory: int | None = None,
        kind: str = "C",
        **work: int,
    ) -> None:
        """A process on a card (or "0.1", an instance): kind C computes, G draws, M is MPS's.

        `C+G` does both: the driver lists it among the ones and the others. `work`: what it does
        there, in per cent: `sm mem enc dec`.
        """
        told = -1 if memory is None else memory
        for each in kind.split("+"):
            what: dict[str, object] = {"kind": each, "pid": pid, "memory": told, **work}
            self._processes.append((f"process.{card}", what))
        self._write()

    def wsl(self, index: int, used: int) -> str:
        """Add or change a card that Windows draws on: no process is named, no number is told."""
        return self.card(index, used=used, driver_model=0, minor=None, utilization=None)

    def hold(self, memory: dict[int, list[tuple[int, int]]]) -> None:
        """On these cards there are these processes (PID, bytes) alone, and their memory is used."""
        parts = {f"process.{index}" for index in memory}
        self._processes = [one for one in self._processes if one[0] not in parts]
        for index, there in memory.items():
            self._parts[f"card.{index}"]["used"] = sum(took for _, took in there)
            for pid, took in there:
                what: dict[str, object] = {"kind": "C", "pid": pid, "memory": took}
                self._processes.append((f"process.{index}", what))
        self._write()

    def no_processes(self) -> None:
        self._processes.clear()
        self._write()

    def event(self, card: int, data: int, kind: int = 8, **place: int) -> None:
        """The driver announces something of a card: an Xid, or another `kind` (a bit of nvml.h's).

        `gi` and `ci`: the instances it concerns; all where they are left out.
        """
        what: dict[str, object] = {"card": card, "type": kind, "data": data, **place}
        self._events.append(("event", what))
        self._write()

    def _write(self) -> None:
        things = [("driver", self._driver), *self._parts.items(), *self._processes]
        things += self._events
        fresh = self.state.with_suffix(".new")
        fresh.write_text("".join(spelt(what, values) for what, values in things))
        fresh.replace(self.state)


def own_leases(driver: FakeDriver) -> dict[str, str]:
    """The driver's environment, where its cards' leases are nobody else's.

    Other tests at the same time may have cards of the same PCI ids, and a lease is the machine's.
    """
    return driver.environ | {"GPULAUNCH_LEASED": f"test/{uuid.uuid4().hex[:12]}"}


def usual(index: int) -> dict[str, object]:
    return {
        "uuid": f"GPU-{index:08x}-1111-2222-3333-444444444444",
        "name": "NVIDIA A100-SXM4-80GB",
        "bus": f"00000000:{index + 1:02X}:00.0",
        "minor": index,
        "total": 80 * GIB,
        "used": 4 * MIB,
        "reserved": 500 * MIB,
        "compute_mode": 0,
        "persistence": 1,
        "mig_mode": 0,
        "recovery": 0,
        "ecc": 0,
        "retiring": 0,
        "remap_pending": 0,
        "remap_failed": 0,
        "utilization": 0,
        "temperature": 30,
        "power": 60_000,
        "power_limit": 400_000,
        "throttled": 1,
        "events": 0xC00F,
        "capability": "8.0",
    }


def spelt(what: str, values: dict[str, object]) -> str:
    words = [
        f"{key.replace('error_', 'error.')}={str(value).replace(' ', '_')}"
        for key, value in values.items()
        if value is not None
    ]
    return " ".join([what, *words]) + "\n"


@lru_cache
def build(old: bool = False) -> Path:
    """The directory of the compiled library; once per test process."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler (cc) to build the pretend driver with")
    directory = Path(tempfile.mkdtemp(prefix="gpulaunch-fake-nvml-"))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    library = directory / "libnvidia-ml.so.1"
    flags = ["-shared", "-fPIC", "-O1", "-Wall", "-Wno-builtin-declaration-mismatch"]
    soname = "-Wl,-soname,libnvidia-ml.so.1"
    subprocess.run(
        [compiler, *flags, soname, *(["-DOLD"] if old else []), "-o", library, SOURCE], check=True
    )
    return directory
