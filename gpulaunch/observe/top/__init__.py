"""`gpulaunch top`: a run on the whole screen, as it goes or as it was.

    facts ─▶ board (what there is to show) ─▶ rows (lines of text) ─▶ screens, app (Textual)
                 ▲                                                        │
    RunLink: the journal, samples, reasons ◀── what a person asks of it ──┘

Only `screens` and `app` know Textual. What is outside (files, the live run) comes through
`board.RunLink`, which the command line gives; nothing here talks to a process.
"""
