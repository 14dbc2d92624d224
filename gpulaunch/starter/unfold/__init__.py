"""The script with everything spelt out that starts jobs by other means than a line of their own.

    functions, bash -c, eval          their text, with the words that they are called with
    parallel, xargs, cat | while      the loops that they stand for
    #SBATCH, sbatch, srun             what they ask for, as the shell's own words

Bash to bash, so that the translator needs to know of none of them. What cannot be spelt out stays
as it is, with the reason; `Script.lines` keeps each line's number in the script as it was typed.
"""

from gpulaunch.starter.unfold.unfold import Unfolded, unfold

__all__ = ["Unfolded", "unfold"]
