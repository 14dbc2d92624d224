"""The shim: runs on a node of a Slurm cluster, in the job's place, until the job is over.

    slurmd ──batch script, exec──▶ node ──exec──▶ keeper ──fork──▶ ... ──▶ job
            said/ ◀──problems──┘  │  ▲              └─ends/ logs/
      starts/ ◀──claim, and where─┘  └─tickets/ stops/ (looked at again and again)

What it owns: that an attempt runs only once, the check of what Slurm granted, the values that only
the node knows (cards, ports), and the exit status that Slurm is to see. What it never does: start,
signal or end the job itself, which keepers do; choose a card, or change the mask that Slurm set.

It is run as `node RUN_DIR BATCH [SECONDS]` of an archive of these programs, which the launcher
has put into the run's directory. SECONDS is how long a shared file system may take to show
a file that was written elsewhere. `gpulaunch/engines/slurm/node_files.py` writes what it reads.

Its exit status: 0 for a success as the job file defines it, and for nothing else. For a failure the
job's own status (128 + N for signal N; 1 if that would be 0), 124 for a timeout. Without a job: 75
if the attempt was started before, or withdrawn by its client; 78 if it could not be started; 73 if
the run's disk was full before it began; 70 if nobody saw how it ended.
"""

from __future__ import annotations


def main() -> None:
    from .run import main

    main()
