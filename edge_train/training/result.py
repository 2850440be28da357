"""What a run comes to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from edge_train.governor import StopReason
from edge_train.training.run_state import Best


@dataclass(frozen=True)
class Result:
    """The end of a run: ``reason`` says why, ``detail`` in words.

    ``steps`` counts those of all attempts, ``skipped`` the ones with a NaN or infinity among them;
    ``seconds`` is time at work over all attempts, ``paused`` seconds of this one by reason.
    ``metrics`` are those of the last evaluation. ``peak_memory`` is bytes, ``saved`` the state that
    a resume starts from (None without a run folder), ``failed_save`` why the last save of the
    state or of the best weights failed if it did, ``unreadable`` the images that were left out.
    """

    reason: StopReason
    steps: int
    epoch: int
    loss: float | None
    detail: str = ""
    resumed_from: int = 0
    skipped: int = 0
    seconds: float = 0.0
    paused: Mapping[str, float] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)
    best: Best | None = None
    peak_memory: int = 0
    throttled: float = 0.0
    bytes_written: int = 0
    saved: Path | None = None
    failed_save: str = ""
    unreadable: int = 0
