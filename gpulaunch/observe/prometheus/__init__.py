"""`--metrics-port`: a run's counters and its cards' gauges, in the OpenMetrics format.

supervisor: port.Exporter ── the bound socket, a pipe ──▶ a process of its own:
                                                          serve ◀─ families ◀─ journal, metrics.db

The process follows the journal as `status` does, so nothing a client does, or leaves undone, costs
the run anything: no lock, no thread, no wake-up, no descriptor of the supervisor's is in its reach.
The pipe's end is the run's end, however that came. Only that process imports prometheus_client.
"""
