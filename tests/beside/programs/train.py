"""A program of somebody's, with `@hydra.main`: what a job of it does is its override `do`."""

from __future__ import annotations

import fcntl
import json
import logging
import os
import pickle
import signal
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hydra
from hydra.core.config_store import ConfigStore
from hydra.core.hydra_config import HydraConfig
from hydra.utils import instantiate
from omegaconf import OmegaConf

log = logging.getLogger(__name__)
FACTOR = 2
NEW = hydra.__version__ >= "1.4"
register = OmegaConf.register_resolver if NEW else OmegaConf.register_new_resolver
register("own", lambda text: f"resolved {text}")


@dataclass
class TrainConf:
    do: str = "work"
    x: float = 0.0
    place: str = "."
    job: int = 0
    told: str = "${own:here}"


ConfigStore.instance().store(name="train", node=TrainConf)
MASK = {"hydra": {"job": {"env_set": {"CUDA_VISIBLE_DEVICES": "0"}}}}
ConfigStore.instance().store(group="mask", name="own", node=MASK, package="_global_")


class OwnError(Exception):
    """Of the program's own, with an argument that it is not made of."""

    def __init__(self, number: int, *, text: str) -> None:
        super().__init__(number)
        self.text = text


class Model:
    pass


class Child(Model):
    """Known by its name alone: no function here uses it."""


def until(condition: Any) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end, "waited for a minute"
        time.sleep(0.005)


def work(cfg: Any) -> float:
    """Note when which card was whose. A card that somebody else has is an error."""
    began, cards = time.monotonic(), os.environ["GPULAUNCH_GPU_INDEX"].split(",")
    place = Path(cfg.place)
    held = [(place / f"card-{card}").open("w") for card in cards]
    for file in held:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    log.info("working on %s", cards)
    value = FACTOR * (cfg.x - 1.5) ** 2
    note = {"cards": cards, "began": began, "ended": time.monotonic(), "pid": os.getpid()}
    note |= {"mask": os.environ["CUDA_VISIBLE_DEVICES"], "x": cfg.x}
    (place / f"note-{HydraConfig.get().job.num}.json").write_text(json.dumps(note))
    return float(value)


def together(cfg: Any) -> str:
    """Return once another job is under way beside this one."""
    place = Path(cfg.place)
    (place / f"here-{HydraConfig.get().job.num}").touch()
    until(lambda: len([*place.glob("here-*")]) > 1)
    return os.environ["GPULAUNCH_GPU_INDEX"]


def fail(cfg: Any) -> None:
    raise OwnError(7, text="why it failed")


def fail_plainly(cfg: Any) -> None:
    raise ValueError("why it failed")


def killed(cfg: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def leave(cfg: Any) -> None:
    sys.exit(0)


def interrupted(cfg: Any) -> None:
    signal.raise_signal(signal.SIGINT)


def at_the_second(cfg: Any) -> str:
    attempt = os.environ["GPULAUNCH_ATTEMPT"]
    if attempt == "1":
        raise RuntimeError("not yet")
    return attempt


def out_of_memory(cfg: Any) -> str:
    attempt = os.environ["GPULAUNCH_ATTEMPT"]
    if attempt == "1":
        raise RuntimeError("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB")
    return attempt


def stay(cfg: Any) -> str:
    """Stay until somebody puts `go` there, for as long as it takes."""
    place = Path(cfg.place)
    (place / f"pid-{os.getpid()}").touch()
    until((place / "go").exists)
    return "gone on"


def a_lock(cfg: Any) -> object:
    return threading.Lock()


def own_things(cfg: Any) -> object:
    """Return something of the program's own, which can also be pickled by name."""
    assert type(pickle.loads(pickle.dumps(Model()))) is Model
    assert OmegaConf.get_type(cfg) is TrainConf
    assert cfg.told == "resolved here"
    return Model()


def by_name(cfg: Any) -> object:
    """Return what a configuration makes of a name in this file."""
    made = instantiate({"_target_": f"__main__.{cfg.told}"})
    assert isinstance(made, Model)
    return made


def unsendable(cfg: Any) -> object:
    return LOCK


def environment(cfg: Any) -> list[str]:
    return [os.environ[name] for name in ("OF_THE_SWEEP", "OF_THE_JOB", "OMP_NUM_THREADS")]


ACTS = (work, together, fail, fail_plainly, killed, leave, at_the_second, out_of_memory, stay)
ACTS += (a_lock, own_things, environment, interrupted, by_name)
if "OWN_LOCK" in os.environ:
    LOCK = threading.Lock()
    if os.environ["OWN_LOCK"] == "used":
        ACTS += (unsendable,)


# Hydra 1.3 warns where this is left out, 1.4 where it is there.
BASE = {} if NEW else {"version_base": "1.3"}


@hydra.main(config_path=None, config_name="train", **BASE)
def main(cfg: Any) -> Any:
    return {act.__name__: act for act in ACTS}[cfg.do](cfg)


if __name__ == "__main__":
    main()
