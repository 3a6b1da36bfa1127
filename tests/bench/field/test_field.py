"""Tests of what is made of the field's cells, and of its rows. `tests/bench/check` runs them."""

import json
import os
import unittest

from . import report
from .conditions import condition
from .figures import order, summary
from .row import BUSY, BUSY_AND_ONE, Row
from .rows import ROWS

ROW = Row("a", "A row", None, strict=BUSY_AND_ONE)


def a_round(tcp, ours, again=None, p99=(10, 10), share=1.0):
    return {
        "tcp": {"rate": tcp, "p99": p99[0]},
        "ours": {"rate": ours, "p99": p99[1], "share": share},
        "again": {"rate": tcp if again is None else again},
    }


class Figures(unittest.TestCase):
    def test_every_pair_counts_and_the_worst_is_told(self):
        s = summary(ROW, "busy", [a_round(10, 30), a_round(10, 1), a_round(10, 20)])
        self.assertEqual((s.ratio.worst, s.ratio.median, s.ratio.best), (0.1, 2, 3))
        self.assertEqual(len(s.missed), 1)

    def test_only_the_conditions_that_a_row_names_are_strict(self):
        row = Row("a", "", None, strict=BUSY)
        missed = {k: len(summary(row, k, [a_round(10, 5)]).missed) for k in ("idle", "busy", "one")}
        self.assertEqual(missed, {"idle": 1, "busy": 2, "one": 0})

    def test_ours_and_tcp_are_neighbours_and_take_turns(self):
        self.assertEqual([order(i)[1] for i in range(4)], ["tcp"] * 4)
        self.assertEqual([order(i)[0] for i in range(4)], ["ours", "again", "ours", "again"])

    def test_tcp_beside_tcp_shows_the_scatter(self):
        s = summary(ROW, "idle", [a_round(10, 10, 5), a_round(10, 10, 40)])
        self.assertEqual((s.scatter.worst, s.scatter.best), (0.5, 4))

    def test_less_is_better_where_the_row_says_so(self):
        s = summary(Row("t", "", None, key="rate", less=True), "idle", [a_round(10, 5)])
        self.assertEqual(s.ratio.median, 2)

    def test_p99_is_less_and_judged_beside_busy_loops(self):
        rounds = [a_round(10, 30, p99=(10, 20))]
        self.assertEqual(summary(ROW, "busy", rounds).p99, 0.5)
        self.assertEqual(len(summary(ROW, "busy", rounds).missed), 1)
        self.assertEqual(summary(ROW, "idle", rounds).missed, [])

    def test_a_client_that_was_cut_off_has_a_rate_and_no_p99(self):
        cut = a_round(10, 1)
        del cut["ours"]["p99"]
        s = summary(ROW, "idle", [cut])
        self.assertEqual((s.ratio.worst, s.p99), (0.1, None))

    def test_a_row_may_have_a_bound_instead_of_a_ratio(self):
        row = Row("b", "", None, less=True, most=100, above_tcp=True)
        self.assertEqual(summary(row, "idle", [a_round(50, 150)]).missed, [])
        self.assertEqual(len(summary(row, "idle", [a_round(50, 151)]).missed), 1)
        self.assertEqual(
            len(summary(Row("b", "", None, most=1.2), "idle", [a_round(9, 1.3)]).missed), 1
        )

    def test_a_request_may_not_take_more_of_the_processor(self):
        r = a_round(10, 10)
        r["tcp"]["cpu"], r["ours"]["cpu"] = 4, 5
        self.assertEqual(len(summary(ROW, "idle", [r]).missed), 1)


class Rows(unittest.TestCase):
    def test_names_are_unique(self):
        names = [r.name for r in ROWS]
        self.assertEqual(len(names), len(set(names)))

    def test_conditions(self):
        self.assertEqual((condition("busy:8").loops, condition("busy:8").kind), (8, "busy"))
        self.assertEqual((condition("one").loops, condition("one").kind), (1, "one"))
        self.assertIn(condition("one").pinned, os.sched_getaffinity(0))
        for wrong in ("busy:", "two", "busy:x"):
            self.assertRaises(ValueError, condition, wrong)

    def test_strict_rows_mean_something_beside_busy_loops(self):
        self.assertFalse([r.name for r in ROWS if not set(r.strict) <= set(r.kinds)])


class Shown(unittest.TestCase):
    def test_a_row_that_stayed_on_tcp_says_so(self):
        s = summary(ROW, "idle", [a_round(10, 9, share=0.004)])
        done = [(ROW, condition("idle"), [], s)]
        self.assertIn(
            " 0 % of the bytes not by TCP; MISSED median 0.9",
            report.line(ROW, condition("idle"), s, 1),
        )
        self.assertIn("the least 0.9 ", report.table("m", done))
        self.assertEqual(
            json.loads(report.as_json("m", done))["rows"][0]["summary"]["ratio"]["median"], 0.9
        )


if __name__ == "__main__":
    unittest.main()
