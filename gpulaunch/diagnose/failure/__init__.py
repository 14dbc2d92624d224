"""Why an attempt failed: its class, what shows it, and what a person can do about it.

    tail, counters, rooms: read at the edge ──Evidence──▶ diagnose ──▶ core.model.Failure | None

`classes` has the words, `core.retry` the decisions, `patterns` what the texts of logs mean,
`judge` which of them count.
"""
