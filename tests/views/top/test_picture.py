from __future__ import annotations

from pathlib import Path

from tests.views.top.picture import picture, words

PICTURE = Path(__file__).parents[3] / "examples/top.svg"


def test_the_readmes_picture_is_what_the_screen_shows() -> None:
    drawn = words(picture())
    assert any("fold-30 under a minute to go" in line for line in drawn)
    assert words(PICTURE.read_text()) == drawn, (
        "draw it anew: python -m tests.views.top.picture > examples/top.svg"
    )
