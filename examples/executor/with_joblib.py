"""joblib's `Parallel` on cards: a backend of joblib's that hands all calls to a GpuExecutor.

    pip install joblib
    python examples/executor/with_joblib.py --simulate 2

`Parallel` takes no executor, but a backend, which is what `GpuBackend` is. Libraries that call
joblib themselves (scikit-learn) use it as well, within `parallel_config`.
"""

import argparse
import os

from joblib import Parallel, delayed, parallel_config
from joblib.parallel import ParallelBackendBase

from gpulaunch import GpuExecutor


class GpuBackend(ParallelBackendBase):
    """Calls run where the executor's workers are, however many `n_jobs` there are to be."""

    supports_retrieve_callback = True

    def __init__(self, executor, **options):
        super().__init__(nesting_level=0, **options)
        self.executor, self.futures = executor, []

    def effective_n_jobs(self, n_jobs):
        return self.executor._max_workers  # of any executor, how many calls run at once

    def submit(self, func, callback=None):
        future = self.executor.submit(func)
        self.futures.append(future)
        future.add_done_callback(callback)
        return future

    def retrieve_result_callback(self, future):
        return future.result()

    def abort_everything(self, ensure_ready=True):
        for future in self.futures:
            future.cancel()

    def terminate(self):
        self.futures.clear()


def score(number):
    return number**2, os.environ["GPULAUNCH_GPU_INDEX"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gpus", default="all")
    parser.add_argument("--simulate", type=int, metavar="N", help="N pretend cards")
    arguments = parser.parse_args()

    with (
        GpuExecutor(arguments.gpus, simulate=arguments.simulate) as executor,
        parallel_config(backend=GpuBackend(executor)),
    ):
        scores = Parallel(n_jobs=-1)(delayed(score)(number) for number in range(20))

    print(f"sum of {len(scores)}: {sum(value for value, _ in scores)}")
    print(f"cards: {', '.join(sorted({card for _, card in scores}))}")


if __name__ == "__main__":
    main()
