"""Programs, scripts and functions that are not there: told for certain ones, and for no others."""

from __future__ import annotations

import os
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from gpulaunch.base.errors import JobFileError
from gpulaunch.diagnose.lint.absent import looking
from gpulaunch.jobfile.file_keys import Surroundings
from gpulaunch.jobfile.load import load_text

ENVIRON = {"HOME": "/nonexistent", "PATH": "/usr/bin:/bin"}


@pytest.fixture
def here(tmp_path: Path) -> Path:
    for name in ("predict.py", "sub/y.py", "env/bin/activate", "set.sh", "dir/__main__.py"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")
    (tmp_path / "makes.py").write_text("open('made.py', 'w')")
    (tmp_path / "fold.py").write_text(MODULE)
    tool = tmp_path / "env" / "bin" / "tool"
    tool.write_text("")
    tool.chmod(0o755)
    (tmp_path / "env" / "bin" / "python").symlink_to("/bin/true")
    return tmp_path


MODULE = """
import os, sys as system
from json import loads as parse
if True:
    def predict(item): pass
class Fold:
    def run(self, item): pass
a = b = lambda item: 1
try:
    import torch
except ImportError:
    torch = None
def _inner():
    def hidden(item): pass
"""


def told(here: Path, fields: str, more: str = "", cluster: bool = False) -> list[str]:
    """The messages for a job of these fields, without the directory."""
    text = f"jobs: [{{{fields}}}]\n{more}".encode()
    look = looking(ENVIRON, cluster)
    try:
        load_text(text, Surroundings(ENVIRON, look=look), name="jobs.yaml", base=here)
    except JobFileError as error:
        return [one.message.replace(f"{here}/", "") for one in error.found]
    return []


ABSENT = {
    "run: python predikt.py": "predikt.py does not exist; did you mean predict.py?",
    "run: python3 -u -W ignore predikt.py --x": "predikt.py does not exist",
    "run: CUDA_LAUNCH_BLOCKING=1 nohup python predikt.py > log 2>&1": "predikt.py does not exist",
    "run: 'set -x; export A=1; mkdir -p d; cd sub && python x.py'": "sub/x.py does not exist",
    "run: 'cd sub || exit 1; python x.py'": "sub/x.py does not exist",
    "run: python x.py, cwd: sub": "sub/x.py does not exist",
    "run: 'python predict.py && python z.py'": "z.py does not exist",
    "run: 'S=z.py; python $S'": "z.py does not exist",
    "run: 'source env/bin/activate && python z.py'": "z.py does not exist",
    "run: 'source set2.sh && python z.py'": "set2.sh does not exist",
    "run: bash z.sh a b": "z.sh does not exist",
    "run: ./z.sh": "z.sh does not exist",
    "run: ./set.sh": "set.sh is not executable",
    "run: ./sub": "sub is a directory",
    "run: torchrun --nproc-per-node 2 train.py": "train.py does not exist",
    "run: [python3, predikt.py]": "predikt.py does not exist",
    "run: [python3, ~/x.py]": "~/x.py does not exist: in a list, ~ is no directory",
    "run: [bash, -c, 'python z.py']": "z.py does not exist",
    "run: 'source ~/env/bin/activate; python x.py'": "/nonexistent/env/bin/activate does not",
    "run: 'python3.99 z.py', container: a": "z.py does not exist",
    "run: ./z.sh, container: a": "z.sh does not exist",
    "run: ./set.sh, container: {image: a, mounts: ['sub:/x']}": "set.sh is not executable",
    "run: 'cd sub; python x.py', container: a": "sub/x.py does not exist",
    "run: [no-such-program, x]": "there is no program no-such-program in PATH",
    "run: [set.sh]": "there is no program set.sh in PATH; write ./set.sh",
    "run: [./z, x]": "z does not exist",
    "run: x, shell: no-such-shell": "there is no program no-such-shell in PATH",
    "run: 'python {{item}}.py', foreach: {values: [predict, zz]}": "zz.py does not exist",
    "run: [python3, z.py, '{{path}}'], gpus: 1, foreach: 'sub/*'": "z.py does not exist",
    "worker: 'fold.py:predikt'": "there is no predikt in fold.py; did you mean predict?",
    "worker: 'fold:predikt'": "there is no predikt in fold.py; did you mean predict?",
    "worker: 'fold.py:hidden'": "there is no hidden in fold.py",
    "worker: {function: 'fold.py:predict', load: 'fold.py:lod'}": "there is no lod in fold.py",
    "worker: {run: [no-such-program]}": "there is no program no-such-program in PATH",
    "worker: {run: [python3, z.py]}": "z.py does not exist",
}


@pytest.mark.parametrize("fields", ABSENT)
def test_what_is_certain_to_be_missing_is_a_mistake(here: Path, fields: str) -> None:
    (message,) = told(here, fields)
    assert message.startswith(ABSENT[fields])


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may be somebody else for a while")
def test_a_program_that_this_user_may_not_reach_is_told_as_that() -> None:
    with TemporaryDirectory() as made:
        os.chmod(made, 0o755)
        (Path(made) / "shut").mkdir(mode=0o700)
        os.seteuid(65534)
        try:
            assert told(Path(made), "run: [./shut/tool]") == [
                "shut/tool: this user may not enter shut"
            ]
        finally:
            os.seteuid(0)


THERE = [
    "run: python predict.py",
    "run: python dir",
    "run: python -m predikt",
    "run: python -c 'import x'",
    "run: python - < x",
    "run: python --some-option z.py",
    "run: 'python $SCRIPT; python ${HOME}/x.py'",
    "run: 'python {{out}}/made.py'",
    "run: 'python {{batch_dir}}/x.py', foreach: 'sub/*', batch: 1",
    "run: '[ -f z.py ] && python z.py'",
    "run: 'if [ -f z.py ]; then python z.py; fi'",
    "run: 'test -f z.py && python z.py'",
    "run: python z.py || true",
    "run: 'for f in *.py; do python $f; done'",
    "run: 'git clone x && python x/z.py'",
    "run: 'echo x > z.py; python z.py'",
    "run: 'curl -O x; python z.py'",
    "run: 'python makes.py && python made.py'",
    "run: 'f() { python z.py; }; git clone x; f'",
    "run: '(cd sub; python y.py); python predict.py'",
    "run: 'cd $DIR && python z.py'",
    "run: 'cd sub || cd dir; python z.py'",
    "run: 'source set.sh && python z.py'",
    "run: 'source ~/env/bin/activate && python predict.py', env: {HOME: '{{out}}'}",
    "run: docker run image python z.py",
    "run: [no-such-program, x], container: a",
    "run: x, shell: no-such-shell, container: a",
    "run: 'python /opt/z.py; /opt/run.sh', container: a",
    "run: [/opt/run.sh], container: a",
    "run: python ../z.py, container: a",
    "run: bash z.sh, container: a",
    "run: python t/z.py, foreach: predict.py, container: {image: a, mounts: ['sub:{{dir}}/t']}",
    "run: apptainer exec a.sif python /opt/z.py",
    "run: conda run -n x python z.py",
    "run: ssh host python z.py",
    "run: uv run z.py",
    "run: torchrun --no-python z.py",
    "run: no-such-program x",
    "run: 'python z.py # gpulaunch: ok'",
    "run: \"echo 'python z.py'\"",
    "run: 'cat <<X\npython z.py\nX'",
    "run: [tool, x], venv: env",
    "run: [no-such-program], env: {PATH: '{{out}}/bin'}",
    "run: [env, A=1, no-such-program]",
    "run: [python3, '{{out}}/z.py']",
    "run: ['{{item}}', x], foreach: {values: [ls]}",
    "run: [bash, set.sh]",
    "run: bash ls",
    "run: x, shell: [zsh, -c], needs: [b]",
    "run: python z.py, needs: [b]",
    "run: [no-such-program], after: [b]",
    "worker: 'fold.py:predict'",
    "worker: 'fold.py:Fold.run'",
    "worker: 'fold.py:b'",
    "worker: 'fold.py:parse'",
    "worker: 'fold.py:torch.compile'",
    "worker: 'json:loads'",
    "worker: {function: 'fold.py:predict', load: 'fold.py:a'}",
]


@pytest.mark.parametrize("fields", THERE)
def test_what_may_be_there_is_believed(here: Path, fields: str) -> None:
    text = f"jobs: [{{{fields}}}, {{name: b, run: x}}]".encode()
    load_text(text, Surroundings(ENVIRON, look=looking(ENVIRON, False)), name="j", base=here)


@pytest.mark.parametrize(
    "text",
    [
        "from other import *",
        "globals()['predict'] = 1",
        "def __getattr__(name): pass",
        "def broken(:",
        "exec('def predict(x): pass')",
        "import sys\nsys.modules[__name__].predict = 1",
    ],
)
def test_a_module_that_may_make_any_name_is_believed(here: Path, text: str) -> None:
    (here / "odd.py").write_text(text)
    assert told(here, "worker: 'odd.py:predict'") == []


def test_a_worker_file_is_not_executed(here: Path) -> None:
    (here / "odd.py").write_text("open('ran', 'w')\ndef f(item): pass")
    assert told(here, "worker: 'odd.py:g'") == ["there is no g in odd.py"]
    assert not (here / "ran").exists()


def test_on_a_cluster_nodes_have_programs_and_directories_of_their_own(here: Path) -> None:
    for fields in ("run: [no-such-program]", "run: python /opt/z.py", "run: /opt/z"):
        assert told(here, fields, cluster=True) == []
    assert told(here, "run: python z.py", cluster=True) == ["z.py does not exist"]


def test_a_directory_that_may_not_be_read_may_hold_it(here: Path) -> None:
    if os.geteuid() == 0:
        pytest.skip("root reads everything")
    (here / "sub").chmod(0)
    assert told(here, "run: python sub/z.py") == []


def test_the_word_is_pointed_at(here: Path) -> None:
    text = b"jobs:\n  - run: |\n      cd sub\n      python x.py\n"
    with pytest.raises(JobFileError) as caught:
        load_text(text, Surroundings(ENVIRON, look=looking(ENVIRON, False)), name="j", base=here)
    assert caught.value.mistakes[0].startswith(f"j:4:14: jobs[0].run: {here}/sub/x.py does not")


ALL = """
defaults: {walltime: 1h}
jobs:
  - {name: a, run: python predikt.py, gpus: x}
  - {name: "b-{{stem}}", run: [python3, zz.py, "{{path}}"], foreach: none/*.fa}
  - {name: c, run: x, foreach: none/*.fa, needs: [nobody, "b-*", a]}
  - {name: d, run: x, needs: [e, b-1, x-1], timeout: soon}
  - {name: e, run: x, needs: [d]}
  - {name: f, worker: "fold.py:predikt", retries: -1}
  - {name: g, run: x, cwd: nowhere, matrix: {a: []}}
  - {name: "h-{{k}}", run: x, foreach: {values: [1]}, timeout: "{{item}}x", cpus: 0}
"""


def test_everything_that_is_wrong_is_told_at_once(here: Path) -> None:
    with pytest.raises(JobFileError) as caught:
        load_text(
            ALL.encode(), Surroundings(ENVIRON, look=looking(ENVIRON, False)), name="j", base=here
        )
    found = {(one.field, one.message.partition(";")[0]) for one in caught.value.found}
    assert ("defaults.walltime", "unknown key") in found
    fields = {field for field, _ in found}
    assert fields == {
        "defaults.walltime",
        *("jobs[0].gpus", "jobs[0].run", "jobs[1].foreach", "jobs[1].run[1]"),
        *("jobs[2].foreach", "jobs[2].needs[0]", "jobs[3].needs", "jobs[3].needs[2]"),
        *("jobs[3].timeout", "jobs[5].worker", "jobs[5].retries", "jobs[6].cwd"),
        *("jobs[6].matrix.a", "jobs[7].name", "jobs[7].cpus"),
    }


@pytest.mark.parametrize(
    ("text", "typed", "place"),
    [
        ("jobs: [{run: echo, modules: gone, gpuss: 1}]", [], "jobs[0].modules: "),
        ("jobs: [{run: echo, modules: gone, foreach: '*.none'}]", [], "jobs[0].modules: "),
        ("{defaults: {modules: gone}, jobs: [{run: echo}]}", [], "defaults.modules: "),
        ("jobs: [{run: echo}]", ["modules=gone"], "--default modules=gone: "),
        ("jobs: [{run: echo, modules: here}]", ["modules=gone"], ""),
        ("jobs: [{run: echo, modules: null}]", ["modules=gone"], ""),
        ("defaults: {modules: x} # gpulaunch: ok\njobs: [{run: echo}]", [], ""),
        (
            "defaults: {modules: x} # gpulaunch: ok\njobs: [{run: echo}]",
            ["modules=gone"],
            "--default modules=gone: ",
        ),
    ],
)
def test_modules_that_are_not_there_are_told_beside_the_others_wherever_they_stand(
    here: Path, text: str, typed: list[str], place: str
) -> None:
    (here / "init").mkdir()
    (here / "init/bash").write_text("module() { [[ $2 == here ]]; }")
    environ = {**ENVIRON, "MODULESHOME": str(here)}
    around = Surroundings(environ, defaults=typed, look=looking(environ, False))
    told: list[str] = []
    try:
        load_text(text.encode(), around, name="j", base=here)
    except JobFileError as error:
        told = [one.text for one in error.found if "module load gone" in one.text]
    assert bool(told) is bool(place)
    assert all(f"{place}module load gone: there is none on " in one for one in told)


def test_a_thousand_items_cost_a_few_looks(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[str] = []
    stat = os.stat

    def counted(path: str, *more: object, **named: object) -> os.stat_result:
        looks.append(str(path))
        return stat(path, *more, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "stat", counted)
    items = ", ".join(map(str, range(1000)))
    assert (
        told(here, f"run: 'python predict.py {{{{item}}}}', foreach: {{values: [{items}]}}") == []
    )
    assert sum(path.endswith("predict.py") for path in looks) < 5
