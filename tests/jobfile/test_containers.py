"""`container:` in a job file: its forms, its files, and what of it makes another job."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpulaunch.core.model import Container, ContainerEngine, Mount
from gpulaunch.jobfile.containers import why_not
from tests.jobfile.helpers import job_of, jobs_of, mistakes_of


@pytest.fixture
def here(tmp_path: Path) -> Path:
    for name in ("boltz.sif", "image", "weights/w.bin", "a:b,c/x", "in/a.fasta", "fold.py"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.touch()
    (tmp_path / "sandbox").mkdir()
    return tmp_path


def container_of(fields: str, here: Path, more: str = "") -> Container:
    job = job_of(f"run: x, container: {fields}{more}", here, {"HOME": str(here / "weights")})
    assert job.container is not None
    return job.container


def test_a_name_is_all_that_is_needed(here: Path) -> None:
    assert container_of("vllm/vllm-openai:latest", here) == Container("vllm/vllm-openai:latest")
    assert container_of("docker://boltz", here) == Container("docker://boltz")
    assert container_of("{image: boltz}", here) == Container("boltz")
    assert job_of("run: x").container is None


@pytest.mark.parametrize(
    ("typed", "path"),
    [
        ("boltz.sif", "boltz.sif"),
        ("./image", "image"),
        ("./sandbox/", "sandbox"),
        ("~/w.bin", "weights/w.bin"),
        ("weights/../boltz.sif", "boltz.sif"),
    ],
)
def test_a_file_is_found_beside_the_job_file(here: Path, typed: str, path: str) -> None:
    assert container_of(typed, here) == Container(str(here / path))


def test_a_name_is_a_name_although_a_file_is_called_so(here: Path) -> None:
    assert container_of("image", here) == Container("image")


def test_everything_that_a_container_may_say(here: Path) -> None:
    typed = (
        "{image: a, engine: podman, mounts: [weights, 'weights:/w:ro', 'in:ro', '~:/home/x',"
        " {source: 'a:b,c', target: /colons/, read_only: true}], args: [--ipc=host],"
        " user: 1000:100, pull: always}"
    )
    weights = str(here / "weights")
    assert container_of(typed, here) == Container(
        image="a",
        engine="podman",
        mounts=(
            Mount(weights, weights),
            Mount(weights, "/w", True),
            Mount(str(here / "in"), str(here / "in"), True),
            Mount(weights, "/home/x"),
            Mount(str(here / "a:b,c"), "/colons", True),
        ),
        args=("--ipc=host",),
        user="1000:100",
        pull="always",
    )


def test_the_caller_is_the_user_unless_it_says_otherwise(here: Path) -> None:
    assert container_of("{image: a, user: caller}", here).user == ""
    assert container_of("{image: a, user: image}", here).user == "image"
    assert container_of("{image: a, user: 0}", here).user == "0"


def test_options_may_be_typed_as_a_shell_would_read_them(here: Path) -> None:
    made = container_of("""{image: a, args: "--label 'a b' --shm-size=8g"}""", here)
    assert made.args == ("--label", "a b", "--shm-size=8g")
    letters = container_of("{image: boltz.sif, args: -C -u -e}", here).args
    assert letters == ("-C", "-u", "-e"), "apptainer's own, not docker's"


def test_placeholders_of_items_are_filled_in_every_part(here: Path) -> None:
    typed = (
        "container: {image: '{{k}}.sif', mounts: ['{{dir}}:/{{k}}'], args: ['--label={{k}}'],"
        " user: '{{index}}'}"
    )
    (job,) = jobs_of(
        f"jobs: [{{run: x, foreach: 'in/*', matrix: {{k: [boltz]}}, {typed}}}]", here, {}
    )
    assert job.container == Container(
        str(here / "boltz.sif"),
        mounts=(Mount(str(here / "in"), str(here / "in")), Mount(str(here / "in"), "/boltz")),
        args=("--label=boltz",),
        user="0",
    )


def test_null_takes_the_defaults_container_away(here: Path) -> None:
    text = (
        "{defaults: {container: a},"
        " jobs: [{run: x}, {run: x, container: b}, {run: x, container: null, preload: torch}]}"
    )
    assert [job.container for job in jobs_of(text, here)] == [Container("a"), Container("b"), None]


def test_files_that_jobs_make_first_need_not_be_there(here: Path) -> None:
    text = (
        "jobs: [{name: build, run: x},"
        " {run: y, needs: build, container: {image: new.sif, mounts: [made]}}]"
    )
    made = jobs_of(text, here)[1].container
    assert made == Container(str(here / "new.sif"), mounts=(Mount(f"{here}/made", f"{here}/made"),))
    assert "made does not exist" in mistakes_of(text.replace("needs: build, ", ""), here)[1]


# ── what is another job, and another worker ─────────────────────────────────────────────────────

OTHER = [
    "container: b",
    "container: {image: a, engine: docker}",
    "container: {image: a, mounts: [in]}",
    "container: {image: a, mounts: ['in:ro']}",
    "container: {image: a, args: [--ipc=host]}",
    "container: {image: a, user: image}",
    "",
]


@pytest.mark.parametrize("fields", OTHER)
def test_whatever_changes_what_runs_changes_the_digest(here: Path, fields: str) -> None:
    one = job_of("run: x, container: a", here)
    assert job_of(f"run: x, {fields}", here).digest != one.digest


def test_when_its_image_is_pulled_makes_no_other_job(here: Path) -> None:
    one = job_of("run: x, container: a", here)
    assert job_of("run: x, container: {image: a, pull: always}", here).digest == one.digest


def test_a_moved_folder_makes_no_other_job(
    here: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    there = tmp_path_factory.mktemp("moved")
    (there / "boltz.sif").touch()
    (there / "in").mkdir()
    fields = "run: x, container: {image: boltz.sif, mounts: [in]}"
    assert job_of(fields, here).digest == job_of(fields, there).digest


def test_workers_share_a_process_in_one_container_only(here: Path) -> None:
    def key(fields: str) -> str:
        return job_of(f"worker: {{run: [x]}}, {fields}", here).demand.worker

    keys = [key("container: a"), *map(key, OTHER)]
    assert len(set(keys)) == len(keys)
    assert key("container: {image: a, pull: never}") == keys[0]


# ── the chosen engine ───────────────────────────────────────────────────────────────────────────


def _on(engine: ContainerEngine, fields: str) -> list[str]:
    job = job_of(f"run: x, {fields}")
    return [f"{field}: {why}" for field, why in why_not(job, engine)]


def test_strict_isolation_is_what_daemons_give_and_others_cannot() -> None:
    fields = "container: a, isolation: strict"
    assert _on("docker", fields) == _on("podman", fields) == []
    for engine in ("apptainer", "singularity"):
        (why,) = _on(engine, fields)  # type: ignore[arg-type]
        assert why.startswith(f"isolation: {engine} shows a container every device node")


def test_another_user_is_for_daemons_alone() -> None:
    fields = "container: {image: a, user: image}"
    assert _on("podman", fields) == []
    (why,) = _on("apptainer", fields)
    assert why.startswith("container: apptainer runs as you")
    assert _on("apptainer", "container: {image: a, user: caller}") == []


def test_the_directory_of_the_input_is_mounted_unless_a_mount_takes_its_place(here: Path) -> None:
    inputs = str(here / "in")
    each = "jobs: [{run: 'x {{path}}', foreach: 'in/*', container: "
    (job,) = jobs_of(f"{each} a}}]", here, {})
    assert job.container == Container("a", mounts=(Mount(inputs, inputs),))
    (job,) = jobs_of(f"{each} {{image: a, mounts: ['in:{inputs}:ro']}}}}]", here, {})
    assert job.container == Container("a", mounts=(Mount(inputs, inputs, True),))
    (job,) = jobs_of("jobs: [{run: x, foreach: {values: [b]}, container: a}]", here, {})
    assert job.container == Container("a", mounts=(Mount(str(here), str(here)),))


def test_what_stands_beside_a_container_well() -> None:
    job = job_of(
        "run: x, container: a, explain: true, isolation: strict, env_file: vars.env,"
        " service: {ready: 'tcp:{{port}}'}"
    )
    assert job.container == Container("a")
    assert job_of("run: x, container: a, preload: no").container == Container("a")
    batch = jobs_of("jobs: [{run: 'x {{batch_dir}}', foreach: 'inputs/*', batch: 2, container: a}]")
    assert {job.container for job in batch} == {Container("a")}
    fasta = jobs_of("jobs: [{run: 'x {{path}}', foreach: {fasta: seqs.fa}, container: a}]")
    assert {job.container for job in fasta} == {Container("a")}
    assert job_of("worker: {run: [x]}, container: a").container == Container("a")
