"""Five systems' device errors: how each fails, and what becomes of it under gpulaunch.

The whole job file runs when GPULAUNCH_TEST_REAL=1, on four pretend cards; its first job takes the
torch of the other examples, or installs one. The rest needs no torch.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from gpulaunch.core.model import Demand, Job
from gpulaunch.engines.isolation import why_no_isolation
from gpulaunch.jobfile.file_keys import Surroundings
from gpulaunch.jobfile.load import load
from tests.examples.helpers import EXAMPLES, gpulaunch

FOLDER = EXAMPLES / "device-errors"
PROGRAMS = sorted(FOLDER.glob("*.py"))
real = [
    pytest.mark.slow,
    pytest.mark.timeout(1500),
    pytest.mark.skipif(
        os.environ.get("GPULAUNCH_TEST_REAL") != "1", reason="GPULAUNCH_TEST_REAL is not 1"
    ),
]

SAME = "RuntimeError: Expected all tensors to be on the same device, but "
# Each job that is to fail: its class, and the end of its error.
FAILING = {
    "found-chai": ("device_mismatch", SAME + "found at least two devices, cuda:1 and cuda:0!"),
    "found-evo2": ("device_mismatch", SAME + "found at least two devices, cuda:3 and cuda:1!"),
    "found-minicpm": (
        "device_mismatch",
        SAME + "got src is on cuda:3, different from other tensors on cuda:0 "
        "(when checking argument in method wrapper_CUDA_scatter__src)",
    ),
    "found-minicpm-script": (
        "device_mismatch",
        SAME + "got src is on cuda:6, different from other tensors on cuda:0 "
        "(when checking argument in method wrapper_CUDA_scatter__src)",
    ),
    "found-privategpt": (
        "device_mismatch",
        SAME + "got index is on cuda:0, different from other tensors on cuda:3 "
        "(when checking argument in method wrapper_CUDA__index_select)",
    ),
    "found-petals": (
        "device_mismatch",
        SAME + "got tensors is on cuda:0, different from other tensors on cpu "
        "(when checking argument in method wrapper_CUDA_cat)",
    ),
    "explained-chai": ("device_mismatch", "Error: CUDA error: invalid device ordinal"),
    "explained-evo2": ("device_mismatch", "Error: CUDA error: invalid device ordinal"),
    "explained-petals": (
        "device_mismatch",
        SAME + "got tensors is on cuda:0, different from other tensors on cpu "
        "(when checking argument in method wrapper_CUDA_cat)",
    ),
}
COMPUTING = (
    "chai", "mended-chai", "mended-evo2", "minicpm", "privategpt", "mended-petals",
)  # fmt: skip
EXPLAINED = {
    "explained-chai": (
        "  where: chai_exported.py:18, in load",
        "of-cuda-1.pt2 was exported on cuda:1; this job sees one card, cuda:0",
        "    chai_exported.py:18: gpulaunch.torch.load_exported(path, device='cuda:0')",
    ),
    "explained-evo2": (
        "  where: evo2_spread.py:53, in main",
        "      device = cuda:3",
        "    evo2_spread.py:51: device = cuda:3 is none of them",
    ),
    "explained-petals": (
        "  where: petals_cat.py:23, in forward",
        "      past  cpu     (1, 4, 8) float32   <-- odd",
        "    petals_cat.py:33: past is made on the CPU: torch.zeros(1, 4, 8, device='cuda:0')",
    ),
}


def jobs() -> dict[str, Job]:
    return {job.name: job for job in load(FOLDER / "jobs.yaml", Surroundings(os.environ)).jobs}


# ── Without torch ───────────────────────────────────────────────────────────────────────────────


def test_every_job_is_expected_to_fail_or_to_compute() -> None:
    assert jobs().keys() == {"setup", "programs", *FAILING, *COMPUTING}


@pytest.mark.parametrize("name", ["minicpm", "privategpt"])
def test_it_is_the_same_job_but_for_its_cards(name: str) -> None:
    found, here = jobs()[f"found-{name}"], jobs()[name]
    assert (found.demand.gpus, here.demand.gpus) == (4, 1)
    other = {"name": "", "group": 0, "demand": Demand(), "digest": ""}
    assert replace(found, **other) == replace(here, **other)


def test_what_one_card_cannot_mend_is_explained() -> None:
    assert {name for name, job in jobs().items() if job.explain} == EXPLAINED.keys()
    assert EXPLAINED.keys() == {name for name in jobs() if name.startswith("explained-")}


@pytest.mark.parametrize("name", ["evo2", "petals"])
def test_what_is_explained_is_the_program_as_it_was_found(name: str) -> None:
    found, here = jobs()[f"found-{name}"], jobs()[f"explained-{name}"]
    assert (here.run, here.demand.gpus, here.explain) == (found.run, 1, True)


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: path.name)
def test_the_programs_are_short_and_do_not_know_of_pretend_cards(path: Path) -> None:
    text = path.read_text()
    assert len(text.splitlines()) <= 65
    assert "pretend" not in text


def test_the_readme_cites_a_public_thread_for_each_system() -> None:
    text = (FOLDER / "README.md").read_text()
    for thread in (
        "chaidiscovery/chai-lab#63",
        "ArcInstitute/evo2#73",
        "OpenBMB/MiniCPM-V#100",
        "zylon-ai/private-gpt#1390",
        "bigscience-workshop/petals#575",
    ):
        assert thread in text


def test_the_readme_has_the_messages_and_the_reports_word_for_word() -> None:
    text = (FOLDER / "README.md").read_text()
    for name, (_, message) in FAILING.items():
        if name not in ("explained-chai", "explained-evo2", "found-minicpm-script"):
            assert message.removeprefix(SAME) in text
    for lines in EXPLAINED.values():
        assert lines[-1].strip() in text
    literal = line_of("evo2_spread.py", 'default="cuda:3"')
    assert f"`check` points at line {literal}," in text
    mask = line_of("run_eval.sh", "export CUDA_VISIBLE_DEVICES")
    assert f"`check` points at line {mask};" in text


def test_check_points_at_what_one_card_cannot_mend(tmp_path: Path) -> None:
    done = gpulaunch("check", FOLDER / "jobs.yaml", "--simulate", "4", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found = [
        (Path(warning["path"]).name, warning["line"], warning["rule"])
        for warning in json.loads(done.stdout)["warnings"]
    ]
    assert found == [
        ("evo2_spread.py", line_of("evo2_spread.py", 'default="cuda:3"'), "device-index"),
        ("run_eval.sh", line_of("run_eval.sh", "export CUDA_VISIBLE_DEVICES"), "own-mask"),
    ]


def line_of(file: str, text: str) -> int:
    lines = (FOLDER / file).read_text().splitlines()
    (number,) = [number for number, line in enumerate(lines, 1) if text in line]
    return number


# ── With torch, on pretend cards ────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of the run, in which nine jobs are to fail."""
    tmp = tmp_path_factory.mktemp("device-errors")
    done = gpulaunch(
        "run", FOLDER / "jobs.yaml", "--simulate", "4", "--quiet", cwd=tmp, timeout=1400
    )
    assert done.returncode == 1, done.stdout + done.stderr
    return tmp / "gpulaunch-runs/latest"


@pytest.fixture(scope="module")
def told(ended: Path) -> dict[str, Any]:
    done = gpulaunch("status", ended, "--json", cwd=ended)
    assert done.returncode == 0, done.stderr
    return {job["name"]: job for job in json.loads(done.stdout)["jobs"]}


class TestOnPretendCards:
    pytestmark = real

    @pytest.mark.parametrize("name", FAILING)
    def test_it_fails_in_torchs_words_and_its_class_is_known(
        self, name: str, told: dict[str, Any], ended: Path
    ) -> None:
        failure, message = FAILING[name]
        job = told[name]
        assert (job["state"], job["failure"]) == ("failed", failure)
        assert message in job["attempts"][0]["evidence"]
        assert message in (ended / f"logs/{name}.1.log").read_text()

    @pytest.mark.parametrize("name", COMPUTING)
    def test_it_computes_on_the_only_card_it_sees(
        self, name: str, told: dict[str, Any], ended: Path
    ) -> None:
        assert told[name]["state"] == "succeeded"
        assert "\ncomputed on cuda:0: " in (ended / f"logs/{name}.1.log").read_text()

    def test_a_program_computes_the_same_whatever_card_it_was_exported_on(
        self, ended: Path
    ) -> None:
        one, other = (
            (ended / f"logs/{name}.1.log").read_text().splitlines()[-1]
            for name in ("chai", "mended-chai")
        )
        assert one == other

    @pytest.mark.parametrize("name", EXPLAINED)
    def test_the_report_names_the_odd_one_and_the_line_to_change(
        self, name: str, ended: Path
    ) -> None:
        lines = (ended / f"logs/{name}.1.log").read_text().splitlines()
        assert lines[-1] == "gpulaunch explain: end of the report"
        for line in EXPLAINED[name]:
            assert any(told.endswith(line) for told in lines)

    def test_every_log_says_where_cards_are_pretended(
        self, told: dict[str, Any], ended: Path
    ) -> None:
        for name in (*FAILING, *COMPUTING):
            text = (ended / f"logs/{name}.1.log").read_text()
            assert "pretend_cards: no card here, " in text.splitlines()[0]

    def test_strict_isolation_leaves_a_mask_of_ones_own_without_effect(
        self, tmp_path: Path, ended: Path
    ) -> None:
        if why := why_no_isolation():
            pytest.skip(why)
        done = gpulaunch(
            "run", FOLDER / "strict.yaml", "--simulate", "4", "--quiet", cwd=tmp_path, timeout=300
        )
        assert done.returncode == 0, done.stdout + done.stderr
        log = tmp_path / "gpulaunch-runs/latest/logs/minicpm-script.1.log"
        assert "cuda:1" not in log.read_text()
        assert "\ncomputed on cuda:0: " in log.read_text()
