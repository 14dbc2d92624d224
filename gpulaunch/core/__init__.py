"""The pure core: values, decisions and the fold of facts. No clock, no I/O, no operating system."""
