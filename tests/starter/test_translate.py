"""Scripts as people write them, and the job lists that replace them."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from gpulaunch.jobfile.convert import MASKS
from gpulaunch.starter import translate
from tests.starter.helpers import load


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """A directory with what the scripts mention: inputs, environments."""
    for name in ("in/a.fasta", "in/b.fasta", "sub/x", "venv/bin/python", "sub/venv/bin/python"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    (tmp_path / "list.txt").write_text("x y\nz\n")
    return tmp_path


def test_two_terminals_of_chai_lab_become_two_jobs_side_by_side(base: Path) -> None:
    loaded = load(
        "#!/bin/bash\n"
        "# the first terminal\n"
        "CUDA_VISIBLE_DEVICES=0 chai-lab fold a.fasta out_a &\n"
        "# the second terminal\n"
        "CUDA_VISIBLE_DEVICES=1 chai-lab fold b.fasta out_b &\n",
        base,
    )
    assert [loaded.run(name) for name in loaded.jobs] == [
        "chai-lab fold a.fasta out_a",
        "chai-lab fold b.fasta out_b",
    ]
    assert all(job.demand.gpus == 1 and not job.after for job in loaded.jobs.values())
    assert "# the second terminal" in loaded.text
    assert loaded.remarks == ()


def test_an_exported_mask_holds_for_what_follows_until_it_is_unset(base: Path) -> None:
    loaded = load(
        "export CUDA_VISIBLE_DEVICES=0,1\npython a.py &\n"
        "export CUDA_VISIBLE_DEVICES=\npython b.py &\n"
        "export CUDA_VISIBLE_DEVICES=-1\npython c.py &\n"
        "CARDS=2,3,4; export CUDA_VISIBLE_DEVICES=$CARDS\npython d.py &\n"
        "unset CUDA_VISIBLE_DEVICES\npython e.py &\n",
        base,
    )
    gpus = {name: job.demand.gpus for name, job in loaded.jobs.items()}
    assert gpus == {"a": 2, "b": 0, "c": 0, "d": 3, "e": 1}
    assert "it saw every card" in loaded.text


@pytest.mark.parametrize(
    ("mask", "gpus", "odd"),
    [
        ("0", 1, ""),
        ('"0,1"', 2, ""),
        ("0,-1,1", 1, ""),
        ("''", 0, ""),
        ("GPU-5f3c,GPU-77aa", 2, ""),
        ("1,1", 0, "twice"),
        ("0;1", 1, ""),
        ("0，1", 1, "stops reading"),
        ("$i", 1, ""),
        ("$(pick a card)", 1, ""),
    ],
)
def test_a_mask_is_counted_as_cuda_reads_it(base: Path, mask: str, gpus: int, odd: str) -> None:
    loaded = load(f"CUDA_VISIBLE_DEVICES={mask.split(';')[0]} python a.py &\n", base)
    assert loaded.jobs["a"].demand.gpus == gpus
    assert odd in " ".join(remark.why for remark in loaded.remarks)


def test_wait_makes_what_follows_come_after_whatever_came_out(base: Path) -> None:
    loaded = load(
        "CUDA_VISIBLE_DEVICES=0 python a.py &\n"
        "CUDA_VISIBLE_DEVICES=1 python b.py &\n"
        "wait\n"
        "python merge.py > table.tsv\n",
        base,
    )
    assert loaded.jobs["merge"].after == ("a", "b")
    assert loaded.jobs["merge"].needs == ()
    assert loaded.run("merge") == "python merge.py > table.tsv"


def test_wait_for_some_waits_for_those(base: Path) -> None:
    loaded = load(
        "CUDA_VISIBLE_DEVICES=0 python a.py & A=$!\n"
        "CUDA_VISIBLE_DEVICES=1 python b.py &\n"
        "wait $A\npython c.py &\nwait $!\npython d.py &\nwait -n\n",
        base,
    )
    assert loaded.jobs["c"].after == ("a",)
    assert loaded.jobs["d"].after == ("c",)
    assert loaded.why("wait -n") == "waits for a process that is not known here"


def test_a_script_without_ampersands_keeps_its_order(base: Path) -> None:
    loaded = load(
        "CUDA_VISIBLE_DEVICES=0 python a.py\nCUDA_VISIBLE_DEVICES=0 python b.py\n"
        "CUDA_VISIBLE_DEVICES=0 python c.py\n",
        base,
    )
    assert [job.after for job in loaded.jobs.values()] == [(), ("a",), ("b",)]
    assert "# one after the other" in loaded.text


def test_under_set_e_and_after_and_and_the_next_needs_success(base: Path) -> None:
    strict = load("set -e\npython a.py\npython b.py\n", base)
    assert strict.jobs["b"].needs == ("a",)
    chain = load("CUDA_VISIBLE_DEVICES=0 python a.py && CUDA_VISIBLE_DEVICES=1 python b.py\n", base)
    assert chain.jobs["b"].needs == ("a",)
    assert chain.jobs["b"].after == ()


def test_nohup_logs_and_line_continuations_go_and_are_told(base: Path) -> None:
    loaded = load(
        "CUDA_VISIBLE_DEVICES=0 nohup python train.py \\\n"
        "    --lr 1e-3 \\\n"
        "    --out runs/a > a.log 2>&1 &\n",
        base,
    )
    assert loaded.run("train") == "python train.py --lr 1e-3 --out runs/a"
    assert "--detach" in loaded.why("nohup")
    assert "gpulaunch keeps the output" in loaded.why("> a.log")


@pytest.mark.parametrize(
    ("redirect", "kept"),
    [
        ("> out.tsv", True),
        ("> run.log", False),
        (">> train.log 2>&1", False),
        ("&> all.txt", False),
        ("> result.json 2> errors.txt", True),
        ("> /dev/null 2>&1", False),
        ("< input.txt", True),
        ("| tee run.log", True),
        ("2>&1 | grep loss > loss.txt", True),
    ],
)
def test_a_log_is_cut_and_real_output_stays(base: Path, redirect: str, kept: bool) -> None:
    loaded = load(f"CUDA_VISIBLE_DEVICES=0 python a.py {redirect} &\n", base)
    run = loaded.run("a")
    if kept:
        assert redirect.split(" 2> ")[0] in run
    else:
        assert run == "python a.py"
        assert loaded.remarks


def test_a_log_that_something_else_reads_stays(base: Path) -> None:
    loaded = load("python a.py > a.log\ngrep loss a.log > loss.txt\n", base)
    assert loaded.run("a") == "python a.py > a.log"


def test_a_loop_over_files_becomes_foreach(base: Path) -> None:
    loaded = load(
        "for f in in/*.fasta; do\n"
        '  CUDA_VISIBLE_DEVICES=1 chai-lab fold "$f" out/${f} > logs/$f.log 2>&1\n'
        "done\n",
        base,
    )
    assert list(loaded.jobs) == ["chai-lab-a", "chai-lab-b"]
    assert loaded.run("chai-lab-a") == "chai-lab fold \"in/a.fasta\" out/'in/a.fasta'"
    assert "as many run as have cards" in loaded.why("for f in")


def test_what_only_bash_can_do_with_a_loops_variable_is_left_to_bash(base: Path) -> None:
    loaded = load(
        "for f in in/*.fasta; do\n"
        "  name=$(basename ${f%.fasta})\n"
        "  if [ -e out/$name ]; then continue; fi\n"
        "  mkdir -p out/$name\n"
        "  CUDA_VISIBLE_DEVICES=0 fold $f out/$name &\n"
        "done\nwait\npython done.py\n",
        base,
    )
    assert loaded.env("fold-a")["f"] == "in/a.fasta"
    assert loaded.run("fold-a") == (
        "name=$(basename ${f%.fasta})\n"
        "if [ -e out/$name ]; then exit 0; fi\n"
        "mkdir -p out/$name\n"
        "fold $f out/$name"
    )
    assert loaded.jobs["done"].after == ("fold-a", "fold-b")


def test_a_loop_over_cards_becomes_one_entry(base: Path) -> None:
    loaded = load(
        "for i in 0 1 2 3; do\n"
        "  CUDA_VISIBLE_DEVICES=$i python train.py --fold $i &\n"
        "  sleep 5\n"
        "done\n",
        base,
    )
    assert list(loaded.jobs) == ["train-0", "train-1", "train-2", "train-3"]
    assert loaded.run("train-2") == "python train.py --fold '2'"
    assert "a card is free" in loaded.why("sleep 5")


def test_cards_dealt_out_round_robin_are_not_needed_any_more(base: Path) -> None:
    loaded = load(
        "GPUS=(0 1 2 3)\nn=0\n"
        "for f in in/*.fasta; do\n"
        "  gpu=${GPUS[$((n % 4))]}\n"
        "  CUDA_VISIBLE_DEVICES=$gpu fold $f &\n"
        "  n=$((n+1))\n"
        "  if (( n % 4 == 0 )); then wait; fi\n"
        "done\n",
        base,
    )
    assert list(loaded.jobs) == ["fold-a", "fold-b"]
    assert loaded.env("fold-a") == {}
    assert loaded.run("fold-a") == "fold 'in/a.fasta'"
    assert loaded.why("gpu=") == "only chose the card"
    assert loaded.why("GPUS=") == "read by no command that is left"


def test_a_counter_that_the_command_uses_is_told_rather_than_wrong(base: Path) -> None:
    loaded = load(
        "n=0\nfor f in in/*.fasta; do\n  python a.py $f --port $((8000+n)) &\n  ((n++))\ndone\n",
        base,
    )
    assert loaded.jobs == {}
    assert "{{index}}" in loaded.why("for f in")


def test_a_wait_inside_a_loop_is_item_by_item_and_ends_the_loop(base: Path) -> None:
    loaded = load(
        "for x in p q; do\n  CUDA_VISIBLE_DEVICES=0 python a.py $x &\n"
        "  CUDA_VISIBLE_DEVICES=1 python b.py $x &\n  wait\n  python c.py $x\ndone\n"
        "for x in p q; do python d.py $x & wait; done\npython e.py\n",
        base,
    )
    assert loaded.jobs["c-q"].after == ("a-q", "b-q")
    assert loaded.jobs["d-p"].after == ("c-p", "c-q")
    assert loaded.jobs["e"].after == ("d-p", "d-q")
    assert "one turn" in loaded.why("wait")


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("python -m pkg.tool x", "pkg.tool"),
        ("nohup timeout 1h nice -n 5 python a.py", "a"),
        ("bash -c 'python b.py && x'", "b"),
        ("torchrun --nproc_per_node=1 train.py", "train"),
        ("accelerate launch run/big.py", "big"),
        ("/opt/bin/fold x", "fold"),
        ("X=1 ./go.sh", "go"),
    ],
)
def test_a_job_is_called_after_its_program(base: Path, command: str, name: str) -> None:
    assert list(load(f"{command} &\n", base).jobs) == [name]


def test_nested_loops_become_a_matrix(base: Path) -> None:
    loaded = load(
        "for lr in 1e-3 1e-4; do for seed in {0..2}; do\n"
        "CUDA_VISIBLE_DEVICES=0 python t.py --lr $lr --seed $seed\ndone; done\n",
        base,
    )
    assert len(loaded.jobs) == 6
    assert "matrix:" in loaded.text
    assert "1e-4" in loaded.run("t-1e-4-2")


def test_the_words_of_a_file_are_its_lines_and_a_condition_goes_along(base: Path) -> None:
    loaded = load(
        "for x in $(cat list.txt); do python a.py $x & done\n"
        "if [ ! -e m.pt ]; then CUDA_VISIBLE_DEVICES=0,1 python b.py; fi\n",
        base,
    )
    assert loaded.run("a-1") == "python a.py 'z'"
    assert loaded.jobs["b"].demand.gpus == 2
    assert loaded.run("b") == "if [ ! -e m.pt ]; then python b.py; fi"


def test_what_stands_in_a_loop_that_is_spelt_out_is_told_at_its_own_line(base: Path) -> None:
    script = (
        "echo begin\ncat list.txt | while read -r name gpu; do\n  echo $name\n"
        "  CUDA_VISIBLE_DEVICES=$gpu nohup python a.py $name \\\n    --fast > $name.log &\ndone\n"
    )
    lines = {remark.text: remark.line for remark in load(script, base).remarks}
    assert lines == {"echo begin": 1, "echo $name": 3, "nohup": 4, "> $name.log": 5}


def test_lines_of_a_file_and_counting_loops(base: Path) -> None:
    loaded = load(
        'while read -r line; do python a.py "$line"; done < list.txt\n'
        "for ((i=1; i<=3; i++)); do python b.py $i & done\n",
        base,
    )
    assert loaded.run("a-0") == 'python a.py "x y"'
    assert sum(name.startswith("b-") for name in loaded.jobs) == 3


def test_directories_and_environments_are_remembered(base: Path) -> None:
    loaded = load(
        "source venv/bin/activate\n"
        "export OMP_NUM_THREADS=4 NAME='a b'\n"
        "DATA=/data/x\nRUN=$(date +%F)\n"
        "cd sub || exit 1\n"
        "python a.py $DATA &\n"
        "(cd .. && python b.py) &\n"
        "deactivate\n"
        "python c.py $RUN\n",
        base,
    )
    a, b, c = (loaded.jobs[name] for name in "abc")
    assert (a.venv, a.cwd) == (str(base / "venv"), str(base / "sub"))
    assert loaded.env("a") == {"OMP_NUM_THREADS": "4", "NAME": "a b", "DATA": "/data/x"}
    assert b.cwd == str(base)
    assert c.venv is None
    assert loaded.run("c") == "RUN=$(date +%F)\npython c.py $RUN"


def test_what_only_the_shell_can_know_stays_exported_and_assigned(base: Path) -> None:
    loaded = load(
        "export HF_HOME=$HOME/hf MODE=offline\nexport PATH=$PATH:/x\nRUN=$(date)\n"
        "python a.py &\npython b.py $RUN &\nUNUSED=3\n",
        base,
    )
    assert loaded.run("a") == "export HF_HOME=$HOME/hf\nexport PATH=$PATH:/x\npython a.py"
    assert loaded.run("b").endswith("RUN=$(date)\npython b.py $RUN")
    assert loaded.env("a") == {"MODE": "offline"}
    assert "read by no command" in loaded.why("UNUSED=3")


def test_as_many_cards_as_processes_where_the_script_has_no_mask(base: Path) -> None:
    loaded = load("torchrun --nproc_per_node=2 a.py &\n", base)
    assert loaded.jobs["a"].demand.gpus == 2


@pytest.mark.parametrize(
    ("line", "run"),
    [
        ("time CUDA_VISIBLE_DEVICES=0,1 python a.py", "time python a.py"),
        ("nohup env CUDA_VISIBLE_DEVICES=0,1 python a.py &", "python a.py"),
        ("env X=1 CUDA_VISIBLE_DEVICES=0,1 python a.py", "env X=1 python a.py"),
        ("timeout 1h env CUDA_VISIBLE_DEVICES=0,1 python a.py", "timeout 1h python a.py"),
        ("X=1 nice -n 5 env CUDA_VISIBLE_DEVICES=0,1 python a.py", "X=1 nice -n 5 python a.py"),
    ],
)
def test_a_mask_behind_wrappers_never_stays_in_the_command(base: Path, line: str, run: str) -> None:
    loaded = load(line, base)
    assert loaded.run("a") == run
    assert loaded.jobs["a"].demand.gpus == 2


def test_a_mask_that_is_another_programs_word_is_no_job(base: Path) -> None:
    loaded = load("podman run -e CUDA_VISIBLE_DEVICES=1 image\n", base)
    assert loaded.jobs == {}
    assert "override" in loaded.why("CUDA_VISIBLE_DEVICES")


def test_what_is_left_when_all_work_is_lost_is_no_job_list(base: Path) -> None:
    script = "mkdir -p out\ntmux new -d 'python b.py'\nls out | wc -l\n"
    assert load(script, base).jobs == {}
    assert list(load("mkdir -p out\nexit 0\n", base).jobs) == ["mkdir"]


@pytest.mark.parametrize(
    "line",
    [
        'for i in 0 1; do tmux new-session -d -s $i "CUDA_VISIBLE_DEVICES=$i python a.py"; done',
        'for i in 0 1; do screen -dmS s$i bash -c "CUDA_VISIBLE_DEVICES=$i python a.py"; done',
        "if [ -e x ]; then nohup tmux new -d 'CUDA_VISIBLE_DEVICES=1 python a.py'; fi",
        "(cd sub; docker run -d --gpus device=1 image python a.py) &",
        "for h in a b; do ssh $h 'CUDA_VISIBLE_DEVICES=0 python a.py' & done",
        "echo 'CUDA_VISIBLE_DEVICES=1 python a.py' | at now",
        "echo 'CUDA_VISIBLE_DEVICES=1 python a.py' | bash",
        "python run.py --cmd 'CUDA_VISIBLE_DEVICES=1 python a.py'",
        "if [ -e x ]; then CUDA_VISIBLE_DEVICES=0 python a & CUDA_VISIBLE_DEVICES=1 python b & fi",
    ],
)
def test_nothing_that_would_run_outside_of_its_job_or_its_card_becomes_one(
    base: Path, line: str
) -> None:
    loaded = load(f"{line}\n", base)
    assert loaded.jobs == {}
    assert loaded.remarks


def test_what_is_not_translated_stands_at_the_files_end(base: Path) -> None:
    loaded = load("python a.py\ntmux new -d 'python b.py'\n", base)
    assert list(loaded.jobs) == ["a"]
    assert f"# line 2: {loaded.why('tmux')}\n#     tmux new -d 'python b.py'\n" in loaded.text


def test_conda_is_named_without_its_shell_functions(base: Path, tmp_path: Path) -> None:
    prefix = tmp_path / "env"
    (prefix / "conda-meta").mkdir(parents=True)
    loaded = load(
        'eval "$(conda shell.bash hook)"\nsource ~/miniconda3/etc/profile.d/conda.sh\n'
        f"conda activate {prefix}\nCUDA_VISIBLE_DEVICES=0 python a.py\n",
        base,
    )
    assert loaded.jobs["a"].conda == str(prefix)
    assert "not needed" in loaded.why("eval")


def test_a_subshell_in_the_background_is_one_job(base: Path) -> None:
    loaded = load(
        "(cd sub; CUDA_VISIBLE_DEVICES=1 python a.py; CUDA_VISIBLE_DEVICES=1 python b.py) &\n"
        "CUDA_VISIBLE_DEVICES=0 python c.py &\n",
        base,
    )
    assert loaded.run("a") == "set +e; python a.py; python b.py"
    assert loaded.jobs["a"].cwd == str(base / "sub")
    assert loaded.jobs["c"].cwd == str(base)
    assert loaded.jobs["c"].after == ()


def test_a_subshell_on_two_cards_is_two_jobs_in_turn(base: Path) -> None:
    loaded = load(
        "(CUDA_VISIBLE_DEVICES=0 python a.py; CUDA_VISIBLE_DEVICES=1 python b.py) &\nwait\n"
        "python c.py\n",
        base,
    )
    assert loaded.jobs["b"].after == ("a",)
    assert loaded.jobs["c"].after == ("b",)


def test_no_variable_that_a_job_file_may_not_set_gets_into_one(base: Path) -> None:
    script = "".join(f"export {name}=0\n{name}=1 python a.py &\n" for name in sorted(MASKS))
    loaded = load(script, base)
    assert len(loaded.jobs) == len(MASKS)
    assert all(not loaded.env(name) for name in loaded.jobs)
    assert all(loaded.run(name) == "python a.py" for name in loaded.jobs)


def test_items_whose_stems_may_be_alike_are_told_apart_by_number(base: Path) -> None:
    for name in ("a.fa", "a.fb"):
        (base / name).touch()
    loaded = load("for f in a.f*; do python a.py $f & done\n", base)
    assert list(loaded.jobs) == ["a-0", "a-1"]


def test_env_and_an_assignment_before_the_command(base: Path) -> None:
    loaded = load(
        "env CUDA_VISIBLE_DEVICES=2 python a.py &\n"
        "CUDA_DEVICE_ORDER=PCI_BUS_ID CUDA_VISIBLE_DEVICES=0 HF_HUB_OFFLINE=1 python b.py &\n",
        base,
    )
    assert loaded.run("a") == "python a.py"
    assert loaded.run("b") == "HF_HUB_OFFLINE=1 python b.py"
    assert "gpulaunch itself" in loaded.why("CUDA_DEVICE_ORDER")


def test_a_literal_ordinal_in_the_command_is_pointed_at(base: Path) -> None:
    loaded = load("python a.py --device cuda:1 &\npython b.py --device cuda:0 &\n", base)
    assert loaded.run("a") == "python a.py --device cuda:1"
    assert "sees one card, cuda:0" in loaded.why("cuda:1")
    assert len(loaded.remarks) == 1


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ('python a.py "$1"', "command line"),
        ("python a.py $OUT/$2/$(x)", "command line"),
        ("exit 0", "--fail-fast"),
        ("echo starting", "only prints"),
        ("tmux new -d 'python a.py'", "another terminal"),
        ("f() { python a.py; }", "a function"),
        ("while true; do python a.py; done", "until something becomes true"),
        ("for f in $(find . -name x); do python a.py $f; done", "only the shell can know"),
        ('for f in "$@"; do python a.py $f; done', "only the shell can know"),
        ("module swap gcc cuda", "only loads them"),
        ("module load $X", "only loads them"),
        ("ml -cuda", "only loads them"),
        ("module", "only loads them"),
        ("if true; then export CUDA_VISIBLE_DEVICES=1; fi", "under a condition"),
        ("ssh host 'python a.py'", "another machine"),
        ("while [ $(jobs -r | wc -l) -ge 4 ]; do sleep 1; done", "only waits"),
    ],
)
def test_what_has_no_counterpart_is_told_with_its_line(base: Path, line: str, why: str) -> None:
    loaded = load(f"\n\n{line}\n", base)
    assert loaded.jobs == {}
    (remark,) = loaded.remarks
    assert why in remark.why
    assert remark.line == 3
    assert loaded.text == ""


def test_modules_are_loaded_for_the_jobs_that_come_after_them(base: Path) -> None:
    loaded = load(
        "V=12.4\nmodule load gcc/13 cuda/$V\npython a.py\nml python\n(ml load x; python b.py)\n"
        "python c.py\nmodule purge\npython d.py\n{ module load y; python e.py; } &\n",
        base,
    )
    both = ("gcc/13", "cuda/12.4")
    found = {name: job.modules for name, job in loaded.jobs.items()}
    assert found == {
        "a": both,
        "b": (*both, "python", "x"),
        "c": (*both, "python"),
        "d": (),
        "e": ("y",),
    }
    assert loaded.remarks == ()


def test_a_line_that_bash_could_not_read_is_told_whole(base: Path) -> None:
    loaded = load('python a.py\npython b.py "unterminated\n', base)
    assert list(loaded.jobs) == ["a"]
    assert {remark.why for remark in loaded.remarks} == {"could not be read as bash"}
    assert {remark.line for remark in loaded.remarks} == {2}


def test_a_call_of_a_function_is_what_the_function_does(base: Path) -> None:
    loaded = load("f() {\n  python a.py $1\n}\nCUDA_VISIBLE_DEVICES=0,1 f x &\n", base)
    assert loaded.run("a") == "python a.py x"
    assert loaded.jobs["a"].demand.gpus == 2
    assert loaded.remarks == ()


def test_a_call_of_a_function_that_is_defined_twice_is_told(base: Path) -> None:
    loaded = load("f() { python a.py; }\nf() { python b.py; }\nf x &\n", base)
    assert loaded.jobs == {}
    assert "a function of the script (line 2)" in loaded.why("f x")


@pytest.mark.parametrize(
    "script",
    [
        "if [ -e x ]; then\npython a.py &\nfi",
        "if [ -e x ]; then python a.py & else sleep 1; fi",
        "(if [ -e x ]; then python a.py & fi) &",
        "case $HOST in x) python a.py & ;; esac",
        "true && { python a.py & }",
    ],
)
def test_a_job_that_would_not_wait_for_its_work_is_refused(base: Path, script: str) -> None:
    loaded = load(script + "\n", base)
    assert loaded.jobs == {}
    assert "in the background that a job would not wait for" in loaded.why("a.py")


def test_quotes_here_documents_and_placeholders_of_the_script_survive(base: Path) -> None:
    loaded = load(
        "python a.py '{{x}}' \"it's: # \\\"q\\\"\" $'\\t' &\n"
        "python - <<'EOF' &\nprint('$x {{y}}')\n  more\nEOF\n",
        base,
    )
    assert loaded.run("a") == "python a.py '{{x}}' \"it's: # \\\"q\\\"\" $'\\t'"
    assert loaded.run("python") == "python - <<'EOF' \nprint('$x {{y}}')\n  more\nEOF"


def test_names_are_distinct_and_never_match_each_others_patterns(base: Path) -> None:
    loaded = load(
        "for i in 0 1; do python a.py $i & done\npython a-b.py &\npython a.py &\nwait\n"
        "python z.py\n",
        base,
    )
    assert len(loaded.jobs) == 5
    assert len(loaded.jobs["z"].after) == 4


def test_an_empty_script_and_windows_lines_are_fine(base: Path) -> None:
    assert load("", base).jobs == {}
    assert load("CUDA_VISIBLE_DEVICES=0 python a.py &\r\n", base).run("a") == "python a.py"


def test_a_variable_that_is_read_without_a_dollar_is_given_to_the_job(base: Path) -> None:
    loaded = load(
        "S=(pond lake)\nN=${#S[@]}\nfor ((i=0; i<${#S[@]}; i++)); do\n"
        "  CUDA_VISIBLE_DEVICES=0 python a.py ${S[i]} &\ndone\n"
        "for k in $(seq 0 $((N - 1))); do CUDA_VISIBLE_DEVICES=$k python b.py ${S[k]:0:2} & done\n",
        base,
    )
    assert [loaded.env(f"a-{number}")["i"] for number in (0, 1)] == ["0", "1"]
    assert [loaded.env(f"b-{number}")["k"] for number in (0, 1)] == ["0", "1"]


def test_a_function_that_calls_itself_is_told(base: Path) -> None:
    script = 'f() { g $1; }\ng() { f $1; }\nh() { h "$@"; }\nf 1\nh 2\n'
    loaded = load(script, base)
    assert loaded.jobs == {}
    assert "a function of the script (line 1)" in loaded.why("f 1")


def test_what_is_nested_beyond_reading_is_told(base: Path) -> None:
    loaded = load("(" * 3000 + "python a.py" + ")" * 3000 + "\n", base)
    assert loaded.jobs == {}
    assert len(loaded.remarks) == 1


def test_xargs_with_several_items_a_process_is_told(base: Path) -> None:
    loaded = load("ls in | xargs -n 2 -P 4 python a.py\n", base)
    assert loaded.jobs == {}
    assert "every 2 items" in loaded.why("xargs")
    assert list(load("ls in | xargs python a.py\n", base).jobs) == ["a"]


def test_what_starts_ranks_with_masks_of_their_own_is_told(base: Path) -> None:
    loaded = load("mpirun -np 2 bash -c 'CUDA_VISIBLE_DEVICES=$RANK python a.py'\n", base)
    assert loaded.jobs == {}


def test_batch_options_are_taken_over_or_said(base: Path) -> None:
    loaded = load(
        "#!/bin/bash\n#SBATCH --gres=gpu:2 -t 0-01:30\n#SBATCH -c 4\n#SBATCH --mem=10G\n"
        "#SBATCH --qos=high\npython a.py $SLURM_JOB_ID\n",
        base,
    )
    job = loaded.jobs["a"]
    assert (job.demand.gpus, job.demand.cpus, job.timeout) == (2, 4, 5400)
    assert "host memory" in loaded.why("--mem")
    assert "only Slurm" in loaded.why("--qos")
    assert "only Slurm sets it" in loaded.why("$SLURM_JOB_ID")
    assert load("#!/bin/bash\n#SBATCH --nodes=2\npython a.py\n", base).jobs == {}


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("parallel --link x {1} {2} ::: 0 1 ::: a b", "pairs its sources"),
        ("parallel x ::: a :::+ b", "pairs its sources"),
        ("parallel -S host x ::: a", "other machines"),
        ("parallel -N2 x ::: a b", "several items at once"),
        ("parallel --colsep , x {2} :::: t.csv", "columns"),
        ("parallel x {= $_ =} ::: a", "Perl"),
        ("parallel x --device {%} ::: a b", "cuda:0"),
        ("parallel --pipe x ::: a", "no counterpart"),
        ("ls in | head -3 | parallel x", "only the shell can know"),
        ("parallel -j2 < commands.txt", "runs the lines of a file"),
    ],
)
def test_what_of_gnu_parallel_has_no_counterpart_is_told(base: Path, line: str, why: str) -> None:
    loaded = load(f"{line}\n", base)
    assert loaded.jobs == {}
    assert why in loaded.why("parallel")


def test_a_slots_name_that_is_no_name_is_taken_as_it_is(base: Path) -> None:
    script = "seq 0 1 | xargs -n 1 -P 2 --process-slot-var='A)B' python a.py\n"
    assert len(load(script, base).jobs) == 2


@pytest.mark.parametrize(
    ("asked", "cards", "said"),
    [
        ("--gres=gpu:a100:1", None, "engine: {slurm: {gres: a100}} in the job asks for a100"),
        ("--gpus=h100:2", 2, "engine: {slurm: {gres: h100}} in the job asks for h100"),
        ("--gres=gpu:v100", None, "engine: {slurm: {gres: v100}} in the job asks for v100"),
        ("--gres=gpu:2,lscratch:10", 2, "only Slurm knows of lscratch:10"),
        ("--gres=gpu:$N", None, "$N is no plain number of cards: the job file says 1"),
        ("--gres=gpu:2", 2, ""),
        ("--gpus=2", 2, ""),
    ],
)
def test_what_of_the_cards_asked_of_slurm_a_job_file_does_not_say_is_told(
    asked: str, cards: int | None, said: str
) -> None:
    script = f"#!/bin/bash\n#SBATCH {asked}\npython train.py\n"
    told = translate(script, "s.sh")
    assert [remark.why.endswith(said) for remark in told.untranslated] == ([True] if said else [])
    assert ("gpus: 2" in told.yaml_text) == (cards == 2)
    line = f"{asked} python train.py &"
    of_srun = translate(f"CUDA_VISIBLE_DEVICES=0 srun {line}\n", "s.sh")
    assert [remark.why.endswith(said) for remark in of_srun.untranslated] == (
        [True] if said else []
    )


@pytest.mark.parametrize("flags", ["-v", "-Q --verbose", "-O", "-vl --exact"])
def test_options_of_srun_without_a_value_leave_the_command_whole(flags: str) -> None:
    made = translate(f"srun {flags} --gres=gpu:1 python train.py\n", "s.sh")
    assert yaml.safe_load(made.yaml_text)["jobs"][0]["run"] == "python train.py"


@pytest.mark.parametrize(
    ("script", "run"),
    [
        ("bash -c 'A=0 a; b' &", "set +e; a; b"),
        ("set -e\nbash -c 'A=0 a; b' &", "set +e; a; b"),
        ("bash -ec 'A=0 a; b' &", "a; b"),
        ("(A=0 a; b) &", "set +e; a; b"),
        ("set -e\n(A=0 a; b) &", "a; b"),
        ("(A=0 a && b) &", "a && b"),
        ("(export A=0 && a && b) &", "a && b"),
        ("(A=0 a | b) &", "a | b"),
        ("(echo on; A=0 a) &", "a"),
        ("(A=0 a || b; c) &", "set +e; a || b; c"),
        (
            "(export A=0; for x in 1 2; do a $x; done; b) &",
            "set +e; for x in 1 2; do a $x; done; b",
        ),
        ("f() { A=$1 a; b; }\nf 0 &", "set +e; a; b"),
        ("for x in 1 2; do A=0 a $x; b; done", "set +e\na {{item}}\nb"),
    ],
)
def test_what_fails_ends_a_job_only_where_it_ended_the_script(
    base: Path, script: str, run: str
) -> None:
    made = translate(script.replace("A=", "CUDA_VISIBLE_DEVICES="), "x.sh").yaml_text
    (job,) = yaml.safe_load(made)["jobs"]
    assert job["run"].strip() == run
