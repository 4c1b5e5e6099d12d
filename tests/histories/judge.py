#!/usr/bin/env python3
"""Judges recorded histories of a lock by a search for an order in which a perfect lock could have answered.

    judge.py [--strict] FILE_OR_FOLDER...

README.md beside this file explains the lines of a history and what is judged. Prints a line for each history, and below it each
breach of a rule. Ends with 1 if there is one, with 2 if a file is no history. `--strict` excuses nothing: lines that say
`vanished` do not count.

The search is the one of Wing and Gong with the memory of Lowe, as in Knossos and Porcupine: a history is right if each call can be
given one moment between its invocation and its return, so that an object that does one thing at a time gives the same answers in that
order. Keys are judged one by one, since a history is linearizable if it is so for each object. Nothing but the standard library.
"""

import gzip
import itertools
import json
import math
import pathlib
import sys

STEPS = 3_000_000  # of one search; then it gives up


class Call:
    """One call: `inv` and `ret` bound the moment at which it took effect."""

    def __init__(self, line, kind=None):
        self.line, self.kind = line, kind or line["op"]
        self.inv, self.ret = line["t_invoke"], line.get("t_return", math.inf)
        self.token, self.fence = line.get("token"), line.get("fence")
        self.ok = line.get("result", "ok") == "ok" and "t_return" in line

    def __str__(self):
        what = f"{self.kind} by {self.line['process']} from {self.inv} to {self.ret}"
        return what + (f", fence {self.fence}" if self.fence else "")


def search(calls, optional, step, state):
    """Looks for an order of all `calls` and any of the `optional` ones. Returns None if there is one, else the call that fits
    nowhere in the longest orders that were found.

    `step(state, call, clock)` yields the states after the call, each with the earliest moment for it, at `clock` or later: a lock may
    have to wait for the end of a lease. A smaller clock is never worse, and a call that changes nothing is never better later."""
    calls = sorted(calls, key=lambda call: (call.inv, call.ret))
    calls_and = calls + optional
    best, culprit = -1, None
    seen = {}
    stack = [(0, 0, frozenset(), state, -math.inf)]
    steps = 0
    while stack:
        # All before `low` are placed; of those after it, the bits of `mask`; of the optional ones, `used`.
        low, mask, used, state, clock = stack.pop()
        if low == len(calls):
            return None
        if seen.get((low, mask, used, state), math.inf) <= clock:
            continue
        seen[low, mask, used, state] = clock
        steps += 1
        if steps > STEPS:
            raise TimeoutError(f"no answer after {STEPS} steps")
        # A call can be next if no other call was over before it began.
        first, open_calls = None, []
        for index in range(low, len(calls)):
            call = calls[index]
            if first and call.inv > first.ret:
                break
            if not mask >> (index - low) & 1:
                open_calls.append(index)
                if not first or call.ret < first.ret:
                    first = call
        for extra in range(len(calls), len(calls_and)):
            if extra not in used:
                open_calls.append(extra)
        placed = low + mask.bit_count()
        if placed > best:
            best, culprit = placed, first
        nexts = []
        for index in open_calls:
            call = calls_and[index]
            for after, now in step(state, call, max(clock, call.inv)):
                if now > first.ret or now > call.ret:
                    continue
                if index >= len(calls):
                    nexts.append((call.ret, (low, mask, used | {index}, after, now)))
                    continue
                bits, start = mask | 1 << (index - low), low
                while bits & 1:
                    bits, start = bits >> 1, start + 1
                nexts.append((call.ret, (start, bits, used, after, now)))
                if after == state and now == clock:
                    nexts = nexts[-1:]
                    break
            else:
                continue
            break
        # The one that had to be over first is tried first.
        stack.extend(entry for _, entry in sorted(nexts, key=lambda entry: -entry[0]))
    return culprit


class Lease:
    """What is known of one lease: its `mode`, and `end`, from which on its holder did not rely on it."""

    def __init__(self, acquire):
        self.acquire, self.parts = acquire, []
        line = acquire.line
        mode = line.get("mode", "exclusive")
        self.permits = mode["permits"] if isinstance(mode, dict) else None
        self.shared = mode == "shared"
        self.end = line.get("deadline", acquire.inv + line.get("ttl", math.inf))
        self.forgotten = math.inf  # the first moment at which the servers may have lost it without a word

    def finish(self, losses):
        known = self.acquire.ret
        given_up = math.inf
        for part in sorted(self.parts, key=lambda part: part.ret):
            if part.kind == "extend" and "deadline" in part.line and part.ret >= known:
                self.end, known = part.line["deadline"], part.ret
            elif part.kind == "lost" or part.kind == "release" and not part.ok:
                given_up = min(given_up, part.inv)
            elif part.kind == "check" and not part.line["valid"]:
                given_up = min(given_up, part.ret)
        self.deadline, self.given_up = self.end, given_up
        self.end = min(self.end, given_up)
        self.forgotten = min((begun for begun, over in losses if self.acquire.inv <= over), default=math.inf)
        self.last = max([self.deadline, *(part.ret for part in self.parts)])

    def fits(self, others):
        """Whether the lease can be held beside `others`."""
        if self.permits:
            alike = all(other.permits and other.permits["total"] == self.permits["total"] for other in others)
            return alike and sum(other.permits["take"] for other in [self, *others]) <= self.permits["total"]
        return all(self.shared and other.shared for other in others)


class Lock:
    """The perfect lock: a state is the set of holders' tokens, and the largest fencing tokens of leases that were not shared, and of
    all. A lease ends with its release, or to make room for another, if its holder does not rely on it any more by then. Of a lease that
    the servers may have lost, its holder may believe anything from then on, so it does not count any more."""

    EMPTY = (frozenset(), 0, 0)

    def __init__(self, leases, with_fences):
        self.leases, self.with_fences = leases, with_fences

    def step(self, state, call, clock):
        holders, alone, largest = state
        lease = self.leases.get(call.token)
        if call.kind == "busy":
            if holders:
                yield state, clock
        elif call.kind == "acquire":
            former = call.line.get("from")
            if former is not None and former not in holders and self.leases[former].forgotten > clock:
                return
            fence = call.fence
            if self.with_fences and fence is not None:
                if not (fence >= alone if lease.shared else fence > largest):
                    return
                alone, largest = (alone if lease.shared else max(alone, fence)), max(largest, fence)
            for stay in self.room(lease, holders - {former}):
                gone = holders - {former} - stay
                now = max([clock, *(min(self.leases[token].end, self.leases[token].forgotten) for token in gone)])
                counted = frozenset(token for token in stay | {call.token} if self.leases[token].forgotten > now)
                yield (counted, alone, largest), now
        elif call.token in holders:
            yield (holders - {call.token} if call.kind == "release" else holders, alone, largest), clock
        elif lease.forgotten < math.inf:
            yield state, max(clock, lease.forgotten)

    def room(self, lease, holders):
        """The largest sets of holders that can stay beside a new lease."""
        found = []
        for number in range(len(holders), -1, -1):
            for stay in map(frozenset, itertools.combinations(sorted(holders), number)):
                if not any(stay < larger for larger in found) and lease.fits([self.leases[token] for token in stay]):
                    found.append(stay)
            if found and not lease.permits:
                break
        return found


def register(state, call, clock):
    """The perfect register: a write finds what its writer has read."""
    value, fence = state
    if call.kind == "read":
        if call.line.get("value") == value and call.fence == fence:
            yield state, clock
    elif call.line.get("prev") == value and call.fence >= fence:
        yield (call.line["value"], call.fence), clock


class Judge:
    def __init__(self, lines, strict):
        self.breaches, self.calls, self.keys = [], 0, {}
        windows = [line for line in lines if line["op"] == "vanished" and not strict]
        crashes = {line["process"]: line["t_invoke"] for line in lines if line["op"] == "crash"}
        for line in lines:
            if line["op"] in ("acquire", "extend", "release", "lost", "check", "write", "read"):
                self.keys.setdefault(line["key"], []).append(Call(line))
        for key, calls in sorted(self.keys.items()):
            losses = [(line["t_invoke"], line["t_return"]) for line in windows if line.get("key", key) == key]
            self.key(key, calls, losses, crashes)
            self.register(key, [call for call in calls if call.kind in ("write", "read")])

    def breach(self, rule, key, text):
        self.breaches.append(f"{rule}: {key}: {text}")

    def key(self, key, calls, losses, crashes):
        leases = {}
        for call in calls:
            if call.kind == "acquire" and call.ok:
                if call.token in leases:
                    self.breach("tokens", key, f"two leases have one token, the second is {call}")
                leases[call.token] = Lease(call)
        for call in calls:
            if call.kind in ("extend", "release", "lost", "check") and call.token in leases:
                leases[call.token].parts.append(call)
        for lease in leases.values():
            lease.finish(losses)
            self.guard(key, lease)
        self.real_time(key, leases.values())

        held = [lease.acquire for lease in leases.values()]
        for lease in leases.values():
            held += [part for part in lease.parts if part.kind in ("extend", "release") and part.ok]
            held += [part for part in lease.parts if part.kind == "check" and part.line["valid"]]
        self.calls += len(held)
        culprit = search(held, [], Lock(leases, False).step, Lock.EMPTY)
        if culprit:
            self.breach("exclusion", key, f"no order of the calls is one of a lock; this one fits nowhere: {culprit}")
            return
        culprit = search(held, [], Lock(leases, True).step, Lock.EMPTY)
        if culprit:
            self.breach("fences", key, f"no order of holding has fencing tokens that rise; this one does not fit: {culprit}")
        busy = self.unexplained(calls, crashes, [lease for lease in leases.values() if lease.forgotten < math.inf])
        self.calls += len(busy)
        culprit = search(held + busy, [], Lock(leases, False).step, Lock.EMPTY) if busy else None
        if culprit:
            self.breach("busy", key, f"nobody can have had the key meanwhile: {culprit}")

    def guard(self, key, lease):
        """No holder relies on a lease after its end, and no end is further away than a ttl."""
        for call in lease.parts:
            relies = call.ok and (call.kind == "extend" or call.kind == "check" and call.line["valid"])
            if relies and call.inv > lease.given_up:
                self.breach("guard", key, f"the lease was over at {lease.given_up}, and yet {call}")
            if call.kind == "check" and call.line["valid"] and call.inv > lease.deadline:
                self.breach("guard", key, f"the deadline was at {lease.deadline}, and yet {call}")
        line = lease.acquire.line
        if line.get("deadline", 0) > lease.acquire.ret + line.get("ttl", math.inf):
            self.breach("guard", key, f"the deadline is further away than the ttl: {lease.acquire}")

    def real_time(self, key, leases):
        """A lease that was asked for when another had been granted has a larger fencing token. Readers may have the same."""
        numbered = [lease for lease in leases if lease.acquire.fence is not None]
        granted = sorted(numbered, key=lambda lease: lease.acquire.ret)
        before, largest = 0, None
        for lease in sorted(numbered, key=lambda lease: lease.acquire.inv):
            while granted[before].acquire.ret < lease.acquire.inv:
                if not largest or granted[before].acquire.fence > largest.acquire.fence:
                    largest = granted[before]
                before += 1
            fence = lease.acquire.fence
            if largest and fence <= largest.acquire.fence and not (
                fence == largest.acquire.fence and lease.shared and largest.shared
            ):
                self.breach("fences", key, f"{lease.acquire} came after {largest.acquire}")

    def unexplained(self, calls, crashes, forgotten):
        """The tries that were told that the key is busy, and of which no other attempt of unknown outcome is the reason, and no lease
        that may be forgotten or not."""
        tries = [call for call in calls if call.kind == "acquire" and not call.ok]
        busy = []
        for call in tries:
            if not call.line.get("try") or call.line.get("result") != "fail":
                continue

            def until(other):
                died = crashes.get(other.line["process"].split("/")[0], math.inf)
                return min(other.ret, max(died, other.inv)) + other.line.get("ttl", math.inf) + RESERVED

            spans = [(other.inv, until(other)) for other in tries if other is not call]
            spans += [(lease.acquire.inv, lease.last) for lease in forgotten]
            if not any(begun <= call.ret and call.inv <= over for begun, over in spans):
                busy.append(Call(call.line, "busy"))
        return busy

    def register(self, key, calls):
        sure = [call for call in calls if call.ok]
        if not sure:
            return
        unsure = [call for call in calls if call.kind == "write" and not call.ok and call.line.get("result") != "fail"]
        self.calls += len(sure)
        for call in unsure:
            call.ret = math.inf
        first = min(sure, key=lambda call: call.inv)
        initial = (first.line.get("prev", first.line.get("value")), first.fence if first.kind == "read" else 0)
        culprit = search(sure, unsure, register, initial)
        if culprit:
            self.breach("register", key, f"an update is lost, or comes from nowhere; this one fits nowhere: {culprit}")


RESERVED = 2_000  # for so long, in ms, a key is kept for a waiter that does not come


def read(path):
    """The lines of one history: a file, or all files of a folder."""
    files = sorted(path.glob("*.jsonl")) if path.is_dir() else [path]
    lines = []
    for file in files:
        with (gzip.open if file.suffix == ".gz" else open)(file, "rt", encoding="utf-8") as text:
            lines += [json.loads(line) for line in text if line.strip()]
    return lines


def main(arguments):
    strict = "--strict" in arguments
    worst = 0
    for name in (argument for argument in arguments if argument != "--strict"):
        path = pathlib.Path(name)
        try:
            judge = Judge(read(path), strict)
        except (OSError, ValueError, KeyError, TimeoutError) as error:
            print(f"{path.name}: not judged: {error!r}")
            worst = 2
            continue
        print(f"{path.name}: {judge.calls} calls on {len(judge.keys)} keys, {len(judge.breaches) or 'no'} breaches")
        for breach in judge.breaches:
            print(f"  {breach}")
        worst = max(worst, bool(judge.breaches))
    return worst


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
