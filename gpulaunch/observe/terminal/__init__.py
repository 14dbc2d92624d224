"""Showing a run on a terminal: lines, tables, a dashboard. Never talks to processes or exits."""
