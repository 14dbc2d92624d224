"""How the documents are built: Markdown in, HTML out, nothing fetched.

python -m sphinx -W --keep-going -n -b html docs build/docs
"""

from gpulaunch import __version__

project = "gpulaunch"
author = "the gpulaunch contributors"
copyright = author
version = release = __version__

extensions = ["myst_parser"]
source_suffix = {".md": "markdown"}
exclude_patterns = ["_build"]
nitpicky = True

myst_heading_anchors = 4
smartquotes = False  # --option is no dash

html_theme = "furo"
html_title = "gpulaunch"
html_copy_source = False
html_show_sphinx = False
