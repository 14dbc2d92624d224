"""The environment of an attempt, variable by variable."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from gpulaunch.core.model import Demand, Gpu, Job, address_variable
from gpulaunch.diagnose.explain import INJECT
from gpulaunch.engines.command import NodeSlots
from gpulaunch.engines.environment import (
    CHOSEN,
    RANKS,
    THREADS,
    AttemptPlace,
    EnvironmentMaker,
    MachineLimits,
    MpsVariables,
    delta,
    threads,
)

GPUS = tuple(Gpu(f"GPU-{n}", n, f"0000:0{n}:00.0", "A100", 80 << 30) for n in range(4))
MACHINE = MachineLimits(cpus=16, pool=4, cache="/cache")
PLACE = AttemptPlace(
    gpus=(GPUS[2],),
    style="index",
    scope="run/1",
    master_port=23456,
    run="20261120-080000-abcdef",
    run_dir="/runs/r",
    attempt=2,
    out="/runs/r/out/a.2",
)
JOB = Job("a", "true")


def environment(
    job: Job = JOB,
    place: AttemptPlace = PLACE,
    base: dict[str, str] | None = None,
    own: dict[str, str | None] | None = None,
) -> dict[str, str]:
    base = {"PATH": "/usr/bin"} if base is None else base
    made = delta(job, place, MACHINE, base, own or {}).over(base)
    maker = EnvironmentMaker(MACHINE, base)
    others = dict.fromkeys(place.addresses, "tcp:9.9.9.9:9")
    maker.delta(
        job, replace(place, attempt=9, out="/o", master_port=9, addresses=others), own or {}
    )
    assert maker.delta(job, place, own or {}).over(base) == made, "of the second of its kind"
    return made


def test_one_card_is_named_by_its_nvml_index_in_pci_order() -> None:
    env = environment()
    assert env["CUDA_VISIBLE_DEVICES"] == "2"
    assert env["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    assert env["GPULAUNCH_GPU_UUID"] == "GPU-2"


def test_several_cards_are_comma_separated() -> None:
    env = environment(place=replace(PLACE, gpus=GPUS[1:3]))
    assert env["CUDA_VISIBLE_DEVICES"] == env["GPULAUNCH_GPU_INDEX"] == "1,2"
    assert env["GPULAUNCH_GPU_UUID"] == "GPU-1,GPU-2"


def test_a_start_up_file_is_read_on_a_cluster_alone_and_where_a_job_names_one() -> None:
    base = {"PATH": "/usr/bin", "BASH_ENV": "/etc/init"}
    assert "BASH_ENV" not in environment(base=base)
    assert environment(base=base, own={"BASH_ENV": "/own"})["BASH_ENV"] == "/own"
    afar = replace(PLACE, gpus=(), slots=NodeSlots.fresh(1))
    assert environment(base=base, place=afar)["BASH_ENV"] == "/etc/init"
    assert "BASH_ENV" not in environment(base=base, place=afar, own={"BASH_ENV": None})


def test_no_card_is_an_empty_mask() -> None:
    job = replace(JOB, demand=Demand(gpus=0))
    env = environment(job, replace(PLACE, gpus=()), {"CUDA_VISIBLE_DEVICES": "3"})
    assert env["CUDA_VISIBLE_DEVICES"] == ""
    assert "TRITON_CACHE_DIR" not in env


def test_by_uuid_the_order_is_of_no_account() -> None:
    assert environment(place=replace(PLACE, style="uuid"))["CUDA_VISIBLE_DEVICES"] == "GPU-2"


def test_the_mask_and_the_order_win_over_what_is_inherited() -> None:
    base = {"CUDA_VISIBLE_DEVICES": "0,1", "CUDA_DEVICE_ORDER": "FASTEST_FIRST"}
    env = environment(base=base)
    assert (env["CUDA_VISIBLE_DEVICES"], env["CUDA_DEVICE_ORDER"]) == ("2", "PCI_BUS_ID")


@pytest.mark.parametrize("name", [*THREADS, "MASTER_PORT", "TRITON_CACHE_DIR", "PYTHONUNBUFFERED"])
def test_what_the_user_set_wins(name: str) -> None:
    assert environment(base={name: "mine"})[name] == "mine"
    assert environment(own={name: "job's"})[name] == "job's"
    assert environment(base={name: "mine"}, own={name: "job's"})[name] == "job's"


def test_null_removes_and_nothing_puts_it_back() -> None:
    env = environment(base={"A": "1"}, own={"A": None, "OMP_NUM_THREADS": None})
    assert not {"A", "OMP_NUM_THREADS"} & env.keys()


def test_inherited_ranks_are_removed_unless_they_are_wanted() -> None:
    base = dict.fromkeys(RANKS, "7")
    assert not environment(base=base).keys() & set(RANKS)
    assert environment(replace(JOB, inherit_ranks=True), base=base).keys() >= set(RANKS)
    assert environment(base=base, own={"RANK": "0"})["RANK"] == "0"


def test_what_an_outer_launcher_chose_is_not_what_the_user_set() -> None:
    outer = environment(base={"MKL_NUM_THREADS": "2"})
    inner = environment(place=replace(PLACE, master_port=34567), base=outer)
    assert outer["MASTER_PORT"] == "23456"
    assert inner["MASTER_PORT"] == inner["PET_MASTER_PORT"] == "34567"
    assert inner["MKL_NUM_THREADS"] == "2"
    assert "MKL_NUM_THREADS" not in inner[CHOSEN].split(",")


@pytest.mark.parametrize(
    ("demand", "expected"),
    [
        (Demand(), 4),
        (Demand(per_gpu=2), 2),
        (Demand(per_gpu=64), 1),
        (Demand(cpus=6), 6),
        (Demand(gpus=0), 1),
        (Demand(gpus=0, cpus=3), 3),
    ],
)
def test_threads_are_the_cards_share_of_the_cpus(demand: Demand, expected: int) -> None:
    assert threads(replace(JOB, demand=demand), MACHINE) == expected


def test_threads_of_jobs_that_share_are_for_as_many_as_fit() -> None:
    shared = replace(JOB, demand=Demand(per_gpu=0, share=True))
    assert environment(shared, replace(PLACE, sharers=2))["OMP_NUM_THREADS"] == "2"
    assert environment(shared, replace(PLACE, sharers=1))["OMP_NUM_THREADS"] == "4"


def test_frameworks_that_take_a_whole_card_are_told_not_to_where_it_is_shared() -> None:
    told = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false", "TF_FORCE_GPU_ALLOW_GROWTH": "true"}
    for demand in (Demand(per_gpu=0, share=True), Demand(per_gpu=2)):
        env = environment(replace(JOB, demand=demand))
        assert {name: env[name] for name in told} == told
        own = environment(replace(JOB, demand=demand), base={"TF_FORCE_GPU_ALLOW_GROWTH": "false"})
        assert own["TF_FORCE_GPU_ALLOW_GROWTH"] == "false", "what the user set wins"
    for demand in (Demand(), Demand(gpus=0)):
        assert not told.keys() & environment(replace(JOB, demand=demand)).keys()


def found(pipes: str, logs: str, limit: str = "") -> MpsVariables:
    """What a client of that daemon finds, with that limit."""
    fixed = (("CUDA_MPS_PIPE_DIRECTORY", pipes), ("CUDA_MPS_LOG_DIRECTORY", logs))
    return MpsVariables(fixed, (("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", limit),) if limit else ())


def test_a_client_of_mps_finds_its_daemon_whatever_else_was_set_and_its_limit_unless_it_was() -> (
    None
):
    job = replace(JOB, demand=Demand(per_gpu=2, mps=True))
    place = replace(PLACE, mps=found("/tmp/m/pipe", "/run/mps", limit="0=3073M"))
    base = {"CUDA_MPS_PIPE_DIRECTORY": "/tmp/nvidia-mps"}
    env = environment(job, place, base, {"CUDA_MPS_LOG_DIRECTORY": None})
    assert env["CUDA_MPS_PIPE_DIRECTORY"] == "/tmp/m/pipe"
    assert env["CUDA_MPS_LOG_DIRECTORY"] == "/run/mps"
    assert env["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == "0=3073M"
    mine = {"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=1G"}
    assert environment(job, place, mine).items() >= mine.items()
    assert environment(job, place, own=mine).items() >= mine.items()
    without = environment(job, replace(PLACE, mps=found("/tmp/m/pipe", "/run/mps")))
    assert "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT" not in without
    assert environment(base=base)["CUDA_MPS_PIPE_DIRECTORY"] == "/tmp/nvidia-mps"


def test_attempts_of_one_kind_find_their_own_daemons() -> None:
    """What a kind shares is remembered."""
    job = replace(JOB, demand=Demand(per_gpu=2, mps=True))
    maker = EnvironmentMaker(MACHINE, {})
    for pipes in ("/tmp/a", "/tmp/b"):
        made = maker.delta(job, replace(PLACE, mps=found(pipes, "/logs")), {})
        assert made.set["CUDA_MPS_PIPE_DIRECTORY"] == pipes
    assert "CUDA_MPS_PIPE_DIRECTORY" not in maker.delta(job, PLACE, {}).set


def test_caches_are_apart_per_card() -> None:
    one = environment()
    two = environment(place=replace(PLACE, gpus=(GPUS[3],)))
    for name in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "TORCH_EXTENSIONS_DIR"):
        assert one[name] != two[name]
        assert one[name].startswith("/cache/")


def test_a_virtual_environment_comes_first_without_activation() -> None:
    base = {"PATH": "/usr/bin:/venv/bin", "PYTHONHOME": "/elsewhere"}
    env = environment(replace(JOB, venv="/venv"), base=base)
    assert env["PATH"] == "/venv/bin:/usr/bin"
    assert env["VIRTUAL_ENV"] == "/venv"
    assert "PYTHONHOME" not in env


def test_conda_sets_prefix_and_path() -> None:
    env = environment(replace(JOB, conda="/opt/conda/envs/chai"))
    assert env["PATH"] == "/opt/conda/envs/chai/bin:/usr/bin"
    assert (env["CONDA_PREFIX"], env["CONDA_DEFAULT_ENV"]) == ("/opt/conda/envs/chai", "chai")


# Attempts of one run that differ in one respect, and in what they may find because of that.
VARIANTS: dict[str, tuple[Job, AttemptPlace, dict[str, str | None]]] = {
    "plain": (JOB, PLACE, {}),
    "another job": (Job("b", "true"), replace(PLACE, attempt=3, out="/o", master_port=9), {}),
    "another card": (JOB, replace(PLACE, gpus=(GPUS[1],)), {}),
    "two cards": (JOB, replace(PLACE, gpus=GPUS[:2]), {}),
    "no card": (replace(JOB, demand=Demand(gpus=0)), replace(PLACE, gpus=()), {}),
    "by uuid": (JOB, replace(PLACE, style="uuid"), {}),
    "cpus": (replace(JOB, demand=Demand(cpus=3)), PLACE, {}),
    "shares": (replace(JOB, demand=Demand(per_gpu=2)), PLACE, {}),
    "sharers": (replace(JOB, demand=Demand(per_gpu=2)), replace(PLACE, sharers=4), {}),
    "a service": (JOB, replace(PLACE, addresses={"msa": "tcp:127.0.0.1:1"}), {}),
    "moved service": (JOB, replace(PLACE, addresses={"msa": "tcp:127.0.0.1:2"}), {}),
    "two services": (JOB, replace(PLACE, addresses={"msa": "tcp:h:1", "llm": "tcp:h:3"}), {}),
    "a step": (JOB, replace(PLACE, step=2), {}),
    "another step": (JOB, replace(PLACE, step=1), {}),
    "a value": (JOB, PLACE, {"SEED": "1"}),
    "another value": (JOB, PLACE, {"SEED": "2"}),
    "another name": (JOB, PLACE, {"SEEDS": "1"}),
    "a removal": (JOB, PLACE, {"SEED": None}),
    "its own port": (JOB, PLACE, {"MASTER_PORT": "77"}),
    "its own threads": (JOB, PLACE, {"OMP_NUM_THREADS": "7"}),
    "ranks": (replace(JOB, inherit_ranks=True), PLACE, {}),
    "explained": (replace(JOB, explain=True), PLACE, {}),
    "keeps": (replace(JOB, keep=True), replace(PLACE, keep="/runs/r/keep/a"), {}),
    "venv": (replace(JOB, venv="/venv"), PLACE, {}),
    "conda": (replace(JOB, conda="/envs/x"), PLACE, {}),
    "mps": (JOB, replace(PLACE, mps=found("/pipes", "/logs")), {}),
    "mps limit": (JOB, replace(PLACE, mps=found("/pipes", "/logs", "0=8G")), {}),
    "another mps": (JOB, replace(PLACE, mps=found("/p2", "/l2")), {}),
    "program": (replace(JOB, run=("true",)), PLACE, {}),
}


@pytest.mark.parametrize("before", VARIANTS)
def test_no_attempt_finds_a_variable_of_one_that_began_before_it(before: str) -> None:
    """Made apart, without anything that attempts share, each has what it is to have."""
    base = {"PATH": "/usr/bin", "SEED": "0", "RANK": "5", "BASH_ENV": "/etc/init"}
    for after, (job, place, own) in VARIANTS.items():
        maker = EnvironmentMaker(MACHINE, base)
        maker.delta(*VARIANTS[before])
        found = maker.delta(job, place, own).over(base)
        assert found == delta(job, place, MACHINE, base, own).over(base), after


def test_services_are_found_by_address() -> None:
    env = environment(place=replace(PLACE, addresses={"msa-server": "127.0.0.1:8000"}))
    assert env["GPULAUNCH_ADDR_MSA_SERVER"] == "127.0.0.1:8000"
    assert address_variable("a.b c") == "GPULAUNCH_ADDR_A_B_C"


def test_explain_comes_before_what_the_job_would_have_on_its_python_path() -> None:
    explained = replace(JOB, explain=True)
    base = {"PYTHONPATH": "/base:/b:"}
    assert environment(explained, base=base)["PYTHONPATH"] == f"{INJECT}:/base:/b:"
    own: dict[str, str | None] = {"PYTHONPATH": "/own"}
    assert environment(explained, base=base, own=own)["PYTHONPATH"] == f"{INJECT}:/own"
    assert environment(explained, base=base, own={"PYTHONPATH": None})["PYTHONPATH"] == INJECT
    assert environment(explained)["PYTHONPATH"] == INJECT
    assert environment(base=base)["PYTHONPATH"] == "/base:/b:"


def test_an_empty_python_path_does_not_become_the_working_directory() -> None:
    assert environment(replace(JOB, explain=True), base={"PYTHONPATH": ""})["PYTHONPATH"] == INJECT


def test_a_launcher_inside_an_explained_job_injects_once() -> None:
    outer = environment(replace(JOB, explain=True), base={"PYTHONPATH": "/mine"})
    inner = environment(replace(JOB, explain=True), base=outer)
    assert inner["PYTHONPATH"] == f"{INJECT}:/mine"


def test_a_command_outside_any_run_has_no_run_variables() -> None:
    env = environment(place=replace(PLACE, run=""))
    assert not {"GPULAUNCH_RUN_ID", "GPULAUNCH_OUT", "GPULAUNCH_JOB"} & env.keys()
    assert env["GPULAUNCH_LEASED"] == "run/1"


def test_a_lent_environment_stands_in_place_of_the_keepers_own() -> None:
    base = {"PATH": "/bin", "MINE": "launcher", "ONLY": "there"}
    maker = EnvironmentMaker(MACHINE, base)
    lent = {"PATH": "/other", "MINE": "adder", "NEW": "x"}
    maker.lend(["added"], lent)
    whole = maker.delta(Job("added", "true"), PLACE, {"OWN": "1", "MINE": None}).over(base)
    assert {name: whole.get(name) for name in ("PATH", "MINE", "ONLY", "NEW", "OWN")} == {
        "PATH": "/other",
        "MINE": None,
        "ONLY": None,
        "NEW": "x",
        "OWN": "1",
    }
    plain = maker.delta(Job("plain", "true"), PLACE, {}).over(base)
    assert (plain["MINE"], plain["ONLY"]) == ("launcher", "there")


def test_an_environment_is_kept_once_and_for_as_long_as_a_job_has_it() -> None:
    maker = EnvironmentMaker(MACHINE, {})
    maker.lend(["a", "b"], {"X": "1"})
    maker.lend(["c"], {"X": "1"})
    maker.lend(["d"], {"X": "2"})
    numbers = [maker.lent_to(name) for name in "abcd"]
    assert numbers == [1, 1, 1, 2]
    for name in "abc":
        assert maker.environ(1) == {"X": "1"}
        maker.forget((name,))
    assert (maker.lent_to("a"), maker.environ(1), maker.environ(2)) == (0, {}, {"X": "2"})
