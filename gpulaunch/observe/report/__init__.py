"""`report.html`: a run in one file, for the morning after. Folds journal and samples, asks nobody.

    events.jsonl ─▶ fold ─▶ RunHistory ─┐
    metrics.db ─▶ cards (curves) ───────┼─▶ page (text, tables) ─▶ template ─┬─▶ report.html
    logs/*.log ─▶ write (tails) ────────┘   drawing (JSON) ─────▶ uPlot ─────┘

It runs in a process of its own when a run ends (`writing`), so that no log, disk or bug holds the
run up; `gpulaunch report` does the same at any time.
"""
