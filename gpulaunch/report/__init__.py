"""`report.html`: a run in one file, for the morning after. Folds journal and samples, asks nobody.

    events.jsonl ─▶ fold ─▶ History ─┐
    metrics.db ──────────▶ curves ───┼─▶ page (text, tables) ─▶ template ─┬─▶ report.html
    logs/*.log ──────────▶ tails ────┘   drawing (JSON) ─────▶ uPlot ─────┘

It runs in a process of its own when a run ends (`writing`), so that no log, disk or bug holds the
run up; `gpulaunch report` does the same at any time.
"""
