"""The closing table of .ci/run: python tools/lane_table.py FOLDER LANE...

FOLDER holds for each lane NAME.result ("exit-code seconds") and where there are some NAME.xml and
NAME.*.xml (pytest's junit reports) and NAME.skip (why the lane did nothing). Exits 1 when a lane
failed or left no result.
"""

from __future__ import annotations

import sys
import xml.etree.ElementTree as ElementTree
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path


@dataclass
class Lane:
    """One row; without a junit report the lane counts as one test."""

    name: str
    seconds: int = 0
    passed: int = 0
    failed: int = 0
    skips: Counter[str] = field(default_factory=Counter)
    result: str = "MISSING"

    @property
    def skipped(self) -> int:
        return self.skips.total()

    def row(self) -> str:
        reasons = "; ".join(f"{count}: {reason}" for reason, count in self.skips.items())
        why = f"{self.skipped} ({reasons})" if self.skips else "0"
        figures = f"{self.seconds:>5} | {self.passed:>6} | {self.failed:>6}"
        return f"| {self.name:8} | {figures} | {self.result:7} | {why} |"


def _reason(skipped: ElementTree.Element) -> str:
    """Why; of a whole file pytest says so in the text: "(file, line, 'Skipped: reason')"."""
    reason = skipped.get("message", "no reason").splitlines()[0]
    whole = (skipped.text or "").rpartition("Skipped: ")[2].rstrip("')\n")
    return f"{whole} (a file)" if reason == "collection skipped" and whole else reason


def read_report(lane: Lane, report: Path) -> None:
    for case in ElementTree.parse(report).iter("testcase"):
        skipped = case.find("skipped")
        if skipped is not None:
            lane.skips[_reason(skipped)] += 1
        elif case.find("failure") is not None or case.find("error") is not None:
            lane.failed += 1
        else:
            lane.passed += 1


def read_lane(folder: Path, name: str) -> Lane:
    lane = Lane(name)
    result = folder / f"{name}.result"
    if not result.exists():
        lane.failed = 1
        return lane
    code, lane.seconds = map(int, result.read_text().split())
    lane.result = "ok" if code == 0 else f"exit {code}"
    skip = folder / f"{name}.skip"
    if skip.exists():
        lane.skips[skip.read_text().strip()] += 1
    else:
        for report in (folder / f"{name}.xml", *folder.glob(f"{name}.*.xml")):
            if report.exists():
                read_report(lane, report)
    if code == 0 and not (lane.passed or lane.failed or lane.skips):
        lane.passed = 1
    if code and not lane.failed:
        lane.failed = 1
    if code == 0 and lane.failed:
        lane.result = "exit 0?"
    return lane


def main(folder: Path, names: list[str]) -> int:
    lanes = [read_lane(folder, name) for name in names]
    lanes += [
        Lane(path.stem, failed=1, result="UNLISTED")
        for path in sorted(folder.glob("*.result"))
        if path.stem not in names
    ]
    print("\n| lane     |     s | passed | failed | result  | skipped and why |")
    print("|----------|-------|--------|--------|---------|-----------------|")
    for lane in lanes:
        print(lane.row())
    passed, failed, skipped = (
        sum(getattr(lane, key) for lane in lanes) for key in ("passed", "failed", "skipped")
    )
    print(f"\n{passed} passed, {failed} failed, {skipped} skipped")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
