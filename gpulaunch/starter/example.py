"""The starter job file: the format on a page. Loads as it stands, and runs anywhere."""

from __future__ import annotations

_STARTER = """\
# A gpulaunch job file. Each entry below `jobs:` is one job or, with foreach or matrix, many.
# Every job runs in its own process and sees exactly the card it was given, as cuda:0.
#
#   gpulaunch check jobs.yaml                   validates, shows the plan, starts nothing
#   gpulaunch run jobs.yaml                     runs it; --simulate 2 tries it without a card
#   gpulaunch status, logs -f JOB, resume, retry       during and after
#
# Placeholders like {{item}} are filled in. All fields: gpulaunch schema

# gpus: all              # which cards: all, how many (2), or which ([0, 2]); --gpus overrides
# limits: {server: 1}    # named tokens; a job that says `uses: [server]` holds one while it runs
# defaults:              # fields for every job that does not say otherwise
#   timeout: 2h
#   retries: 1
# notify:                # whom to tell: at the end, at the first failure, at a pause
#   - to: env:NTFY_URL   # an Apprise address (mailto://, slack://, ...) or URL in that variable
#   - run: [notify-send] # a command: gets a title, and a JSON summary on its standard input
#     every: 50          # failures

jobs:
  # One job per item. With a glob (foreach: inputs/*.fasta) there are also {{path}} and {{stem}}.
  # {{out}} is a fresh directory for each attempt; success wants the outputs to be there.
  - name: predict-{{item}}
    foreach: {values: [a, b, c]}
    run: echo "predict.py {{item}} on card $CUDA_VISIBLE_DEVICES" | tee {{out}}/result.txt
    outputs: ["{{out}}/result.txt"]
    # retries: 2            # also {times: 2, "on": [gpu_oom], delay: 30s}
    # gpus: 2               # cards at once (1); 0 hides them
    # gpu_memory: 16GB      # only on a card with this much memory free
    # cwd: some/directory   # (the job file's)
    # env: {HF_HOME: /data/hf}
    # venv: .venv           # or conda: NAME, or python: /path/to/python

  # Every combination is a job.
  - name: train-{{lr}}-{{seed}}
    matrix: {lr: [1e-3, 1e-4], seed: [0, 1]}
    run: echo "train.py --lr {{lr}} --seed {{seed}}"

  # needs: those jobs must have succeeded. after: they must have ended, whatever came out.
  # What succeeded is found at {{run_dir}}/results/JOB.
  - name: summary
    gpus: 0
    needs: ["predict-*"]
    after: ["train-*"]
    run: cat {{run_dir}}/results/predict-*/result.txt
"""


def starter() -> str:
    """A commented job file that teaches the format; it is valid as it stands."""
    return _STARTER
