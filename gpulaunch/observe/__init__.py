"""All that shows what a run does: words, the terminal, the report, metrics, results, messages."""
