"""A run's directory and its journal: paths, records, recovery. Decides nothing about jobs."""
