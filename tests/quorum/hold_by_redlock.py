"""Locks and unlocks by redlock-py as it is told: hold_by_redlock.py NODE...

The nodes are at the ports NODE of this machine. Each line of the input is `lock KEY MS` or `unlock`; each is answered by
`held`, `refused` or `unlocked`. A lock is tried once.
"""
import sys

import redlock

nodes = [{"host": "localhost", "port": int(port), "db": 0} for port in sys.argv[1:]]
manager = redlock.Redlock(nodes, retry_count=1, retry_delay=0.01)
lock = None
for line in sys.stdin:
    verb, *arguments = line.split()
    if verb == "lock":
        lock = manager.lock(arguments[0], int(arguments[1]))
        print("held" if lock else "refused", flush=True)
    else:
        manager.unlock(lock)
        print("unlocked", flush=True)
