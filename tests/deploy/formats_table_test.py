#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""bench/formats.md is what bench/formats_table.py makes of the newest file of bench/formats."""
import json
import pathlib
import sys
import unittest

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPOSITORY / "bench"))
sys.dont_write_bytecode = True
import formats_table  # noqa: E402


class FormatsTable(unittest.TestCase):
    def setUp(self):
        self.record = json.loads(sorted((REPOSITORY / "bench/formats").glob("*.json"))[-1].read_text())

    def test_page_is_what_the_script_makes(self):
        self.assertEqual((REPOSITORY / "bench/formats.md").read_text(), formats_table.table(self.record))

    def test_a_changed_figure_changes_the_page(self):
        self.record["speeds"][f"{formats_table.FORMATS[0][1]}, 1"]["of_gops"] += 0.5
        self.assertNotEqual((REPOSITORY / "bench/formats.md").read_text(), formats_table.table(self.record))

    def test_every_format_has_figures(self):
        for _, shape, *_ in formats_table.FORMATS:
            for rows in formats_table.ROWS:
                self.assertGreater(self.record["speeds"][f"{shape}, {rows}"]["of_gops"], 0)


if __name__ == "__main__":
    unittest.main()
