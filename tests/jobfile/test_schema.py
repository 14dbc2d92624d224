"""The JSON Schema accepts what the loader accepts, and knows bad files when it sees them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from gpulaunch.base.errors import JobFileError, UsageError
from gpulaunch.jobfile.fields import FIELDS
from gpulaunch.jobfile.file_keys import Surroundings
from gpulaunch.jobfile.load import load_text
from gpulaunch.jobfile.schema import OF_FILE, OF_JOB, explained, schema

HERE = Path(__file__).parent
VALIDATOR = jsonschema.Draft202012Validator(schema())
ROOT = HERE.parent.parent
CONFIGS = sorted((ROOT / "configs").glob("*.yaml"))
SHIPPED = [*CONFIGS, *sorted((ROOT / "examples").glob("*/*.y*ml"))]


class Editor(yaml.SafeLoader):
    """Reads scalars as editors do, by YAML 1.2: `on`, `yes` and `no` are text."""


Editor.yaml_implicit_resolvers = {
    first: [(tag, regexp) for tag, regexp in known if not tag.endswith(":bool") or first in "tTfF"]
    for first, known in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def accepts(text: str, loader: type = Editor) -> bool:
    return VALIDATOR.is_valid(yaml.load(text, loader))  # type: ignore[no-any-return]


def test_it_is_a_schema() -> None:
    jsonschema.Draft202012Validator.check_schema(schema())


@pytest.mark.parametrize("loader", [Editor, yaml.BaseLoader, yaml.SafeLoader])
@pytest.mark.parametrize("path", [*(HERE / "good").glob("*.yaml"), *CONFIGS], ids=lambda p: p.stem)
def test_good_files_pass(path: Path, loader: type) -> None:
    # Merge keys are resolved by loaders, not by the schema; the base loader leaves them.
    text = path.read_text().replace("<<: *base\n    ", "").replace("&base\n    ", "")
    errors = [e.message for e in VALIDATOR.iter_errors(yaml.load(text, loader))]
    assert errors == [] or (loader is yaml.BaseLoader and "null" in text)


@pytest.mark.parametrize("name", ["fields", "foreach"])
def test_bad_files_fail(name: str) -> None:
    assert not accepts((HERE / "bad" / f"{name}.yaml").read_text())


BOTH = {
    "gpus: 2": True,
    "gpus: '2'": True,
    "gpus: '{{n}}'": None,
    "gpus: two": False,
    "gpus: -1": False,
    "gpuz: 2": False,
    "gpu_memory: 20GiB": True,
    "gpu_memory: 20": False,
    "memory: 64GB": True,
    "memory: '{{n}}GB'": None,
    "memory: lots": False,
    "timeout: 90": True,
    "timeout: 1h30m": True,
    "timeout: soon": False,
    "timeout: null": True,
    "retries: 3": True,
    "retries: {times: 2, on: gpu_oom, delay: 30s}": True,
    "retries: {on: [nonsense]}": False,
    "retries: {onn: exit}": False,
    "env: {A: 1, B: null, C: x}": True,
    "env: {CUDA_VISIBLE_DEVICES: 1}": False,
    "env: [A]": False,
    "success_codes: [0, 1]": True,
    "success_codes: 3": True,
    "success_codes: []": False,
    "uses: []": True,
    "outputs: a": True,
    "cost: 1e3": True,
    "cost: big": False,
    "cpus: 0": False,
    "per_gpu: 0": False,
    "priority: -4": True,
    "first: yes, matrix: {a: [1, 2]}": True,
    "first: maybe, matrix: {a: [1, 2]}": False,
    "matrix: {a: [1, 2], exclude: [{a: 1}]}": True,
    "matrix: {out: [1, 2]}": False,
    "matrix: {}": False,
    "matrix: {a: []}": False,
    "foreach: {values: [1, 2]}": True,
    "foreach: {values: []}": False,
    "foreach: {values: [1], lines: x}": False,
    "foreach: []": False,
    "service: {ready: 'tcp:{{port}}'}": True,
    "service: {ready: 'udp:1'}": False,
    "service: {}": False,
    "visible: uuid": True,
    "visible: name": False,
    "isolation: env": True,
    "isolation: strict": True,
    "isolation: cage": False,
    "preload: [torch, chai_lab.chai1]": True,
    "preload: auto": True,
    "preload: no": True,
    "preload: []": False,
    "preload: [a-b]": False,
    "explain: true": True,
    "explain: maybe": False,
    "inherit_ranks: true": True,
    "shell: [sh, -c]": True,
    "name: ''": False,
    "tty: x": False,
    "engine: x": False,
    "engine: null": True,
    "engine: {slurm: {partition: gpu, account: lab, qos: long, gres: a100, extra: [-H]}}": True,
    "engine: {slurm: {extra: --mem=4G -C a100, account: null}}": True,
    "engine: {slurm: {extra: []}}": True,
    "engine: {slurm: null}": True,
    "engine: {slurm: {gres: '{{n}}'}}": None,
    "engine: {slurm: {partiton: gpu}}": False,
    "engine: {slurm: {partition: [a, b]}}": False,
    "engine: {slurm: [a]}": False,
    "engine: {slrum: {}}": False,
    "worker: 'a.b:f'": False,
    "container: vllm/vllm-openai:latest": True,
    "container: '{{n}}'": None,
    "container: ''": False,
    "container: [a]": False,
    "container: null": True,
    "container: {image: a, engine: docker, mounts: /tmp, args: --ipc=host, user: 0}": True,
    "container: {image: a, mounts: [/tmp, '/tmp:/x:ro', {source: /tmp, target: /y}]}": True,
    "container: {image: a, mounts: [{source: /tmp, read_only: true}], pull: never}": True,
    "container: {image: a, mounts: [{source: /tmp, target: x}]}": False,
    "container: {image: a, mounts: [{target: /x}]}": False,
    "container: {image: a, args: [--shm-size, 8g], user: 1000:1000}": True,
    "container: {image: a, user: root}": False,
    "container: {image: a, user: caller}": True,
    "container: {image: a, pull: sometimes}": False,
    "container: {image: a, engine: lxc}": False,
    "container: {engine: docker}": False,
    "container: {image: a, imag: b}": False,
}


@pytest.mark.parametrize("fields", BOTH)
def test_loader_and_schema_agree(fields: str) -> None:
    text = f"jobs: [{{run: x, {fields}}}]"
    expected = BOTH[fields]
    try:
        load_text(text.encode(), Surroundings({}), name="j", base=Path("/tmp"))
        loads = True
    except JobFileError:
        loads = False
    assert accepts(text) == (expected is not False)
    if expected is not None:
        assert loads == expected


WORKERS = {
    "worker: 'a.b:f'": True,
    "worker: {function: 'a.b:f', load: 'a.b:g', items: 5, memory: 3GB, load_timeout: 5m}": True,
    "worker: {run: [python, loop.py]}": True,
    "worker: {run: [x], load: 'a.b:g'}": False,
    "worker: {function: 'a.b:f', run: [x]}": False,
    "worker: {items: 5}": False,
    "worker: {run: x}": False,
    "worker: f": False,
    "worker: 'a.b:f', run: x": False,
    "worker: 'a.b:f', service: {ready: 'tcp:1'}": False,
    "worker: 'a.b:f', matrix: {a: [1]}": True,
    "name: a": False,
}


@pytest.mark.parametrize("fields", WORKERS)
def test_loader_and_schema_agree_on_workers(fields: str) -> None:
    text = f"jobs: [{{{fields}}}]"
    try:
        load_text(text.encode(), Surroundings({}), name="j", base=Path("/"))
        loads = True
    except JobFileError:
        loads = False
    assert (accepts(text), loads) == (WORKERS[fields], WORKERS[fields])


OLD = """
notify: {run: [echo], on: finish}
jobs: [{run: x, retries: {times: 2, on: [exit]}}]
"""


def test_on_read_by_a_yaml_1_1_loader_is_still_on() -> None:
    """Such loaders make true of it, programs that write it again make the text `true` of that."""
    read = yaml.safe_load(OLD)
    assert True in read["notify"]
    assert VALIDATOR.is_valid(read)
    assert VALIDATOR.is_valid(json.loads(json.dumps(read)))
    for again in (yaml.safe_dump(read), json.dumps(read)):
        plan = load_text(again.encode(), Surroundings({}), name="j", base=Path("/"))
        assert plan.jobs[0].retry.on == {"exit"}
        assert plan.notify[0].on == {"finish"}


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_the_files_we_ship_mean_the_same_to_every_yaml_loader(path: Path) -> None:
    """Keys alone: of values the loader keeps the text, and each field converts its own."""
    assert all(isinstance(key, str) for key in keys_of(yaml.safe_load(path.read_text())))


def keys_of(value: Any) -> Iterator[object]:
    if isinstance(value, dict):
        yield from value
    for item in value.values() if isinstance(value, dict) else value:
        if isinstance(item, dict | list):
            yield from keys_of(item)


def test_every_field_is_explained_with_an_example_that_the_schema_accepts() -> None:
    whole = schema()["properties"]
    assert set(OF_JOB) == set(FIELDS)
    assert set(OF_FILE) == set(whole)
    for name in {*OF_JOB, *OF_FILE}:
        told = explained(name).split("\n\n")
        for words, example in zip(told[::2], told[1::2], strict=True):
            assert words.startswith(f"{name}, of ")
            assert words.endswith(".")
            read = yaml.safe_load(example)
            jsonschema.validate(read, schema())
            assert name in (read if ", of the file:" in words else read["jobs"][0])


def test_what_is_no_field_is_told_the_one_that_may_be_meant() -> None:
    with pytest.raises(UsageError, match=r"no field 'output'; did you mean outputs\?"):
        explained("output")
    with pytest.raises(UsageError, match=r"no field 'zzz'; there are affinity, after, "):
        explained("zzz")


def test_every_field_is_described() -> None:
    job = schema()["properties"]["jobs"]["items"]["properties"]
    assert set(job) == set(FIELDS)
    assert all(field["description"] for field in job.values())
