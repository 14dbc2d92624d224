"""Files made to hurt get one clear mistake, exit status 2, and no time or memory to speak of."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpulaunch.base.errors import JobFileError, UsageError
from gpulaunch.jobfile.file_keys import Surroundings
from gpulaunch.jobfile.load import load, load_text

JOBS = "jobs: [{run: x}]\n"


def bomb() -> str:
    lines = ["a: &a [x, x, x, x, x, x, x, x, x, x]"]
    for before, name in zip("abcdefgh", "bcdefghi", strict=True):
        lines.append(f"{name}: &{name} [{', '.join([f'*{before}'] * 10)}]")
    return "\n".join([*lines, JOBS])


def merge_bomb() -> str:
    keys = ", ".join(f"k{i}: 1" for i in range(5000))
    return f"a: &a {{{keys}}}\njobs:\n" + "".join(f"- {{<<: *a, z{i}: 1}}\n" for i in range(5000))


HOSTILE: dict[str, tuple[str | bytes, str]] = {
    "alias bomb": (bomb(), "more than 3,000,000 values, aliases expanded"),
    "merge bomb": (merge_bomb(), "more than 3,000,000 values"),
    "cyclic alias": ("a: &a [*a]\n" + JOBS, "1:8: *a contains itself"),
    "cyclic file": ("&a\njobs: [*a]\n", "2:8: *a contains itself"),
    "undefined alias": ("jobs: *x\n", "1:7: *x is not defined above"),
    "deep list": ("jobs: " + "[" * 20_000 + "]" * 20_000, "nested more than 50 deep"),
    "deep short list": ("jobs: " + "[" * 60 + "]" * 60, "1:56: nested more than 50 deep"),
    "deep mapping": ("jobs: " + "{a: " * 20_000, "nested more than 50 deep"),
    "deep block": ("- " * 20_000, "nested more than 50 deep"),
    "NUL": (b"jobs:\n  - run: a\0b\n", "2:11: a NUL byte"),
    "escaped NUL": ('jobs:\n  - run: "a\\0b"\n', "2:10: a NUL character"),
    "Latin-1": ("jobs:\n  - run: café\n".encode("latin-1"), "2:13: byte 0xe9 is not UTF-8"),
    "UTF-16": (JOBS.encode("utf-16"), "this is UTF-16 text; save it as UTF-8"),
    "binary": (bytes(range(256)) * 100, "1:1: a NUL byte"),
    "control": ("jobs:\n - run: 'a\x1b[2Jb'\n", "2:11: control character U+001B"),
    "Python tag": ("jobs:\n - !!python/object/apply:os.system [id]\n", "2:4: tag !!python/object"),
    "Python name": ("jobs: [{run: !!python/name:os.system x}]", "tag !!python/name:os.system is"),
    "own tag": ("jobs: !include x\n", "1:7: tag !include is not supported"),
    "two documents": (JOBS + "---\n" + JOBS, "2:1: a second document"),
    "huge scalar": ("jobs:\n - run: " + "x" * (40 << 20), "41,943,040 bytes; Linux takes at most"),
    "huge file": (b"x" * (65 << 20), "68,157,440 bytes; at most 67,108,864 are read"),
    "tab": ("jobs:\n\t- run: x\n", "2:1: not YAML: found character that cannot start any token"),
    "empty": ("", "the file is empty"),
    "comment": ("# nothing\n", "the file is empty"),
    "scalar": ("hello", "1:1: expected a mapping with jobs:, found 'hello'"),
    "list": ("- run: x\n", "1:1: expected a mapping with jobs:, found a list"),
    "no jobs": ("name: x\n", "1:1: jobs: is missing"),
    "null jobs": ("jobs:\n", "1:6: jobs: expected a list of jobs"),
    "braces": ("jobs:\n - run: {{path}} x\n", "2:10: text that starts with {{ must be quoted"),
    "open list": ("jobs: [\n", "1:7: not YAML: the bracket opened here is never closed"),
    "open quote": ("jobs:\n - run: 'x\n", "2:9: not YAML: found unexpected end of stream"),
    "colon": ("jobs:\n - run: a: b\n", "2:10: not YAML: mapping values are not allowed"),
    "complex key": ("? [a]\n: b\n", "1:3: a list or mapping cannot be a key"),
    "huge anchor": (f"jobs: &{'a' * 2_000_000} x\n", "1:7: jobs: expected a list of jobs"),
    "directive": ("%YAML 9.9\n---\n" + JOBS, "1:1: not YAML: found incompatible YAML document"),
    "many values": ("jobs: [" + ",".join(["a"] * 3_010_000) + "]", "more than 3,000,000 values"),
    "many jobs": ("jobs: [" + "{run: x}," * 510_000 + "]", "more than 500,000 jobs"),
    "many items": (
        "jobs: [{run: x, foreach: {values: [" + "a," * 510_000 + "]}}]",
        "more than 500,000 jobs",
    ),
    "many anchors": ("".join(f"- &a{i} x\n" for i in range(50_000)), "expected a mapping"),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_file_is_one_mistake_and_quick(kind: str) -> None:
    text, said = HOSTILE[kind]
    data = text if isinstance(text, bytes) else text.encode()
    start = time.process_time()
    with pytest.raises(JobFileError) as caught:
        load_text(data, Surroundings({}), name="jobs.yaml", base=Path("/"))
    assert time.process_time() - start < 40
    assert len(caught.value.mistakes) == 1
    first, *shown = caught.value.mistakes[0].split("\n")
    assert first.startswith("jobs.yaml:")
    assert said in first
    assert len(first) < 300
    assert all(line.isprintable() and len(line) < 120 for line in shown)


def test_a_byte_order_mark_and_windows_line_ends_are_no_mistake() -> None:
    data = b"\xef\xbb\xbfjobs:\r\n  - run: x\r\n"
    assert load_text(data, Surroundings({}), name="j", base=Path("/")).jobs[0].run == "x"


def test_endless_files_are_refused_without_reading_them(tmp_path: Path) -> None:
    huge = tmp_path / "huge.yaml"
    with huge.open("wb") as file:
        file.truncate(1 << 40)
    for path in (huge, Path("/dev/zero"), Path("/dev/stdin"), Path("/proc/self/mem")):
        with pytest.raises(UsageError) as caught:
            load(path, Surroundings({}))
        assert "\n" not in str(caught.value)


def test_data_files_that_hurt_are_mistakes_too(tmp_path: Path) -> None:
    (tmp_path / "nul.csv").write_bytes(b"a,b\n1,\0\n")
    (tmp_path / "latin.txt").write_bytes(b"ok\ncaf\xe9\n")
    (tmp_path / "x.fa.gz").write_bytes(b"\x1f\x8b\x08\0\0\0")
    (tmp_path / "quote.csv").write_text('a,b\n"x,1\n')
    (tmp_path / "empty.csv").write_text("")
    (tmp_path / "nul.fa").write_bytes(b">a\nAC\0\n")
    said = {
        "csv: nul.csv": "a NUL byte",
        "lines: latin.txt": "latin.txt:2: not UTF-8",
        "fasta: x.fa.gz": "compressed with gzip",
        "csv: quote.csv": "quote.csv:2: not a table: unexpected end of data",
        "csv: empty.csv": "empty.csv:1: expected a header",
        "csv: /dev/zero": "not a regular file",
        "fasta: /dev/zero": "not a regular file",
        "fasta: .": "a directory",
        "fasta: nul.fa": "nul.fa:2: a NUL byte",
    }
    for form, message in said.items():
        text = f"jobs: [{{run: x, foreach: {{{form}}}}}]".encode()
        with pytest.raises(JobFileError, match=message):
            load_text(text, Surroundings({}), name="j.yaml", base=tmp_path)


@settings(max_examples=150)
@given(st.binary(max_size=200))
def test_no_bytes_crash_the_loader(data: bytes) -> None:
    with pytest.raises(JobFileError):
        load_text(data, Surroundings({}), name="j.yaml", base=Path("/nonexistent"))


@settings(max_examples=150)
@given(st.integers())
def test_no_mangled_file_crashes_the_loader(seed: int) -> None:
    good = (Path(__file__).parent / "good" / "everything.yaml").read_text()
    chance = random.Random(seed)
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(len(good))
        put = chance.choice(["", "{", "}", "[", "]", ":", "\n", "- ", "{{", "}}", "*", "&a ", "'"])
        good = good[:at] + put + good[at + chance.randint(0, 3) :]
    base = Path(__file__).parent / "good"
    said = ""
    try:
        load_text(good.encode(), Surroundings({}), name="j", base=base)
    except JobFileError as error:
        said = str(error)
    assert all(line.startswith(("j:", "    ")) for line in said.splitlines())


# ── size ────────────────────────────────────────────────────────────────────────────────────────

MEASURE = """
import re, sys, time
from pathlib import Path
from gpulaunch.jobfile.file_keys import Surroundings
from gpulaunch.jobfile.load import load_text
start = time.process_time()
plan = load_text(sys.stdin.buffer.read(), Surroundings({}), name="j", base=Path("/"))
# Not ru_maxrss, which a process inherits from the one that forked it.
peak = re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]
print(len(plan.jobs), time.process_time() - start, peak)
"""


def measured(text: str) -> tuple[int, float, float]:
    """Jobs, CPU seconds, MiB at the peak."""
    done = subprocess.run(
        [sys.executable, "-c", MEASURE], input=text.encode(), capture_output=True, check=True
    )
    jobs, seconds, peak = done.stdout.split()
    return int(jobs), float(seconds), float(peak) / 1024


def entries(count: int) -> str:
    return "jobs:\n" + "".join(
        f"  - name: job-{i}\n    gpus: 1\n    run: echo {i} {{{{out}}}}\n    env: {{A: {i}}}\n"
        for i in range(count)
    )


def items(count: int) -> str:
    values = "".join(f"      - {i}\n" for i in range(count))
    return (
        "jobs:\n  - name: a\n    run: echo {{item}} {{out}}\n    cost: '{{item}}'\n"
        f"    foreach:\n      values: &v\n{values}"
        "  - {name: b, run: 'echo {{item}}', needs: ['a-{{item}}'], foreach: {values: *v}}\n"
        "  - {name: c, run: x, after: ['a-*', 'b-*']}\n"
    )


@pytest.mark.slow
@pytest.mark.parametrize("text", [entries(50_000), items(25_000)], ids=["entries", "items"])
def test_fifty_thousand_jobs_are_planned_in_seconds(text: str) -> None:
    jobs, seconds, peak = measured(text)
    assert jobs >= 50_000
    assert seconds < 30
    assert peak < 512


@pytest.mark.slow
@pytest.mark.parametrize("value", ["v", "{{job}}-{{out}}"], ids=["constant", "placeholders"])
def test_one_mistake_among_many_jobs_that_share_an_alias_is_said_in_seconds(value: str) -> None:
    env = ", ".join(f"V{i}: '{value}-{i}'" for i in range(20))
    text = f"jobs:\n- {{name: a, run: x, env: &e {{{env}}}}}\n"
    text += "".join(f"- {{name: j{i}, run: echo {i}, env: *e}}\n" for i in range(20_000))
    start = time.process_time()
    with pytest.raises(JobFileError, match="unknown key; did you mean gpus"):
        load_text(
            (text + "- {run: x, gpuss: 1}\n").encode(), Surroundings({}), name="j", base=Path("/")
        )
    assert time.process_time() - start < 30


def test_a_long_chain_of_needs_is_followed() -> None:
    chain = "".join(f"- {{name: j{i}, run: x, needs: [j{i - 1}]}}\n" for i in range(1, 3000))
    text = "jobs:\n- {name: j0, run: x}\n" + chain
    plan = load_text(text.encode(), Surroundings({}), name="j", base=Path("/"))
    assert plan.jobs[-1].needs == ("j2998",)
    ring = text.replace("{name: j0, run: x}", "{name: j0, run: x, needs: [j2999]}")
    with pytest.raises(JobFileError, match=r"a cycle: j0 -> j2999 -> .*more.* -> j1 -> j0"):
        load_text(ring.encode(), Surroundings({}), name="j", base=Path("/"))
