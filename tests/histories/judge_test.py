#!/usr/bin/env python3
"""The search of the judge against the naive one, which tries all orders of all calls."""

import itertools
import math
import random
import unittest

from judge import Call, register, search


def drawn(dice):
    """A few reads and writes of a register, some of unknown outcome, whose answers may fit together or not."""
    sure, unsure = [], []
    for number in range(dice.randint(1, 5)):
        begun = dice.randint(0, 12)
        line = {"op": "write", "process": f"p{number}", "t_invoke": begun, "t_return": begun + dice.randint(0, 8)}
        line |= {"fence": dice.randint(0, 2), "value": dice.randint(0, 2), "prev": dice.randint(0, 2)}
        if dice.random() < 0.4:
            line["op"] = "read"
        elif dice.random() < 0.3:
            line |= {"result": "info", "t_return": math.inf}
        call = Call(line)
        (unsure if line.get("result") else sure).append(call)
    return sure, unsure


def some_order_fits(sure, unsure):
    for number in range(len(unsure) + 1):
        for done in itertools.combinations(unsure, number):
            for order in itertools.permutations([*sure, *done]):
                if fits(order):
                    return True
    return False


def fits(order):
    state, clock = (0, 0), -math.inf
    for call in order:
        states = [after for after, _ in register(state, call, call.inv)]
        clock = max(clock, call.inv)
        if not states or clock > call.ret:
            return False
        state = states[0]
    return True


class Search(unittest.TestCase):
    def test_finds_what_trying_all_orders_finds(self):
        dice, found = random.Random(4711), [0, 0]
        for _ in range(4_000):
            sure, unsure = drawn(dice)
            expected = some_order_fits(sure, unsure)
            found[expected] += 1
            self.assertEqual(search(sure, unsure, register, (0, 0)) is None, expected, [*map(str, sure), *map(str, unsure)])
        self.assertGreater(min(found), 400, "histories of both kinds are drawn")


if __name__ == "__main__":
    unittest.main()
