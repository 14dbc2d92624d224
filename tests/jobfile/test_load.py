"""What the fields of a job file come to."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from msgspec.structs import replace

from gpulaunch.base.errors import UsageError
from gpulaunch.core.model import ALL, Demand, Job, RetryPolicy, Selection, Service
from gpulaunch.core.template import Slot, Template, render
from gpulaunch.jobfile.file_keys import Surroundings
from gpulaunch.jobfile.items import digest_of
from gpulaunch.jobfile.load import load
from gpulaunch.jobfile.settings import with_settings
from tests.jobfile.helpers import GOOD, job_of, jobs_of, mistakes_of, plan_of


@pytest.fixture(scope="module")
def everything() -> dict[str, Job]:
    plan = load(GOOD / "everything.yaml", Surroundings({"HOME": "/", "PATH": os.defpath}))
    return {job.name: job for job in plan.jobs}


def test_the_contracts_own_example() -> None:
    plan = load(GOOD / "contract.yaml", Surroundings({}))
    names = [job.name for job in plan.jobs]
    assert names == ["fold-n1", "fold-n2", "fold-n10", "evo2-40b", "summary"]
    fold, evo, summary = plan.jobs[0], plan.jobs[3], plan.jobs[4]
    assert fold.run == Template(
        (f"chai-lab fold --use-msa-server '{GOOD}/inputs/n1.fasta' ", Slot("out", "bare"))
    )
    assert fold.outputs == (Template((Slot("out"), "/pred.model_idx_0.cif")),)
    assert fold.demand == Demand(uses=("msa_server",))
    assert (fold.timeout, fold.retry, fold.env) == (7200, RetryPolicy(1), {"HF_HOME": "/data/hf"})
    assert evo.run == ("python", "score.py", "--model", "evo2_40b")
    assert (evo.demand.gpus, summary.demand.gpus) == (2, 0)
    assert summary.after == ("fold-n1", "fold-n2", "fold-n10")
    assert (plan.name, plan.selection, plan.limits) == ("nanobodies", ALL, {"msa_server": 1})
    assert [job.group for job in plan.jobs] == [0, 0, 0, 1, 2]
    assert fold.cwd == str(GOOD)


def test_the_files_own_keys() -> None:
    plan = plan_of("{gpus: [0, GPU-5f3c], per_gpu: 3, jobs: [{run: x}, {run: x, per_gpu: 1}]}")
    assert plan.selection == Selection(which=("0", "GPU-5f3c"))
    assert [job.demand.per_gpu for job in plan.jobs] == [3, 1]
    assert plan.name == "jobs"
    assert plan_of("{gpus: 2, jobs: [{run: x}]}").selection == Selection(count=2)
    assert plan_of("jobs: [{run: x}]", name="dir/.my\tlist.yaml").name == "my_list"


def test_scalars_are_text_as_typed() -> None:
    job = job_of("run: [x, NO, 1e-3, 1.10, 010, '~', 'null', 0x1F, 2001-01-01, yes]")
    assert job.run == (
        *("x", "NO", "1e-3", "1.10", "010", "~", "null", "0x1F", "2001-01-01", "yes"),
    )
    assert job_of("run: x, env: {A: ~, B: null, C: , D: '', E: Null}").env == {
        "A": None,
        "B": None,
        "C": None,
        "D": "",
        "E": "Null",
    }


def test_tables_give_their_columns(everything: dict[str, Job]) -> None:
    x, y = everything["csv-x"], everything["csv-y"]
    assert x.run == "train --lr '1e-3' --note 'a, b' \"x,1e-3,\\\"a, b\\\"\""
    assert x.params == {"id": "x", "lr": "1e-3", "note": "a, b"}
    assert y.params["note"] == "NO"
    assert x.env == {
        "HF_HOME": "/data/hf",
        "LR": "1e-3",
        "LANG": None,
        "OUT": Template((Slot("out"), "/x")),
    }
    assert everything["tsv-lr=1.10-seed=2"].run == ("train", "1.10", "2", "", "010")
    assert everything["tsv-lr=1.10-seed=2"].env == {"HF_HOME": "/data/hf", "LANG": "C"}


def test_defaults_are_below_a_jobs_own_fields(everything: dict[str, Job]) -> None:
    x, line = everything["csv-x"], everything["lines-one"]
    assert x.timeout == 5400
    assert line.timeout is None
    assert x.retry == RetryPolicy(2, frozenset({"gpu_oom", "gpu_lost"}), 30)
    assert (x.success_codes, x.grace) == (frozenset({0, 3}), 0)
    assert x.demand.per_gpu == 2


def test_the_first_item_runs_before_its_siblings(everything: dict[str, Job]) -> None:
    assert everything["lines-one"].after == ()
    assert everything["lines-two words"].after == ("lines-one",)
    assert everything["lines-two words"].run == "echo 'two words' '1'"


def test_fasta_records_are_jobs(everything: dict[str, Job]) -> None:
    s1, s2 = everything["seq-s1"], everything["seq-s2"]
    file = GOOD / "seqs.fa"
    assert [job.cost for job in (s1, s2)] == [6, 1]
    assert s1.fasta is not None
    assert s2.fasta is not None
    assert s1.fasta.file == str(file)
    data = file.read_bytes()
    first = data[s1.fasta.offset :][: s1.fasta.length]
    assert first == b">s1 first\nACD\nEF G\n\n"
    assert data[s2.fasta.offset :][: s2.fasta.length] == b">s2\nA\n"
    assert s1.fasta.digest == digest_of(first) != s2.fasta.digest
    assert render(s1.run, {"path": "/r/s1.fasta"}) == "fold '/r/s1.fasta' --id 's1'"  # type: ignore[arg-type]
    assert s1.needs == ("lines-one", "lines-two words")
    assert s1.demand.gpu_memory == 20 << 30


def test_batches_hold_their_files_paths(everything: dict[str, Job]) -> None:
    inputs = [f"{GOOD}/inputs/n{i}.fasta" for i in (1, 2, 10)]
    assert everything["job-0"].batch == (inputs[0], inputs[1])
    assert everything["job-1"].batch == (inputs[2],)
    filled = render(everything["job-1"].run, {"batch_dir": "/b"})  # type: ignore[arg-type]
    assert filled == "embed '/b' --batch '1'"


def test_a_matrix_is_every_combination_but_the_excluded(everything: dict[str, Job]) -> None:
    grid = [name for name in everything if name.startswith("grid")]
    assert grid == ["grid-lr=1e-3-seed=0", "grid-lr=1e-3-seed=1", "grid-lr=1.10-seed=0"]
    assert everything[grid[0]].demand.gpus == 0
    assert everything[grid[1]].demand.gpus == 1
    assert everything[grid[0]].priority == -3
    assert everything[grid[0]].params == {"lr": "1e-3", "seed": "0"}


def test_defaults_for_jobs_that_end_by_themselves_hold_for_no_service() -> None:
    llm, own, ask = jobs_of(
        """
        defaults: {timeout: 4s, idle_timeout: 3s, gpu_idle: 1m, outputs: [x], retries: 2}
        jobs:
        - {name: llm, run: serve, service: {ready: "tcp:1"}}
        - {name: own, run: serve, timeout: 8h, service: {ready: "tcp:2", ready_within: 5m}}
        - {name: ask, run: ask, needs: [llm, own]}
        """
    )
    assert (llm.timeout, llm.idle_timeout, llm.gpu_idle, llm.outputs) == (None, None, None, ())
    assert (ask.timeout, ask.idle_timeout, ask.gpu_idle, ask.outputs) == (4, 3, 60, ("x",))
    assert llm.retry.times == 2
    assert own.timeout == 8 * 3600
    assert (llm.service, own.service) == (Service("tcp:1"), Service("tcp:2", 300.0))


@pytest.mark.parametrize("within", ["0", "-3s", "soon"])
def test_the_time_for_a_services_answer_is_checked(within: str) -> None:
    (line,) = mistakes_of(
        f"""
        jobs:
        - {{name: llm, run: serve, service: {{ready: "tcp:1", ready_within: {within}}}}}
        """
    )
    assert "jobs[0].service.ready_within: " in line


def test_a_service_cannot_be_the_first_of_its_siblings() -> None:
    (line,) = mistakes_of(
        """
        jobs:
        - name: llm-{{n}}
          matrix: {n: [1, 2]}
          first: true
          run: serve
          service: {ready: "tcp:{{port}}"}
        """
    )
    assert line.endswith("jobs[0].first: its siblings wait for its end, and a service has none")


def test_foreach_and_matrix_multiply(everything: dict[str, Job]) -> None:
    job = everything["each-n10-slow"]
    assert job.run == f"run '{GOOD}/inputs'/'n10.fasta' '.fasta' 'each-n10-slow'"
    assert job.cwd == f"{GOOD}/inputs"
    assert job.params == {"item": "inputs/n10.fasta", "mode": "slow"}
    assert sum(name.startswith("each-") for name in everything) == 6


def test_services_and_those_who_need_them(everything: dict[str, Job]) -> None:
    server, client = everything["server"], everything["client-k=n1"]
    ready = Template(("http://127.0.0.1:", Slot("port"), "/health"))
    assert server.service == Service(ready)
    assert server.run == ("serve", "--port", Template((Slot("port"),)))
    assert server.visible == "uuid"
    assert client.needs == ("server", "each-n1-fast")
    assert client.shell == ("sh", "-e", "-c")
    assert client.env_file == str(GOOD / "vars.env")
    assert client.inherit_ranks
    assert client.demand == Demand(cpus=4)
    assert (client.outputs, client.idle_timeout, client.gpu_idle) == (("out.txt",), 90, 1800)


def test_names_made_for_jobs_without_one() -> None:
    text = "jobs: [{run: x}, {run: x, name: a}, {run: x, matrix: {k: [1, 2]}}, {run: x}]"
    assert [job.name for job in jobs_of(text)] == ["job-1", "a", "job-k=1", "job-k=2", "job-4"]


def test_values_bring_no_slash_and_no_control_character_into_a_name() -> None:
    (a, b) = jobs_of('jobs: [{run: x, name: "{{item}}", foreach: {values: [a/b, "..\\n"]}}]')
    assert (a.name, b.name) == ("a_b", "_._")


def test_values_are_data_and_not_placeholders() -> None:
    (job,) = jobs_of('jobs: [{run: "x {{item}}", name: v, foreach: {values: ["{{out}}"]}}]')
    assert job.run == "x '{{out}}'"


def test_items_are_sorted_as_people_count(tmp_path: Path) -> None:
    for name in ("a10", "a9", "a1", "b", "A2"):
        (tmp_path / f"{name}.fa").touch()
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "a1.fa").touch()
    jobs = jobs_of("jobs: [{run: x, name: '{{item}}', foreach: '**/*.fa'}]", tmp_path)
    assert [job.name for job in jobs] == ["A2.fa", "a1.fa", "a9.fa", "a10.fa", "b.fa", "sub_a1.fa"]


def test_a_pattern_finds_directories_and_names_with_brackets(tmp_path: Path) -> None:
    (tmp_path / "d[1]").mkdir()
    (job,) = jobs_of("jobs: [{run: 'x {{path}}', foreach: 'd[1]'}]", tmp_path)
    assert job.run == f"x '{tmp_path}/d[1]'"


def test_home_in_paths(tmp_path: Path) -> None:
    (tmp_path / "a.fa").touch()
    environ = {"HOME": str(tmp_path)}
    job = job_of("run: 'x {{path}}', foreach: '~/*.fa', cwd: '~'", environ=environ)
    assert (job.run, job.cwd) == (f"x '{tmp_path}/a.fa'", str(tmp_path))


def test_a_place_that_needs_may_make_is_not_asked_for() -> None:
    text = "jobs: [{run: x, name: a}, {run: x, needs: a, cwd: later, venv: v, env_file: e}]"
    job = jobs_of(text)[1]
    assert (job.cwd, job.venv, job.env_file) == (f"{GOOD}/later", f"{GOOD}/v", f"{GOOD}/e")
    text = "jobs: [{run: x, name: a}, {run: x, after: a, conda: ./c}]"
    assert jobs_of(text)[1].conda == f"{GOOD}/c"


def test_an_item_matches_literally_in_needs() -> None:
    jobs = jobs_of(
        """
        jobs:
          - {name: "a-{{item}}", run: x, foreach: {values: &v ["1", "*", "[ab]", "x/y"]}}
          - {name: "b-{{item}}", run: x, foreach: {values: *v}, needs: ["a-{{item}}"]}
          - {name: "c-{{item}}", run: x, foreach: {values: ["x/y"]}, needs: ["?-{{item}}*"]}
          - {name: "d-{{item}}", run: x, foreach: {values: ["*"]}, needs: ["?-{{item}}"]}
        """
    )
    assert [job.needs for job in jobs[4:8]] == [("a-1",), ("a-*",), ("a-[ab]",), ("a-x_y",)]
    assert jobs[8].needs == ("a-x_y", "b-x_y")
    assert jobs[9].needs == ("a-*", "b-*")


def test_a_glob_never_means_the_job_itself() -> None:
    jobs = jobs_of("jobs: [{name: a, run: x}, {name: b, run: x}, {name: c, run: x, after: '*'}]")
    assert jobs[2].after == ("a", "b")


def test_equal_needs_are_one_tuple() -> None:
    jobs = jobs_of(
        """
        jobs:
          - {name: a, run: x, foreach: {values: [1, 2]}}
          - {name: b, run: x, foreach: {values: [1, 2]}, needs: ["a-*"]}
        """
    )
    assert jobs[2].needs is jobs[3].needs


def test_the_shell_is_what_was_asked_for() -> None:
    assert job_of("run: x").shell == ("bash", "-eo", "pipefail", "-c")
    assert job_of("run: x, shell: /bin/dash").shell == ("/bin/dash", "-e", "-c")
    assert job_of("run: x, shell: fish").shell == ("fish", "-c")
    assert job_of("run: x, shell: bash -x -c").shell == ("bash", "-x", "-c")
    assert job_of("run: x, shell: [python3, -c]").shell == ("python3", "-c")
    assert job_of("run: 'x {{job}}', shell: [/usr/bin/env, zsh, -c]").run == "x 'job-1'"


def test_a_placeholder_in_a_matrix_may_choose_the_shell() -> None:
    jobs = jobs_of("jobs: [{run: 'x {{s}}', shell: '{{s}}', matrix: {s: [sh, zsh]}}]")
    assert [job.shell[0] for job in jobs] == ["sh", "zsh"]
    assert jobs[0].run == "x 'sh'"


def test_merge_keys_fill_in_what_a_mapping_lacks() -> None:
    jobs = jobs_of(
        """
        jobs:
          - &a {name: a, run: x, gpus: 2, env: &e {A: 1}}
          - {<<: *a, name: b, env: {<<: *e, B: 2}}
          - {<<: [{gpus: 0}, *a], name: c}
        """
    )
    assert [job.demand.gpus for job in jobs] == [2, 2, 0]
    assert jobs[1].env == {"A": "1", "B": "2"}


def test_digest_changes_with_what_is_run_and_with_nothing_else() -> None:
    digest = job_of("run: x").digest
    same = ["name: b", "needs: []", "priority: 3", "timeout: 3", "retries: 2", "uses: []"]
    for field in [
        *same,
        "cpus: 2",
        "cost: 4",
        "grace: 1",
        "gpu_memory: 1GB",
        "per_gpu: 2",
        "memory: 1GB",
    ]:
        assert job_of(f"run: x, {field}").digest == digest, field
    other = ["env: {A: 1}", "gpus: 2", "cwd: inputs", "shell: sh", "outputs: a", "env: {A: null}"]
    found = {job_of(f"run: x, {field}").digest for field in other}
    found |= {job_of("run: [x]").digest, job_of("run: y").digest, digest}
    assert len(found) == len(other) + 3
    assert len(digest) == 16
    assert jobs_of("jobs: [{run: y, name: o}, {run: x}]")[1].digest == digest


def test_digest_of_a_record_follows_its_bytes_and_not_its_place(tmp_path: Path) -> None:
    def digests(text: str) -> dict[str, str]:
        (tmp_path / "s.fa").write_text(text)
        jobs = jobs_of("jobs: [{run: 'x {{path}}', foreach: {fasta: s.fa}}]", tmp_path)
        return {job.name: job.digest for job in jobs}

    before = digests(">a\nAC\n>b\nGG\n")
    after = digests(">new\nT\n>a\nAC\n>b\nGT\n")
    assert after["job-a"] == before["job-a"]
    assert after["job-b"] != before["job-b"]


def test_what_no_exec_could_take_is_refused() -> None:
    (line,) = mistakes_of(f"jobs: [{{run: 'x {'y' * 140_000}'}}]")
    assert "140,002 bytes; Linux takes at most 131,071 in one argument" in line


def test_too_many_jobs_are_refused_at_once() -> None:
    axes = ", ".join(f"k{i}: [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]" for i in range(10))
    (line,) = mistakes_of(f"jobs: [{{run: x, matrix: {{{axes}}}}}]")
    assert "10,000,000,000 combinations; at most 500,000 jobs are planned" in line


def test_many_mistakes_are_cut_at_fifty() -> None:
    lines = mistakes_of("jobs:\n" + "  - {run: x, gpuz: 1}\n" * 60)
    assert len(lines) == 51
    assert lines[-1] == "jobs.yaml: and 10 more mistakes".removeprefix("jobs.yaml:")


def test_the_line_is_shown_with_a_caret() -> None:
    from gpulaunch.base.errors import JobFileError

    with pytest.raises(JobFileError) as caught:
        plan_of("jobs:\n  - run: x\n    gpus: two\n")
    assert str(caught.value) == (
        "jobs.yaml:3:11: jobs[0].gpus: expected how many cards: 0, 1, 2 ..., found 'two'\n"
        "        gpus: two\n"
        "              ^"
    )


def test_relative_paths_start_at_the_files_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "jobs.yaml").write_text("jobs: [{run: x, cwd: .}]")
    monkeypatch.chdir(tmp_path)
    plan = load(Path("sub/jobs.yaml"), Surroundings({}))
    assert plan.jobs[0].cwd == str(tmp_path / "sub")
    assert (plan.base, plan.path, plan.name) == (tmp_path / "sub", Path("sub/jobs.yaml"), "jobs")


def test_dots_mean_what_they_mean_to_the_system(tmp_path: Path) -> None:
    (tmp_path / "real" / "sub").mkdir(parents=True)
    (tmp_path / "real" / "a.fa").touch()
    (tmp_path / "link").symlink_to("real/sub")
    text = "jobs: [{run: 'x {{path}}', foreach: '../*.fa', cwd: .., name: a}]"
    (job,) = jobs_of(text, tmp_path / "link")
    assert job.run == f"x '{tmp_path}/real/a.fa'"
    assert job.cwd == f"{tmp_path}/real"
    (job,) = jobs_of("jobs: [{run: x, cwd: ./.}]", tmp_path / "link" / ".." / "sub")
    assert job.cwd == f"{tmp_path}/real/sub"
    assert jobs_of("jobs: [{run: x}]", tmp_path / "link")[0].cwd == f"{tmp_path}/link"


def test_file_names_that_are_no_text_are_handed_on(tmp_path: Path) -> None:
    path = os.fsencode(tmp_path) + b"/caf\xe9\n.fa"
    with open(path, "w"):
        pass
    (job,) = jobs_of("jobs: [{run: ['{{path}}'], foreach: '*.fa', name: '{{stem}}'}]", tmp_path)
    assert os.fsencode(job.run[0]) == path  # type: ignore[arg-type]
    assert job.name == "caf__"
    (line,) = mistakes_of("jobs: [{run: x, foreach: '*.fa', gpus: '{{stem}}'}]", tmp_path)
    assert line.isprintable()
    line.encode()


def test_a_file_that_is_none_is_one_line(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    for path, said in [
        (tmp_path, "a directory; expected a job file"),
        (tmp_path / "none.yaml", "no such file; expected a job file"),
        (fifo, "not a regular file; expected a job file"),
        (Path("/dev/zero"), "not a regular file; expected a job file"),
        (Path("nul\0"), "a NUL character"),
    ]:
        with pytest.raises(UsageError) as caught:
            load(path, Surroundings({}))
        assert said in str(caught.value)
        assert "\n" not in str(caught.value)
        assert caught.value.status == 2


@pytest.mark.parametrize("typed", ["jobs.yml", "jobs", "Jobs.yaml", "jbos.yaml"])
def test_a_file_that_is_not_there_is_told_the_one_that_may_be_meant(
    typed: str, tmp_path: Path
) -> None:
    (tmp_path / "jobs.yaml").write_text("jobs: []")
    (tmp_path / "notes.txt").write_text("")
    with pytest.raises(UsageError, match=r"; did you mean jobs.yaml\?$"):
        load(tmp_path / typed, Surroundings({}))
    with pytest.raises(UsageError, match=r"or a list of commands$"):
        load(tmp_path / "sweep.yaml", Surroundings({}))


def test_a_file_that_may_not_be_read_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "jobs.yaml"
    path.write_text("jobs: []")
    path.chmod(0)
    was = os.geteuid()
    if was == 0:
        os.seteuid(65534)  # root may read everything
    try:
        with pytest.raises(UsageError, match="permission denied"):
            load(path, Surroundings({}))
    finally:
        os.seteuid(was)


def test_jobs_are_plain_values() -> None:
    job = job_of("run: x")
    assert replace(job, name="y").name == "y"
    assert hash(job.run) == hash("x")


# ── Sharing a card ──────────────────────────────────────────────────────────────────────────────


def demands_of(jobs: str, head: str = "") -> list[Demand]:
    return [job.demand for job in plan_of(f"{{{head}jobs: [{jobs}]}}").jobs]


def test_jobs_that_share_say_how_much_they_take_or_learn_it_by_entry() -> None:
    sized, learned, plain, bounded = demands_of(
        "{run: x, share: true, gpu_memory: 20GiB}, {run: x, share: true},"
        " {run: y, gpu_memory: AUTO}, {run: z, share: true, per_gpu: 3, gpu_memory: auto}"
    )
    assert sized == Demand(gpu_memory=20 << 30, per_gpu=0, share=True)
    assert learned == Demand(per_gpu=0, share=True, kind=learned.kind)
    assert plain == Demand(kind=plain.kind), "it learns what must be free, and has its card alone"
    assert bounded == Demand(per_gpu=3, share=True, kind=bounded.kind)
    assert len({learned.kind, plain.kind, bounded.kind, None}) == 4


def test_an_entry_is_of_the_same_kind_wherever_it_is_and_whatever_its_limits() -> None:
    entry = "run: 'predict {item}', foreach: {values: [a, b]}, env: {A: '1'}, share: true"
    first, second = demands_of(f"{{{entry}}}")
    *_, moved = demands_of(f"{{run: x, share: true}}, {{{entry}, timeout: 1h, retries: 2}}")
    *_, other = demands_of(f"{{{entry.replace('1', '2')}}}")
    assert first.kind == second.kind == moved.kind
    assert other.kind != first.kind


def test_the_files_own_per_gpu_bounds_those_that_share_and_1_bounds_nothing() -> None:
    jobs = "{run: x, share: true}, {run: x, gpus: 0, share: true}"
    assert [demand.per_gpu for demand in demands_of(jobs, "per_gpu: 4, ")] == [4, 1]
    shared, none = demands_of(jobs, "per_gpu: 1, ")
    assert (shared.per_gpu, none) == (0, Demand(gpus=0))


@pytest.mark.parametrize(
    ("job", "place", "why"),
    [
        ("share: true, gpus: 2", "share", "what a job with gpus: 2 takes is not learned"),
        ("gpu_memory: auto, gpus: 2", "gpu_memory", "what a job with gpus: 2 takes"),
        ('share: true, service: {ready: "tcp:1"}', "share", "known only once it is over"),
        ("share: perhaps", "share", "expected true or false, found 'perhaps'"),
        ("gpu_memory: most", "gpu_memory", "expected a size with its unit"),
    ],
)
def test_what_cannot_be_learned_is_refused_with_what_to_do(job: str, place: str, why: str) -> None:
    (mistake,) = mistakes_of(f"jobs: [{{run: x, {job}}}]")
    assert f"jobs[0].{place}: " in mistake
    assert why in mistake


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ("share: true", "its gpu_memory: is learned"),
        ("gpu_memory: auto", "its gpu_memory: is learned"),
        ("per_gpu: 2, mps: true", "mps: is for jobs of one card"),
    ],
)
def test_set_makes_no_wide_job_of_one_that_has_to_have_one_card(fields: str, why: str) -> None:
    job = job_of(f"name: a, run: x, {fields}")
    with pytest.raises(UsageError, match=f"gpus=2: {why}"):
        with_settings(job, {"gpus": "2"}, ["a"])


def test_a_wide_job_may_share_by_a_number() -> None:
    (demand,) = demands_of("{run: x, gpus: 2, share: true, gpu_memory: 1GiB}")
    assert demand == Demand(2, 1 << 30, 0, share=True)
