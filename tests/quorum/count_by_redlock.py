"""Counts on the same number as others do, each time under the lock of redlock-py: count_by_redlock.py COUNTER ROUNDS NODE...

The number is at the port COUNTER of this machine, the nodes are at the ports NODE.
"""
import sys
import time

import redis
import redlock

counter, rounds = redis.Redis(port=int(sys.argv[1])), int(sys.argv[2])
nodes = [{"host": "localhost", "port": int(port), "db": 0} for port in sys.argv[3:]]
manager = redlock.Redlock(nodes, retry_count=20000, retry_delay=0.01)
for _ in range(rounds):
    lock = manager.lock("shared", 60000)
    assert lock, "no lock"
    number = int(counter.get("number") or 0)
    time.sleep(0.002)
    counter.set("number", number + 1)
    manager.unlock(lock)
    time.sleep(0.01)
print("counted", rounds)
