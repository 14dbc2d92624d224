"""`gpulaunch top`: a run on the whole screen, as it goes or as it was.

    facts ─▶ board (what there is to show) ─▶ rows (lines of text) ─▶ lists, app (Textual)
                 ▲                                                        │
    link: the journal, samples, reasons ◀── what a person asks of it ─────┘

Only `lists`, `screens` and `app` know Textual. What is outside (files, the live run) comes through
`link`, which the command line gives; nothing here talks to a process.
"""
