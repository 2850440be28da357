"""What a release needs: one version everywhere, files that the wheel carries, pages that exist."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]
DEMO = ROOT / "edge_train" / "demo"


def test_changelog_tells_of_this_version() -> None:
    version = re.search(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    changelog = (ROOT / "CHANGELOG.md").read_text()
    top = re.search(r"^## \[(\d.*?)\]", changelog, re.MULTILINE)
    assert version is not None
    assert top is not None
    assert top[1] == version[1]


@pytest.mark.parametrize(
    "page",
    [
        "README.md",
        "docs/README.md",
        "docs/generating.md",
        "docs/migrating.md",
        "docs/commands.md",
        "docs/platforms.md",
    ],
)
def test_links_of_the_pages_exist(page: str) -> None:
    path = ROOT / page
    links = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", path.read_text())
    assert links
    assert [link for link in links if not (path.parent / link).exists()] == []


def test_digits_are_what_their_page_says() -> None:
    with np.load(DEMO / "digits.npz") as digits:
        images, labels = digits["images"], digits["labels"]
    assert images.shape == (1797, 8, 8)
    assert images.dtype == labels.dtype == np.uint8
    assert images.max() == 16
    # every digit is in both parts, about as often
    for part in (labels[:1437], labels[1437:]):
        assert np.bincount(part, minlength=10).min() > 0.07 * len(part)
    assert (DEMO / "digits.npz").stat().st_size < 100_000
