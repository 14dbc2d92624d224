"""The process that measures a run: cards through the driver, attempts through their processes.

    supervisor ──an attempt began, ended──▶ sampler ──▶ metrics.db
               ◀──misplaced, trouble────────   └─ questions ─▶ gpus.probe (killed where it hangs)

Decides nothing, and nothing waits for it. `main` is the process, `engines.local.metering` its
client.
"""
