"""A job list for people who run it elsewhere: HyperQueue's job file, or sbatch scripts.

Pure: a Plan in, text out. What the target cannot say is a Note, or a mistake in the job file.

    Plan ─choose─▶ Chosen (jobs, notes) ─┬─to_hyperqueue─▶ one TOML file
                                         └─to_slurm──────▶ scripts and tables by name, submit.sh
"""

from gpulaunch.export.hyperqueue import to_hyperqueue
from gpulaunch.export.look import ExportSelection, Note, Target, choose
from gpulaunch.export.slurm import to_slurm

__all__ = ["ExportSelection", "Note", "Target", "choose", "to_hyperqueue", "to_slurm"]
