"""What `gpulaunch init` writes: a starter job file, or the one that replaces a shell script.

    script ──shell──▶ syntax tree ──translate──▶ Entry ... ──emit──▶ job file
                                        └──────▶ Remark ...  (what it could not translate)

Reads no file, writes none, runs nothing: text in, text out.
"""

from gpulaunch.starter.entry import StarterRemark, Translation
from gpulaunch.starter.example import starter
from gpulaunch.starter.translate import translate

__all__ = ["StarterRemark", "Translation", "starter", "translate"]
