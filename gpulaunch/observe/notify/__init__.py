"""Sends notifications, as `notify:` of the job file says.

    facts ─▶ message (what, when, to whom; folds bursts) ─▶ notifier
                                                               │ a process each
                                        preflight.Delivery ◀───┘
                                                └─▶ sender (Apprise, a command)

A notification is never worth a job: none is waited for while jobs run, one that fails is a line,
and the run's end is put off by a few seconds at most. Addresses go to the sender through its
standard input, and nowhere else.
"""
