"""Counts on the same number as others do, each time under the lock of another library: foreign.py LIBRARY PORT ROUNDS.

Every library locks the key `lock:shared` of the Redis on the port of this machine, as it does by default. None renews its lock, so
that a busy machine must not take longer than the ttl for one count.
"""
import sys
import time

import redis

library, port, rounds = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
client = redis.Redis(port=port, socket_timeout=60)


def count():
    number = int(client.get("lock:shared:number") or 0)
    time.sleep(0.002)
    client.set("lock:shared:number", number + 1)


def redis_py(timeout):
    with client.lock("lock:shared", timeout=timeout, sleep=0.01):
        count()


def python_redis_lock(expire):
    # Also how long it sleeps before it looks again, if nobody of its own kind wakes it.
    import redis_lock

    with redis_lock.Lock(client, "shared", expire=expire):
        count()


def redlock_py():
    import redlock

    manager = redlock.Redlock([{"host": "localhost", "port": port, "db": 0}], retry_count=20000, retry_delay=0.01)
    lock = manager.lock("lock:shared", 60000)
    assert lock, "no lock"
    count()
    manager.unlock(lock)


ways = {
    "redis-py": lambda: redis_py(60),
    "redis-py-without-ttl": lambda: redis_py(None),
    "python-redis-lock": lambda: python_redis_lock(4),
    "redlock-py": redlock_py,
}
for _ in range(rounds):
    ways[library]()
    time.sleep(0.005)
print("counted", rounds)
