"""Which device nodes are other cards', on machines of folders and files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace

from gpulaunch.core.model import Gpu
from gpulaunch.gpus.device_files import Nodes, NodesError, hidden_from, look, why_not
from gpulaunch.gpus.discover import find, simulated
from tests.gpus.fake import FakeDriver

SHARED = ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset", "nvidia-nvswitchctl")


def bus(n: int) -> str:
    return f"0000:{n + 1:02x}:00.0"


def card(n: int, minor: int | None = None) -> Gpu:
    """Card n of the machine; its minor is counted from the other end, as it may be."""
    minor = 3 - n if minor is None else minor
    return Gpu(f"GPU-{n}", n, bus(n), "NVIDIA H100", 80 << 30, minor=minor)


def instance(gi: int, ci: int = 0) -> Gpu:
    """An instance of the card of minor 3."""
    uuid = f"MIG-{gi}-{ci}"
    return Gpu(uuid, 0, uuid, "MIG 1g.10gb", 10 << 30, minor=3, mig=True, part=(gi, ci))


def write(path: Path, text: str = "") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """Four cards, a console's graphics chip, and the first card's MIG instances 1 and 2."""
    for name in (*SHARED, "null", "tty1", "nvidia-caps/nvidia-cap1", "nvidia-caps/nvidia-cap2"):
        write(tmp_path / "dev" / name)
    for n in range(4):
        write(tmp_path / "dev" / f"nvidia{3 - n}")
        information = (
            f"Model: \t\t NVIDIA H100\nBus Location: \t {bus(n)}\nDevice Minor: \t {3 - n}\n"
        )
        write(tmp_path / "proc/driver/nvidia/gpus" / bus(n) / "information", information)
        drm(tmp_path, n + 1, bus(n), "0x10de")
    drm(tmp_path, 0, "0000:c0:00.0", "0x1a03")
    minors = "config 1\nmonitor 2\n"
    for gi in (1, 2):
        minors += f"gpu3/gi{gi}/access {10 * gi}\ngpu3/gi{gi}/ci0/access {10 * gi + 1}\n"
        minors += f"gpu3/gi{gi}/ci1/access {10 * gi + 2}\n"
        for cap in (10 * gi, 10 * gi + 1, 10 * gi + 2):
            write(tmp_path / f"dev/nvidia-caps/nvidia-cap{cap}")
    write(tmp_path / "proc/driver/nvidia-caps/mig-minors", minors)
    return tmp_path


def drm(root: Path, n: int, where: str, vendor: str) -> None:
    device = root / "sys/devices/pci0000:00" / where
    write(device / "vendor", vendor + "\n")
    for name in (f"card{n}", f"renderD{128 + n}"):
        (root / "sys/class/drm" / name).mkdir(parents=True)
        (root / "sys/class/drm" / name / "device").symlink_to(device)
        write(root / "dev/dri" / name)
    (root / "sys/class/drm" / f"card{n}-DP-1").mkdir()
    write(root / f"dev/dri/by-path/pci-{where}-card")
    write(root / f"dev/dri/by-path/pci-{where}-render")


def hidden(machine: Path, gpus: Sequence[Gpu]) -> set[str]:
    return {path.removeprefix("/dev/") for path in hidden_from(gpus, look(str(machine)))}


def drawing(n: int) -> set[str]:
    paths = {f"pci-{bus(n)}-card", f"pci-{bus(n)}-render"}
    return {f"dri/card{n + 1}", f"dri/renderD{n + 129}", *(f"dri/by-path/{p}" for p in paths)}


CAPS = {f"nvidia-caps/nvidia-cap{n}" for n in (10, 11, 12, 20, 21, 22)}


def test_of_one_card_the_others_are_hidden_and_nothing_else(machine: Path) -> None:
    others = {"nvidia0", "nvidia2", "nvidia3"} | drawing(0) | drawing(1) | drawing(3)
    assert hidden(machine, [card(2)]) == others | CAPS


def test_several_cards_stay(machine: Path) -> None:
    others = {"nvidia0", "nvidia2"} | drawing(1) | drawing(3)
    assert hidden(machine, [card(0), card(2)]) == others | CAPS


def test_all_cards_hide_none(machine: Path) -> None:
    assert hidden(machine, [card(n) for n in range(4)]) == CAPS


@pytest.mark.parametrize("gpus", [(), simulated(2, "run")])
def test_of_no_card_and_of_pretend_ones_every_card_is_hidden(
    machine: Path, gpus: tuple[Gpu, ...]
) -> None:
    every = {f"nvidia{n}" for n in range(4)}.union(*map(drawing, range(4)))
    assert hidden(machine, gpus) == every | CAPS


def test_an_instance_keeps_its_cards_node_and_its_own_capabilities(machine: Path) -> None:
    others = {"nvidia0", "nvidia1", "nvidia2"} | drawing(1) | drawing(2) | drawing(3)
    assert hidden(machine, [instance(1)]) == others | CAPS - {
        "nvidia-caps/nvidia-cap10", "nvidia-caps/nvidia-cap11",
    }  # fmt: skip
    assert "nvidia-caps/nvidia-cap21" in hidden(machine, [instance(2, 1)])
    assert "nvidia-caps/nvidia-cap22" not in hidden(machine, [instance(2, 1)])


def test_the_driver_tells_which_instance_it_is(fake_driver: FakeDriver) -> None:
    fake_driver.card(0, minor=3)
    fake_driver.mig(0, 4, gi=2, ci=1)
    fake_driver.mig(0, 5, gi=None)
    known, unknown = find(fake_driver.environ).gpus
    assert (known.minor, known.part, unknown.part) == (3, (2, 1), ())


def test_a_card_that_the_driver_does_not_count_is_hidden_as_well(machine: Path) -> None:
    write(machine / "dev/nvidia9")
    assert "nvidia9" in hidden(machine, [card(0)])


def test_a_node_that_is_made_later_is_hidden_beforehand(machine: Path) -> None:
    (machine / "dev/nvidia2").unlink()
    assert "nvidia2" in hidden(machine, [card(0)])


def test_without_the_drivers_list_a_cards_drawing_nodes_are_known_by_its_bus(machine: Path) -> None:
    for n in range(4):
        (machine / "proc/driver/nvidia/gpus" / bus(n) / "information").unlink()
    assert hidden(machine, [card(2)]) & drawing(2) == set()


@pytest.mark.parametrize("name", ["nvidia1", "nvidia-uvm", "nvidiactl"])
def test_a_missing_node_is_said_with_its_mend(machine: Path, name: str) -> None:
    (machine / "dev" / name).unlink()
    with pytest.raises(NodesError, match=rf"GPU 2 .*/dev/{name} does not exist.*nvidia-modprobe"):
        hidden(machine, [card(2)])
    assert hidden(machine, [])


def test_a_card_that_cannot_be_told_apart_is_refused(machine: Path) -> None:
    nodes = look(str(machine))
    unknown = Gpu("GPU-9", 9, bus(9), "NVIDIA H100", 1, minor=None)
    assert "does not say which /dev/nvidiaN" in str(why_not(unknown, nodes))
    unknown = Gpu("MIG-9", 0, "MIG-9", "MIG", 1, minor=3, mig=True)
    assert "does not say which MIG instance" in str(why_not(unknown, nodes))
    assert "below /dev/nvidia-caps does not exist" in str(why_not(instance(7), nodes))
    (machine / "dev/nvidia-caps/nvidia-cap11").unlink()
    assert "nvidia-cap11" in str(why_not(instance(1), look(str(machine))))
    assert why_not(instance(2), look(str(machine))) is None


def test_under_wsl_no_card_can_be_hidden(tmp_path: Path) -> None:
    write(tmp_path / "dev/dxg")
    assert "WSL" in str(why_not(card(0), look(str(tmp_path))))
    unnumbered = replace(card(0), minor=None)  # as the driver has it there
    assert "WSL" in str(why_not(unnumbered, look(str(tmp_path))))


def test_a_machine_without_cards_has_nothing_to_hide(tmp_path: Path) -> None:
    assert look(str(tmp_path)) == Nodes()
    assert hidden_from((), Nodes()) == ()
