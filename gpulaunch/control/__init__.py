"""A run's control socket: requests from other terminals, and the run's answers.

gpulaunch cancel ─▶ client.call(run, Cancel(...)) ──▶ server.ControlServer ──▶ answer(conn, ...)
                                                  ◀── conn.send(...)
"""
