"""The bounds of a report's work and of its length."""

SECONDS = 2.0
"""Seconds for the look into all frames."""
OBJECTS = 40_000
"""Objects looked at from one frame."""
DEPTH = 7
"""Containers and attributes from a variable, or from a module, to a tensor."""
PER_CONTAINER = 256
"""Entries looked at of a container."""
PER_FRAME = 10
"""Tensors shown of a frame's variable."""
FRAMES = 12
"""Frames whose tensors are shown."""
LINES = 120
"""Lines of a report."""
WIDTH = 300
"""Characters of a line."""
SOURCE_SIZE = 4 << 20
"""Characters of a source file that is parsed, and bytes of a record in an archive."""
