"""The report as one page that opens without a network: figures, checks, and plots inside of it."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import Any

from hdrh.histogram import HdrHistogram

from .report import LoadReport, seconds

__all__ = ["as_page"]

_STYLE = """
:root { color-scheme: light dark; --ink: #1b1f24; --soft: #59636e; --line: #d8dee4; --back: #ffffff; --card: #f6f8fa;
  --good: #1a7f37; --bad: #cf222e; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6edf3; --soft: #9aa4af; --line: #30363d; --back: #0d1117;
  --card: #161b22; --good: #3fb950; --bad: #ff7b72; } }
body { margin: 0 auto; max-width: 66rem; padding: 2rem 1.25rem 4rem; font: 16px/1.5 system-ui, sans-serif;
  color: var(--ink); background: var(--back); }
h1 { font-size: 1.6rem; margin: 0; } h2 { font-size: 1.1rem; margin: 2.5rem 0 .75rem; }
p.soft { color: var(--soft); margin: .25rem 0 0; }
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
    verdict = '<span class="verdict good">everything holds</span>'
    if not report.ok:
        verdict = '<span class="verdict bad">failed: see the checks</span>'
    rows = "".join(_track_row(words, report.figures[name]) for name, words in _TRACKS.items())
    ends = "".join(f"<tr><td>{escape(name)}</td><td>{counts[name]}</td></tr>" for name in _ENDS)
    checks = "".join(_check_item(check.name, check.ok, check.detail, check.evidence) for check in report.checks)
    checks += "".join(_check_item(text, False, "a threshold", ()) for text in report.broken)
    reasons = "".join(f"<tr><td>{escape(reason)}</td><td>{n}</td></tr>" for reason, n in report.reasons.items())
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>{escape(report.name)}: load test</title><style>{_STYLE}</style></head><body>
<h1>{escape(report.name)}</h1>
<p class="soft">{escape(report.target)}, {report.seconds:.1f} s, {counts["sent"]} asks,
{report.figures["rate"]:.1f} answers a second, at most {counts["most_in_flight"]} in flight</p>
{verdict}
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
_ENDS = ("completed", "stopped", "error", "aborted", "refused", "not_sent")
_SHOWN = ("p50", "p90", "p95", "p99", "p99.9", "max")


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
    """Return the figures as inline SVG. matplotlib is imported here: it takes longer than most load tests' set-up."""
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

    at = [point["at"] for point in report.timeline]

    def over_time(*lines: tuple[str, str, float]) -> Callable[[Any], None]:
        def draw(axes: Any) -> None:
            for key, label, factor in lines:
                axes.plot(at, [point[key] * factor for point in report.timeline], label=label, linewidth=1.6)
            axes.set_xlabel("seconds")
            axes.set_ylim(bottom=0)
            axes.legend(frameon=False, fontsize=9)

        return draw

    return [
        drawn("Latency over time", "ms", over_time(("p50", "median", 1e3), ("p99", "p99", 1e3))),
        drawn("Percentiles", "ms", lambda axes: _percentile_curves(axes, report.histograms)),
        drawn("Time to first words", "ms", over_time(("first_p50", "median", 1e3))),
        drawn("Answers and failures", "a second", over_time(("ended", "answers", 1), ("failed", "failures", 1))),
        drawn("Queue depth", "runs", over_time(("waiting", "waiting", 1), ("running", "running", 1))),
    ]


def _percentile_curves(axes: Any, histograms: Mapping[str, str]) -> None:
    """Draw each track's percentiles over a scale on which every further nine is as wide as the one before."""
    ranks = [1 - 10 ** (-step / 20) for step in range(81)]
    for name in ("latency", "first"):
        if name in histograms:
            histogram = HdrHistogram.decode(histograms[name])
            values = [histogram.get_value_at_percentile(rank * 100) / 1e3 for rank in ranks]
            axes.plot([1 / (1 - rank) for rank in ranks], values, label=_TRACKS[name], linewidth=1.6)
    axes.set_xscale("log")
    axes.set_xticks([1, 2, 10, 100, 1000, 10000], ["0", "50 %", "90 %", "99 %", "99.9 %", "99.99 %"])
    axes.minorticks_off()
    axes.set_ylim(bottom=0)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(frameon=False, fontsize=9)
