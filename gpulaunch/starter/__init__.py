"""What `gpulaunch init` writes: a starter job file, or the one that replaces a shell script.

    script ──shell──▶ syntax tree ──translate──▶ Entry ... ──emit──▶ job file
                                        └──────▶ Remark ...  (what it could not translate)

Reads no file of the user's, writes none, runs nothing: text in, text out.
"""

from importlib.resources import files

from gpulaunch.starter.entry import StarterRemark, Translation
from gpulaunch.starter.translate import translate

__all__ = ["StarterRemark", "Translation", "starter", "translate"]


def starter() -> str:
    """Return a commented job file that teaches the format, runs anywhere and needs no card."""
    return files(__name__).joinpath("starter.yaml").read_text("utf-8")
