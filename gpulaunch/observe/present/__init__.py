"""Facts in, values and words out: what a run comes to, for whoever tells of it.

The terminal, the report, messages and metrics take it from here. Knows no terminal, writes nothing.
"""
