"""Slurm on a throw-away cluster: its command line, and the engine that speaks it."""
