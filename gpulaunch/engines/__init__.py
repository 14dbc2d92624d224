"""Engines: carry the core's instructions out, on this machine or on a Slurm cluster."""
