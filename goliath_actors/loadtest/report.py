"""What came of a load test: figures, checks, thresholds; as data, as text, and as a page with plots."""

from __future__ import annotations

import json
import platform
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from goliath_actors import __version__

from ._dice import show_seconds
from ._ledger import Check
from ._measure import Recorder
from .scenario import Scenario
from .thresholds import Judged, Threshold

__all__ = ["ENDS", "LoadReport", "make_report"]


@attrs.frozen(kw_only=True)
class LoadReport:
    """What came of a load test. `ok`: it came to its end, every check holds and no threshold is broken."""

    name: str
    target: str
    seconds: float
    # Any: plain JSON data; see `as_data`.
    figures: Mapping[str, Any]
    timeline: Sequence[Mapping[str, float | None]]
    histograms: Mapping[str, str]
    reasons: Mapping[str, int]
    examples: Mapping[str, str]
    checks: Sequence[Check]
    thresholds: Sequence[Judged]
    machine: Mapping[str, str]
    scenario: Mapping[str, Any]
    # Told to stop before everything was sent and answered: what it says is of a part of the load.
    interrupted: bool = False

    @property
    def ok(self) -> bool:
        """Whether it came to its end, every check holds and no threshold is broken."""
        return not self.interrupted and not self.broken and all(check.ok for check in self.checks)

    @property
    def verdict(self) -> str:
        """Whether it passed, in words."""
        failed = [
            _count(sum(not check.ok for check in self.checks), "check"),
            _count(len(self.broken), "threshold"),
        ]
        words = f"FAILED: {' and '.join(filter(None, failed))}" if any(failed) else ""
        if self.interrupted:
            early = f"INTERRUPTED after {self.seconds:.1f} s of {self.scenario['duration']:g} s"
            return f"{early}; {words}" if words else early
        return words or "passed"

    @property
    def broken(self) -> Sequence[str]:
        """The thresholds that were passed, in words."""
        return [f"{judged.text}: it is {judged.shown}" for judged in self.thresholds if not judged.held]

    def as_data(self) -> dict[str, Any]:
        """Return everything as plain data for JSON. Times are in seconds; histograms are in microseconds, encoded."""
        data = attrs.asdict(self)
        return {"ok": self.ok, **data, "broken": list(self.broken)}

    def as_json(self) -> str:
        """Return `as_data` as indented JSON."""
        return json.dumps(self.as_data(), indent=2, sort_keys=False) + "\n"

    def as_text(self) -> str:
        """Return a table for a terminal."""
        counts = self.figures["counts"]
        lines = [
            f"{self.name}: {self.target}, {self.seconds:.1f} s",
            "",
            f"  sent {counts['sent']}   "
            + "   ".join(f"{words} {counts[name]}" for name, words in ENDS.items() if counts[name]),
            f"  {self.figures['rate']:.1f} answers a second, at most {counts['most_in_flight']} in flight",
            "",
            f"  {'':<22}{'p50':>10}{'p90':>10}{'p99':>10}{'p99.9':>10}{'max':>10}",
        ]
        for track, words in _TRACKS.items():
            summary = self.figures[track]
            if summary["count"]:
                shown = "".join(f"{show_seconds(summary[key]):>10}" for key in ("p50", "p90", "p99", "p99.9", "max"))
                lines.append(f"  {words:<22}{shown}")
        if self.reasons:
            lines.append("")
        for reason, count in self.reasons.items():
            lines.append(f"  {count:>7}  {reason}")
            if reason in self.examples:
                lines.append(f"           such as: {self.examples[reason]}")
        lines.append("")
        for check in self.checks:
            lines.append(f"  {'ok  ' if check.ok else 'FAIL'}  {check.name}: {check.detail}")
            lines += [f"          {line}" for line in check.evidence]
        if self.thresholds:
            lines.append("")
        for judged in self.thresholds:
            lines.append(f"  {'ok  ' if judged.held else 'FAIL'}  {judged.wanted}: it is {judged.shown}")
        lines += ["", f"  {self.verdict}"]
        return "\n".join(lines) + "\n"


ENDS = {
    "completed": "completed",
    "stopped": "stopped",
    "error": "error",
    "aborted": "aborted",
    "refused": "refused",
    "not_sent": "not sent",
}
_TRACKS = {
    "latency": "answer",
    "first": "first words",
    "queued": "wait for its turn",
    "lag": "sent late by",
}


def _count(number: int, word: str) -> str:
    return f"{number} {word}{'s' * (number > 1)}" if number else ""


def make_report(
    scenario: Scenario,
    target: str,
    record: Recorder,
    seconds: float,
    checks: Sequence[Check],
    thresholds: Sequence[Threshold],
    interrupted: bool = False,
) -> LoadReport:
    """Return the report of a load test that is over."""
    statuses = record.statuses
    answered = statuses["completed"] + statuses["stopped"]
    figures: dict[str, Any] = {
        "counts": {
            "sent": record.sent,
            **{name: statuses[name] for name in ENDS if name != "not_sent"},
            "errors": statuses["error"],
            "not_sent": record.not_sent,
            "most_in_flight": record.most_in_flight,
        },
        "rate": answered / seconds if seconds else 0.0,
        **{name: getattr(record, name).summary() for name in _TRACKS},
    }
    ours = [
        Check(
            "every ask that was sent has an end",
            record.sent == sum(statuses.values()),
            f"{record.sent} sent, {sum(statuses.values())} ended",
        )
    ]
    if not answered and not (interrupted and statuses["aborted"] == record.sent):
        aborted = ", or were aborted" if statuses["aborted"] else ""
        unanswered = (
            f"all {record.sent} failed or were refused{aborted}" if record.sent else "none was sent in this time"
        )
        ours.append(Check("an ask was answered", False, unanswered))
    if record.not_sent:
        ours.append(Check("every ask could be sent", False, f"{record.not_sent} not sent: too many were in flight"))
    return LoadReport(
        name=scenario.name,
        target=target,
        seconds=seconds,
        figures=figures,
        timeline=record.timeline(),
        histograms={name: getattr(record, name).encoded() for name in _TRACKS if getattr(record, name).count},
        reasons=dict(record.reasons.most_common()),
        examples=dict(record.examples),
        checks=(*ours, *checks),
        thresholds=tuple(threshold.judge(figures) for threshold in thresholds),
        machine={
            "python": platform.python_version(),
            "system": f"{platform.system()} {platform.machine()}",
            "implementation": sys.implementation.name,
            "goliath_actors": __version__,
        },
        scenario=_plain(attrs.asdict(scenario)),
        interrupted=interrupted,
    )


def _plain(value: Any) -> Any:
    """Return a scenario's values as JSON data."""
    if isinstance(value, Mapping):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(inner) for inner in value]
    return value
