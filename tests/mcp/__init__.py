"""`gpulaunch mcp`, driven by a client of the protocol's own SDK."""
