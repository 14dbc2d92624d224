"""What carries the core's instructions out: on this machine, later elsewhere."""
