"""`hydra/launcher=gpulaunch`: every job of a Hydra multirun on a card of its own.

    sweeper ─▶ gpulaunch_launcher ─▶ _sweep: one run of gpulaunch for the whole sweep
                                       │  ▲
                       job file, pickles  results
                                       ▼  │
                                     _job, in each job's own process

Hydra imports the modules without an underscore whenever a program with `@hydra.main` starts: they
import nothing of gpulaunch.
"""

__version__ = "0.1.0"
