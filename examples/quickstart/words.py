"""Counts words. Stands in for a program that wants a card; standard library only.

words.py count TEXT OUT.json         the words of one file, and the card this process was given
words.py flaky                       fails at its first attempt, succeeds at its second
words.py total COUNTS.json... OUT    one table of all counts
"""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections import Counter
from pathlib import Path


def count(text: str, out: str) -> None:
    words = Counter(re.findall(r"[a-z']+", Path(text).read_text(encoding="utf-8").lower()))
    card = os.environ.get("CUDA_VISIBLE_DEVICES")
    print(f"card {card}: {words.total()} words in {text}", flush=True)
    time.sleep(0.3)  # long enough to see two cards at work at once
    Path(out).write_text(json.dumps({"card": card, "words": words}), encoding="utf-8")


def flaky() -> None:
    attempt = int(os.environ["GPULAUNCH_ATTEMPT"])
    print(f"attempt {attempt}", flush=True)
    if attempt == 1:
        raise SystemExit("the first attempt fails on purpose; `retries: 1` gives it another")


def total(counts: list[str], out: str) -> None:
    words: Counter[str] = Counter()
    cards = set()
    for path in counts:
        counted = json.loads(Path(path).read_text(encoding="utf-8"))
        words.update(counted["words"])
        cards.add(counted["card"])
    table = {
        "files": len(counts),
        "cards": sorted(cards),
        "words": words.total(),
        "most common": dict(words.most_common(3)),
    }
    Path(out).write_text(json.dumps(table, indent=1) + "\n", encoding="utf-8")


def main(argv: list[str]) -> None:
    if argv[:1] == ["count"] and len(argv) == 3:
        count(argv[1], argv[2])
    elif argv == ["flaky"]:
        flaky()
    elif argv[:1] == ["total"] and len(argv) >= 3:
        total(argv[1:-1], argv[-1])
    else:
        raise SystemExit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])
