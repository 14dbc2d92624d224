"""What strict isolation means for one attempt: its mask, and what the keeper is told to hide."""

from __future__ import annotations

import os

import pytest
from msgspec.structs import replace

from gpulaunch.core.model import Container, Gpu, Job
from gpulaunch.engines import isolation
from gpulaunch.engines.environment import AttemptPlace
from gpulaunch.gpus.device_files import Nodes, NodesError
from gpulaunch.gpus.discover import simulated

ENV = Job("a", "true")
STRICT = replace(ENV, isolation="strict")
CONTAINED = replace(STRICT, container=Container("lab/tool"))
CARD = Gpu("GPU-1", 1, "0000:02:00.0", "NVIDIA H100", 80 << 30, minor=77)


def test_a_strict_jobs_mask_counts_its_own_cards_unless_it_wants_uuids() -> None:
    for style in ("index", "uuid"):  # the latter: some card of the machine does not open
        place = AttemptPlace((CARD,), style, "run/1", 1)
        assert isolation.placed(STRICT, place) == replace(place, style="own")
        assert isolation.placed(ENV, place) is place
        assert isolation.placed(replace(STRICT, visible="uuid"), place) is place


def test_only_a_strict_job_has_something_hidden() -> None:
    assert isolation.hidden(ENV, [CARD]) is None
    assert isolation.hidden(STRICT, simulated(1, "run")) is not None
    assert isolation.hidden(STRICT, ()) is not None


def test_in_a_container_the_engine_hides_and_gpulaunch_does_not() -> None:
    place = AttemptPlace((CARD,), "index", "run/1", 1)
    assert [isolation.hides(job) for job in (ENV, STRICT, CONTAINED)] == [False, True, False]
    assert isolation.hidden(CONTAINED, [CARD]) is None, "the card's own node is not here"
    assert isolation.placed(CONTAINED, place) is place


def test_a_card_without_a_node_of_its_own_is_refused_early_and_late() -> None:
    with pytest.raises(NodesError, match=r"GPU 1 \(GPU-1\): /dev/nvidia77 does not exist"):
        isolation.hidden(STRICT, [CARD])
    assert "strict isolation" in str(isolation.refusal([CARD]))


def test_root_is_refused_an_instance_since_the_driver_opens_all_to_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    paths = {"/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia0"}
    parts = {f"/dev/nvidia-caps/nvidia-cap{n}": (0, 1, None if n == 3 else 0) for n in (3, 4)}
    nodes = Nodes(frozenset(paths | parts.keys()), parts=parts)
    instance = Gpu("MIG-1", 0, "MIG-1", "MIG", 1, minor=0, mig=True, part=(1, 0))
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert isolation.why_not([instance], nodes) is None
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert "every MIG instance" in str(isolation.why_not([instance], nodes))
