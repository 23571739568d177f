"""Checks a worker in any language: `python -m callboard.conformance [--timeout SECONDS] COMMAND ARGS…`.

This is the node's side of `docs/worker-protocol.md`. The worker must implement the echo contract: for a text it answers
the text in upper case, for the text "fail" an error, for any other value the same value. If it says in `ready` that it
calls, it answers a map with the one key `call` with what the route `/called` answers for the value of that key, and if
it reads streams, a map with the one key `stream` with the list of all outputs of that route. Each check starts the
command anew, and kills what is left of it; those of shared memory are skipped if the worker has none. The exit code is
1 if a check has failed.
"""
