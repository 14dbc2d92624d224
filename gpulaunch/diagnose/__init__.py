"""Finds out what is wrong with jobs: in their scripts before they run, in their ends afterwards.

lint/     what jobs' scripts do that does not suit one card
failure/  an attempt's end -> its failure class, what shows it, advice
explain/  reports on device errors, made in the jobs' own interpreters
"""
