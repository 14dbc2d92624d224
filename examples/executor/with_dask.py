"""A dask graph on cards: dask takes any executor as its scheduler.

    pip install dask
    python examples/executor/with_dask.py --simulate 2

Each task of the graph runs in a worker that sees its own card alone, as `cuda:0`.
"""

import argparse
import os

import dask

from gpulaunch import GpuExecutor


@dask.delayed
def load(number):
    return list(range(number))


@dask.delayed
def score(numbers):
    return sum(numbers), os.environ["GPULAUNCH_GPU_INDEX"]


parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--gpus", default="all")
parser.add_argument("--simulate", type=int, metavar="N", help="N pretend cards")
arguments = parser.parse_args()

with (
    GpuExecutor(arguments.gpus, simulate=arguments.simulate) as executor,
    dask.config.set(scheduler=executor),
):
    scores = dask.compute(*(score(load(number)) for number in range(20)))

print(f"sum of {len(scores)}: {sum(value for value, _ in scores)}")
print(f"cards: {', '.join(sorted({card for _, card in scores}))}")
