"""GpuExecutor where real libraries take an executor: dask, joblib, asyncio, tqdm, Optuna."""

from __future__ import annotations

import itertools
import json
import subprocess
from pathlib import Path

import pytest

from tests.beside.sweeps import PROGRAMS
from tests.examples.helpers import EXAMPLES
from tests.helpers import goes_along


def run(*command: str | Path) -> str:
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=240, preexec_fn=goes_along()
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


USERS = """as_completed wait in_asyncio with_tqdm
with_dask with_dask_bag with_dask_that_fails with_optuna"""


@pytest.mark.parametrize("user", USERS.split())
def test_each_call_comes_back_and_no_card_had_two_at_once(beside: Path, user: str) -> None:
    calls = json.loads(run(beside / "python", PROGRAMS / "executor_users.py", user))
    assert [value for value, *_ in calls] == [number**2 for number in range(20)]
    for card in ("0", "1"):
        times = sorted((began, ended) for _, on, began, ended in calls if on == card)
        for one, other in itertools.pairwise(times):
            assert one[1] <= other[0]
    assert {card for _, card, *_ in calls} <= {"0", "1"}


@pytest.mark.parametrize(("program", "total"), [("with_joblib", 2470), ("with_dask", 1140)])
def test_the_examples_run(beside: Path, program: str, total: int) -> None:
    file = EXAMPLES / "executor" / f"{program}.py"
    out = run(beside / "python", "-W", "error", file, "--simulate", "2")
    first, second = out.splitlines()
    assert first == f"sum of 20: {total}"
    assert second in ("cards: 0, 1", "cards: 0", "cards: 1")


def test_joblib_tells_what_a_call_raised_and_goes_on(beside: Path) -> None:
    code = f"""
import sys
sys.path.insert(0, {str(EXAMPLES / "executor")!r})
from with_joblib import GpuBackend
from joblib import Parallel, delayed, parallel_config
from gpulaunch import GpuExecutor

def fail(number):
    if number == 3:
        raise ValueError(number)
    return number

with GpuExecutor(simulate=2) as executor, parallel_config(backend=GpuBackend(executor)):
    try:
        Parallel()(delayed(fail)(number) for number in range(10))
    except ValueError as error:
        print(error.args)
    print(sum(Parallel()(delayed(fail)(number) for number in range(3))))
"""
    assert run(beside / "python", "-c", code).splitlines()[-2:] == ["(3,)", "3"]
