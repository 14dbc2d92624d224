"""Cards: finding them through the driver, spelling the mask, leasing them in the kernel.

Asks and takes; never decides which job runs where (core.placement) and never starts a job.
"""
