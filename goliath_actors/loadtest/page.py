"""The report as one page that opens without a network: figures, checks, and plots inside of it."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape
from typing import Any

from hdrh.histogram import HdrHistogram

from ._dice import show_seconds as seconds
from .report import ENDS, LoadReport

__all__ = ["as_page"]

_STYLE = """
:root { color-scheme: light dark; --ink: #1b1f24; --soft: #59636e; --line: #d8dee4; --back: #ffffff; --card: #f6f8fa;
  --good: #1a7f37; --bad: #cf222e; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6edf3; --soft: #9aa4af; --line: #30363d; --back: #0d1117;
  --card: #161b22; --good: #3fb950; --bad: #ff7b72; } }
body { margin: 0 auto; max-width: 66rem; padding: 2rem 1.25rem 4rem; font: 16px/1.5 system-ui, sans-serif;
  color: var(--ink); background: var(--back); }
h1 { font-size: 1.6rem; margin: 0; } h2 { font-size: 1.1rem; margin: 2.5rem 0 .75rem; }
p.soft { color: var(--soft); margin: .25rem 0 0; } tr.soft td { color: var(--soft); }
.said { white-space: normal; font-size: .85em; }
tr.soft td:first-child { padding-left: 1.6rem; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { text-align: right; padding: .4rem .6rem; border-bottom: 1px solid var(--line); }
th:first-child, td:first-child { text-align: left; } th { color: var(--soft); font-weight: 500; }
.good { color: var(--good); } .bad { color: var(--bad); font-weight: 600; }
td, th { white-space: nowrap; }
.verdict { display: inline-block; margin-top: 1rem; padding: .35rem .8rem; border-radius: 2rem;
  background: var(--card); }
figure { margin: 0 0 1.25rem; padding: .75rem; background: #fff; border: 1px solid var(--line); border-radius: .5rem; }
figure svg { width: 100%; height: auto; display: block; }
.wide { overflow-x: auto; } pre { background: var(--card); padding: 1rem; overflow-x: auto; border-radius: .5rem; }
details { margin-top: 1rem; } li { margin: .2rem 0; }
"""


def as_page(report: LoadReport) -> str:
    """Return the report as HTML. Draws the plots with matplotlib, which takes a second or two."""
    counts = report.figures["counts"]
    verdict = f'<span class="verdict {"good" if report.ok else "bad"}">{escape(report.verdict)}</span>'
    rows = "".join(
        _track_row(words, report.figures[name]) for name, words in _TRACKS.items() if report.figures[name]["count"]
    )
    ends = "".join(_end_row(words, counts[name], counts["sent"]) for name, words in ENDS.items() if counts[name])
    checks = "".join(_check_item(check.name, check.ok, check.detail, ()) for check in report.checks)
    # What broke comes first, in full; the list below says what was looked at.
    failures = "".join(
        _check_item(check.name, check.ok, check.detail, check.evidence) for check in report.checks if not check.ok
    )
    if failures:
        failures = f"<h2>What broke</h2><ul>{failures}</ul>"
    thresholds = "".join(
        _check_item(judged.wanted, judged.held, f"it is {judged.shown}", ()) for judged in report.thresholds
    )
    if thresholds:
        thresholds = f"<h2>Thresholds</h2><ul>{thresholds}</ul>"
    reasons = "".join(
        _end_row(reason, n, counts["sent"], report.examples.get(reason)) for reason, n in report.reasons.items()
    )
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>{escape(report.name)}: load test</title><style>{_STYLE}</style></head><body>
<h1>{escape(report.name)}</h1>
<p class="soft">{escape(report.target)}, {report.seconds:.1f} s, {counts["sent"]} asks,
{report.figures["rate"]:.1f} answers a second, at most {counts["most_in_flight"]} in flight</p>
{verdict}
{failures}
{thresholds}
<h2>Times</h2><div class="wide"><table><tr><th></th><th>count</th><th>mean</th>{_heads()}</tr>{rows}</table></div>
<h2>How asks ended</h2><table>{ends}{reasons}</table>
<h2>Checks</h2><ul>{checks}</ul>
<h2>Plots</h2>{"".join(_plots(report))}
<details><summary>Scenario and machine</summary>
<pre>{escape(json.dumps({"scenario": report.scenario, "machine": report.machine}, indent=2))}</pre></details>
</body></html>
"""


_TRACKS = {
    "latency": "answer, from the intended start",
    "first": "first words, from the intended start",
    "queued": "wait for its turn",
    "lag": "sent late by",
}
_SHOWN = ("p50", "p90", "p95", "p99", "p99.9", "max")


def _end_row(words: str, count: int, sent: int, example: str | None = "") -> str:
    """Return a row; with anything but an empty example it stands for a part of the rows above."""
    row = "<tr>" if example == "" else '<tr class="soft">'
    said = f'<div class="said">{escape(example)}</div>' if example else ""
    return f"{row}<td>{escape(words)}{said}</td><td>{count}</td><td>{count / max(sent, 1):.1%}</td></tr>"


def _heads() -> str:
    return "".join(f"<th>{name}</th>" for name in _SHOWN)


def _track_row(words: str, summary: Mapping[str, float]) -> str:
    cells = "".join(f"<td>{seconds(summary[name])}</td>" for name in _SHOWN)
    return f"<tr><td>{escape(words)}</td><td>{summary['count']}</td><td>{seconds(summary['mean'])}</td>{cells}</tr>"


def _check_item(name: str, ok: bool, detail: str, evidence: Sequence[str]) -> str:
    mark = '<span class="good">holds</span>' if ok else '<span class="bad">FAILED</span>'
    shown = f"<pre>{escape(chr(10).join(evidence))}</pre>" if evidence else ""
    return f"<li>{mark} {escape(name)}: {escape(detail)}{shown}</li>"


def _plots(report: LoadReport) -> list[str]:
    """Return the figures as inline SVG, those left out for which nothing was measured.

    matplotlib is imported here: it takes longer than most load tests' set-up.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib.figure import Figure

    matplotlib.rcParams["svg.fonttype"] = "none"
    matplotlib.rcParams["svg.hashsalt"] = "goliath"

    def drawn(title: str, label: str, draw: Callable[[Any], None]) -> str:
        figure = Figure(figsize=(9, 3.2), layout="constrained")
        axes = figure.subplots()
        axes.set_title(title, loc="left", fontsize=11)
        axes.set_ylabel(label)
        axes.grid(alpha=0.25)
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
        draw(axes)
        text = io.StringIO()
        figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None})
        svg = text.getvalue()
        return f'<figure role="img" aria-label="{escape(title)}">{svg[svg.index("<svg") :]}</figure>'

    # Where asking ended and the last answers were waited for, if that took long enough to be seen.
    end = float(report.scenario["duration"])
    waited = report.seconds > 1.05 * end

    def over_time(*lines: tuple[str, str], factor: float = 1.0) -> Callable[[Any], None]:
        def draw(axes: Any) -> None:
            for key, label in lines:
                seen = [(point["at"], value * factor) for point in report.timeline if (value := point[key]) is not None]
                axes.plot(*zip(*seen, strict=True), label=label, linewidth=1.6) if seen else axes.plot([], label=label)
            if waited:
                axes.axvline(end, color="#888888", linestyle=":", linewidth=1.2, label="no more asks")
            axes.set_xlabel("seconds")
            axes.set_ylim(bottom=0)
            axes.legend(frameon=False, fontsize=9)

        return draw

    unit, factor = _unit(point["p99"] for point in report.timeline)
    first_unit, first_factor = _unit(point["first_p99"] for point in report.timeline)
    answered, begun = (bool(report.figures[name]["count"]) for name in ("latency", "first"))
    plots: list[tuple[bool, str, str, Callable[[Any], None]]] = [
        (answered, "Latency over time", unit, over_time(("p50", "median"), ("p99", "p99"), factor=factor)),
        (answered or begun, "Percentiles", unit, lambda axes: _percentile_curves(axes, report, factor)),
        (
            begun,
            "Time to first words",
            first_unit,
            over_time(("first_p50", "median"), ("first_p99", "p99"), factor=first_factor),
        ),
        (True, "Answers and failures", "a second", over_time(("ended", "answers"), ("failed", "failures"))),
        (True, "Queue depth", "runs", over_time(("waiting", "waiting"), ("running", "running"))),
    ]
    return [drawn(title, label, draw) for measured, title, label, draw in plots if measured]


def _unit(times: Iterable[float | None]) -> tuple[str, float]:
    """Return the unit in which these seconds are read best, and what to multiply them by."""
    return ("s", 1.0) if max((time for time in times if time is not None), default=0.0) >= 2.0 else ("ms", 1e3)


def _percentile_curves(axes: Any, report: LoadReport, factor: float) -> None:
    """Draw each track's percentiles over a scale on which every further nine is as wide as the one before, as far as
    there are values behind them."""
    most = max([2, *(report.figures[name]["count"] for name in ("latency", "first"))])
    steps = min(math.ceil(20 * math.log10(most)), 80)
    ranks = [1 - 10 ** (-step / 20) for step in range(steps + 1)]
    for name in ("latency", "first"):
        if report.figures[name]["count"]:
            histogram = HdrHistogram.decode(report.histograms[name])
            values = [histogram.get_value_at_percentile(rank * 100) / 1e6 * factor for rank in ranks]
            axes.plot([1 / (1 - rank) for rank in ranks], values, label=_TRACKS[name], linewidth=1.6)
    ticks = {1: "0", 2: "50 %", 10: "90 %", 100: "99 %", 1000: "99.9 %", 10000: "99.99 %"}
    shown = {at: words for at, words in ticks.items() if at <= 1 / (1 - ranks[-1]) * 1.01}
    axes.set_xscale("log")
    axes.set_xticks(list(shown), list(shown.values()))
    axes.minorticks_off()
    axes.set_ylim(bottom=0)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(frameon=False, fontsize=9)
