"""One process of an Optuna study: takes trials from a storage on disk until the study has enough.

    gpulaunch each -- python search.py study.log --trials 40

Each trial fits a small model, by plain Python, and stands for a training that uses `cuda:0`.
"""

from __future__ import annotations

import argparse
import math
import os
import random

import optuna
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.study import MaxTrialsCallback
from optuna.trial import TrialState

RUN = os.environ.get("GPULAUNCH_RUN_ID", f"process {os.getpid()}")
JOB = os.environ.get("GPULAUNCH_JOB", "by hand")
CARD = os.environ.get("GPULAUNCH_GPU_INDEX", "none")


def train(trial: optuna.Trial) -> float:
    """Fit y = sin x by a polynomial, and return its error."""
    trial.set_user_attr("run", RUN)
    trial.set_user_attr("job", JOB)
    trial.set_user_attr("card", CARD)
    rate = trial.suggest_float("rate", 1e-4, 1e-1, log=True)
    degree = trial.suggest_int("degree", 1, 5)
    draw = random.Random(trial.number)
    points = [draw.uniform(-1.5, 1.5) for _ in range(40)]
    weights = [0.0] * (degree + 1)
    for epoch in range(1, 1501):
        error = 0.0
        for x in points:
            miss = sum(w * x**n for n, w in enumerate(weights)) - math.sin(x)
            weights = [w - rate * miss * x**n for n, w in enumerate(weights)]
            error += miss * miss / len(points)
        if epoch % 500 == 0:
            trial.report(error, epoch)
            if trial.should_prune():
                raise optuna.TrialPruned
    return error


def take_up(study: optuna.Study) -> None:
    """Have the trial done again that an earlier attempt of this job left open.

    Nothing of that attempt lives: gpulaunch starts the next one when all its processes are gone.
    Another run's jobs, which may have the same names, are left alone.
    """
    for trial in study.get_trials(states=(TrialState.RUNNING,)):
        if (trial.user_attrs.get("run"), trial.user_attrs.get("job")) == (RUN, JOB):
            study.tell(trial.number, state=TrialState.FAIL)
            study.enqueue_trial(trial.params)


parser = argparse.ArgumentParser()
parser.add_argument("storage", help="a file that all processes of the study share")
parser.add_argument("--trials", type=int, default=40, help="of the whole study")
parser.add_argument("--best", action="store_true", help="print the best trial, and end")
asked = parser.parse_args()

study = optuna.create_study(
    study_name="sine",
    storage=JournalStorage(JournalFileBackend(asked.storage)),
    sampler=optuna.samplers.TPESampler(),
    pruner=optuna.pruners.MedianPruner(),
    load_if_exists=True,
)
if asked.best:
    print(f"{study.best_value:.6f} with {study.best_params} (trial {study.best_trial.number})")
else:
    take_up(study)
    enough = MaxTrialsCallback(asked.trials, (TrialState.COMPLETE, TrialState.PRUNED))
    study.optimize(train, callbacks=[enough])
