"""A job list for people who run it elsewhere: HyperQueue's job file, sbatch scripts, plain bash.

Pure: a Plan in, text out. What the target cannot say is a Note, or a mistake in the job file.

    Plan ─look─▶ Chosen (jobs, notes) ─┬─hyperqueue─▶ one TOML file
                                       ├─slurm──────▶ scripts and tables by name, submit.sh
                                       └─shell──────▶ one bash script
"""

from gpulaunch.export.hyperqueue import hyperqueue
from gpulaunch.export.look import Chosen, Note, look
from gpulaunch.export.shell import shell
from gpulaunch.export.slurm import slurm

__all__ = ["Chosen", "Note", "hyperqueue", "look", "shell", "slurm"]
