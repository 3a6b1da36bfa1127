"""Tests of what is made of measurements. `tests/bench/check` runs them."""

import json
import signal
import subprocess
import unittest
import xml.etree.ElementTree as xml

from . import plot, report
from .figures import Cell, Metric, Target, choose, enough, fast_speed, summary
from .rows import ROWS, Row, beside_another_build
from .run import Bed, Failed

LESS = Metric("p50", "p50", "µs", True, (Target("better", 15), Target("lines", 4)))
MORE = Metric("rate", "", "MB/s", False, (Target("better", 4), Target("ring", 0.7)))


def cell(value, line=100.0, others=0.0, ring=0.0, key="p50"):
    return Cell({key: value}, (line, line), others, ring)


class Figures(unittest.TestCase):
    def test_ratio_says_how_many_times_better(self):
        r = summary(LESS, [(cell(8.0), cell(0.4))], 100)
        self.assertAlmostEqual(r.ratio, 20)
        r = summary(MORE, [(cell(3000, key="rate"), cell(9000, key="rate"))], 100)
        self.assertAlmostEqual(r.ratio, 3)

    def test_the_median_is_that_of_the_pairs_ratios(self):
        pairs = [(cell(8.0), cell(0.4)), (cell(16.0), cell(0.4)), (cell(4.0), cell(0.4))]
        r = summary(LESS, pairs, 100)
        self.assertEqual((r.ratio, r.low, r.high, r.pairs), (20, 10, 40, 3))

    def test_only_pairs_of_the_fast_speed_count(self):
        fair, slow = (cell(8.0), cell(0.4)), (cell(12.0, line=240), cell(0.8, line=240))
        torn = (cell(8.0), cell(0.8, line=240))
        used, is_fair = choose([slow, fair, torn], 100)
        self.assertEqual((used, is_fair), ([fair], True))
        self.assertEqual(choose([slow, torn], 100), ([slow], False))
        self.assertEqual(choose([torn], 100), ([torn], False))
        self.assertFalse(enough([fair, slow], 100, 2))

    def test_a_speed_that_changed_in_a_cell_is_neither(self):
        changed = Cell({"p50": 1.0}, (100, 240))
        self.assertEqual(changed.speed(100), "mixed")
        self.assertFalse(choose([(changed, changed)], 100)[1])

    def test_a_machine_in_use_is_not_fair(self):
        r = summary(LESS, [(cell(8.0, others=0.4), cell(0.1))], 100)
        self.assertFalse(r.fair)

    def test_counts_are_fair_at_any_speed(self):
        count = Metric("n", "", "", True, (Target("above", 15),), noisy=False)
        r = summary(count, [(cell(9, line=100, key="n"), cell(25, line=900, key="n"))], 100)
        self.assertTrue(r.fair)
        self.assertEqual(r.verdicts[0][2], False)

    def test_one_odd_probe_is_not_the_machines_speed(self):
        self.assertEqual(fast_speed([102, 49, 103, 104, 240, 250, 101, 102, 103, 102]), 101)
        self.assertEqual(fast_speed([240, 100, 102, 250, 245]), 100)
        self.assertEqual(fast_speed([]), 0)

    def test_limits_of_the_day(self):
        r = summary(LESS, [(cell(8.0), cell(0.41))], 100)
        self.assertEqual([met for _, _, met in r.verdicts], [True, False])
        r = summary(MORE, [(cell(2000, key="rate"), cell(9000, ring=10000, key="rate"))], 100)
        self.assertEqual([met for _, _, met in r.verdicts], [True, True])

    def test_costs_and_differences(self):
        m = Metric("cpu", "", "µs", True, (Target("costs", 1.5), Target("above", 32), Target("at_most", 100)))
        r = summary(m, [(cell(60, key="cpu"), cell(91, key="cpu"))], 100)
        self.assertEqual([met for _, _, met in r.verdicts], [False, True, True])

    def test_a_metric_that_nobody_measured_has_no_result(self):
        self.assertIsNone(summary(MORE, [(cell(1), cell(1))], 100))


class Shown(unittest.TestCase):
    def results(self, fair=True):
        row = Row("a", "A <row> & more", None, (LESS,))
        pair = (cell(8.0), cell(0.4, others=0 if fair else 0.9))
        return row, [pair], [(row, [summary(LESS, [pair], 100)])]

    def test_json_has_every_pair(self):
        row, pairs, results = self.results()
        read = json.loads(report.as_json("m", {}, [(row, pairs)], results))
        self.assertEqual(read["rows"][0]["metrics"][0]["times_better"], 20)
        self.assertEqual(len(read["rows"][0]["pairs"]), 1)

    def test_the_plot_is_well_formed_and_shows_each_bar(self):
        _, _, results = self.results()
        root = xml.fromstring(plot.svg("a & b", results))
        self.assertIn("A <row> & more, p50", [e.text for e in root.iter() if e.text])
        self.assertIn("20 ×", [e.text for e in root.iter() if e.text])

    def test_what_is_not_fair_says_so(self):
        _, _, results = self.results(fair=False)
        self.assertIn("not fair", report.table("m", {"line_ns": 1, "line_now_ns": 1, "ring_mb_s": 1}, results))
        self.assertIn(plot.UNFAIR, plot.svg("m", results).split("</text>", 2)[2])

    def test_names_are_unique_and_listed(self):
        names = [r.name for r in ROWS]
        self.assertEqual(len(names), len(set(names)))
        for name in names:
            self.assertIn(name, report.listing(ROWS))


class AnotherBuild(unittest.TestCase):
    def test_a_twentieth_may_be_lost(self):
        row = beside_another_build(Row("a", "A", None, (LESS,)))
        for ours, met in ((8.0, True), (8.3, True), (8.6, False)):
            r = summary(row.metrics[0], [(cell(8.0), cell(ours))], 100)
            self.assertEqual([met for _, _, met in r.verdicts], [met])

    def test_a_plot_without_bars_is_well_formed(self):
        row = beside_another_build(Row("a", "A", None, (LESS,)))
        xml.fromstring(plot.svg("m", [(row, [summary(row.metrics[0], [(cell(8.0), cell(8.0))], 100)])]))


class Servers(unittest.TestCase):
    def start(self, bed, script):
        """A server that has got as far as its last line."""
        p = subprocess.Popen(["sh", "-c", f"{script}"], stdout=subprocess.PIPE, process_group=0)
        bed.servers.append(p)
        p.stdout.readline()
        p.stdout.close()
        return p

    def test_one_that_dies_of_a_signal_fails_its_row(self):
        for library, carrier in ((None, "kernel TCP"), ("", "the library")):
            with Bed(library) as bed:
                dies = self.start(bed, "trap 'kill -SEGV $$' USR1; echo; while :; do sleep 0.01; done")
                with self.assertRaisesRegex(Failed, f"{carrier}.*Segmentation"):
                    bed.stop(dies, signal.SIGUSR1)
                died = self.start(bed, "echo; kill -SEGV $$")
                died.wait()
                with self.assertRaisesRegex(Failed, f"{carrier}.*Segmentation"):
                    bed.client("true")

    def test_one_that_ends_as_it_was_told_does_not(self):
        with Bed() as bed:
            for script in ("trap 'exit 0' TERM; echo; while :; do sleep 0.01; done", "echo; exec sleep 9"):
                bed.stop(self.start(bed, script))
            bed.client("true")


if __name__ == "__main__":
    unittest.main()
