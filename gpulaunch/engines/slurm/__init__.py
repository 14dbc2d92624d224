"""Slurm, through its own command line: what is said to it, and how its answers are read."""
