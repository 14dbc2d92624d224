"""A job's processes: the command as a value, the keepers that own it, and the supervisor's side.

Nothing here decides what runs; leases are passed through as descriptors and never looked at.
"""
