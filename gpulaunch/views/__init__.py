"""Showing a run: folds of facts into lines, tables and JSON. Never talks to processes or exits."""
