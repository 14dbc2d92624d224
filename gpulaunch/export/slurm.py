from gpulaunch.export.look import Chosen


def slurm(chosen: Chosen) -> dict[str, str]:
    raise NotImplementedError
