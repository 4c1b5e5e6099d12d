# A player of python-redis-lock: `contend CONNECTION KEY START END`; see player.rs.
import sys
import time

import redis
import redis_lock

clients = [redis.Redis.from_url(url) for url in sys.argv[1:]]
print("ready", flush=True)
for order in sys.stdin:
    _, connection, key, start, end = order.split(" ")
    client, start, end = clients[int(connection)], int(start), int(end)
    time.sleep(max(0, start - time.monotonic_ns()) / 1e9)
    holds = []
    while True:
        asked = time.monotonic_ns()
        if asked >= end:
            break
        lock = redis_lock.Lock(client, key, expire=10)
        lock.acquire()
        held = time.monotonic_ns()
        released = time.monotonic_ns()
        lock.release()
        holds.append(f"hold {asked} {held} {released}\n")
    sys.stdout.write("".join(holds) + "done\n")
    sys.stdout.flush()
