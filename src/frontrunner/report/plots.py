"""Figures, drawn with matplotlib without a display: frontier.png, and SVG for the HTML report.

SVG text stays text and colours become CSS variables, so that the page's fonts and its light or
dark theme apply. The same data gives the same bytes.
"""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK = "#1b1f24"
MUTED = "#6a737d"
GRID = "#e4e7eb"
PAPER = "#ffffff"
LEVEL_COLORS = ("#d97706", "#0f8a6d", "#2f6fde", "#8b46c9", "#c2334d", "#5b6b1e")
"""Told apart with the common colour-vision deficiencies; reused in order beyond six levels."""

_VARIABLES = {INK: "--ink", MUTED: "--muted", GRID: "--grid", PAPER: "--paper"} | {
    color: f"--level-{i}" for i, color in enumerate(LEVEL_COLORS)
}
_LOG_FROM_RATIO = 4.0
"""Costs that span more than this are drawn on a log axis."""


def level_color(index: int) -> str:
    return LEVEL_COLORS[index % len(LEVEL_COLORS)]


def frontier_figure(frontier: Mapping[str, Any], size: tuple[float, float] = (7.6, 4.6)) -> Figure:
    """Cost and success before and after training at every level, with 95 % bars in both axes.

    `frontier` is the content of frontier.json; `size` in inches. Dotted lines join points of equal
    reward and touch the base points with slope lambda. Dominated points are grey, not hidden.
    Small dots are measurements during training (`eval.every`).
    """
    figure, axes = _new_figure(size)
    base = frontier["points"]["base"]
    final = frontier["points"]["final"]
    during = [
        measured for _, measured in sorted(frontier["points"].get("during", {}).items(), key=_step)
    ]
    every = [*base, *(final or []), *(p for measured in during for p in measured)]
    _scale_axes(axes, every)
    for index, (level, point) in enumerate(zip(frontier["levels"], base, strict=True)):
        if level["lambda"] is not None:
            _iso_reward(axes, point, level["lambda"], level_color(index))
    _frontier_line(axes, base, MUTED, "--")
    _frontier_line(axes, final or [], INK, "-")
    for index, before in enumerate(base):
        color = level_color(index)
        after = final[index] if final else None
        _point(axes, before, color, filled=False)
        path = [before, *(measured[index] for measured in during)]
        _path(axes, path, color)
        if after:
            _arrow(axes, path[-1], after, color)
            _point(axes, after, color, filled=True)
        _label(axes, after or before, color)
    axes.set_xlabel("cost per rollout (USD)")
    axes.set_ylabel("success")
    _legend(axes, after=bool(final))
    return figure


def write_frontier_png(frontier: Mapping[str, Any], path: Path) -> None:
    """The figure as PNG at 200 dots per inch, light theme."""
    figure = frontier_figure(frontier)
    figure.savefig(
        path,
        dpi=200,
        facecolor=PAPER,
        bbox_inches="tight",
        pad_inches=0.15,
        metadata={"Software": None},
    )


def frontier_svg(frontier: Mapping[str, Any], size: tuple[float, float], name: str) -> str:
    """The figure as an SVG element; `name` keeps the ids of several figures on a page apart."""
    return to_svg(frontier_figure(frontier, size), name, "Cost-performance frontier")


def curve_svg(
    series: Sequence[tuple[int, Sequence[float], Sequence[float]]], title: str, form: str
) -> str:
    """Training curves as an SVG element: raw values faint, a moving average on top.

    `series`: (level index or -1 for the whole policy, steps `[N]`, values `[N]`). `form`: percent,
    usd or number.
    """
    from matplotlib.ticker import MaxNLocator

    figure, axes = _new_figure((3.5, 2.1))
    for index, steps, values in series:
        color = INK if index < 0 else level_color(index)
        smooth = _moving_average(np.asarray(values, dtype=np.float64))
        axes.plot(steps, values, color=color, linewidth=0.8, alpha=0.3)
        axes.plot(steps, smooth, color=color, linewidth=1.8)
    axes.set_xlabel("step")
    if len(series[0][1]) == 1:
        axes.scatter(*series[0][1:], color=INK, s=12)
    axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    axes.yaxis.set_major_locator(MaxNLocator(5))
    axes.yaxis.set_major_formatter(_formatter(form))
    return to_svg(figure, "curve-" + re.sub(r"\W+", "-", title.lower()), title)


def to_svg(figure: Figure, name: str, label: str) -> str:
    """An `<svg>` element that scales to its container and takes colours from CSS variables."""
    import matplotlib as mpl

    buffer = io.StringIO()
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": name}):
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r'\s(?:width|height)="[\d.]+pt"', "", text, count=2)
    text = re.sub(r'(id="|href="#|url\(#)', rf"\g<1>{name}-", text)
    text = re.sub(r"(font(?:-family)?: [^;\"]*?)'DejaVu Sans'[^;\"]*", r"\1inherit", text)
    text = re.sub(r"font: ([\d.]+px) inherit", r"font-size: \1", text)
    for color, variable in _VARIABLES.items():
        text = text.replace(color, f"var({variable})")
    return text.replace("<svg", f'<svg role="img" aria-label="{label}"', 1)


def _new_figure(size: tuple[float, float]) -> tuple[Figure, Axes]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, layout="constrained")
    axes = figure.add_subplot()
    axes.grid(color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    for side in ("top", "right", "left", "bottom"):
        axes.spines[side].set_visible(side == "bottom")
        axes.spines[side].set_color(MUTED)
    axes.tick_params(colors=MUTED, length=0, labelsize=9, which="both")
    axes.xaxis.label.set_color(MUTED)
    axes.yaxis.label.set_color(MUTED)
    return figure, axes


def _scale_axes(axes: Axes, points: Sequence[Mapping[str, Any]]) -> None:
    from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter, NullLocator

    low = min(max(p["cost_low"], p["cost"] * 0.2) for p in points)
    high = max(p["cost_high"] for p in points)
    if low > 0.0 and max(p["cost"] for p in points) > _LOG_FROM_RATIO * low:
        axes.set_xscale("log")
        margin = (high / low) ** 0.12
        axes.set_xlim(low / margin, high * margin)
        axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 3.0, 5.0)))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_minor_formatter(NullFormatter())
    else:
        margin = 0.12 * (high - low) or 0.1 * high or 1.0
        axes.set_xlim(max(0.0, low - margin), high + margin)
        axes.xaxis.set_major_locator(MaxNLocator(max(2, int(axes.bbox.width / axes.figure.dpi))))
    bottom = min(p["success_low"] for p in points)
    top = max(p["success_high"] for p in points)
    margin = max(0.12 * (top - bottom), 0.01)
    axes.set_ylim(max(-0.02, bottom - margin), min(1.04, top + 1.4 * margin))
    axes.xaxis.set_major_formatter(_formatter("usd"))
    axes.yaxis.set_major_formatter(_formatter("percent"))


def _formatter(form: str) -> Any:
    from matplotlib.ticker import FuncFormatter

    texts = {
        "percent": lambda v, _: f"{100 * v:.3g}%",
        "usd": lambda v, _: "$" + np.format_float_positional(v, 3, fractional=False, trim="-"),
        "number": lambda v, _: f"{v:,.3g}" if abs(v) < 1000 else f"{v:,.0f}",
    }
    return FuncFormatter(texts[form])


def _iso_reward(axes: Axes, point: Mapping[str, Any], lambda_: float, color: str) -> None:
    left, right = axes.get_xlim()
    if axes.get_xscale() == "log":
        reach = (right / left) ** 0.2
        cost = np.geomspace(point["cost"] / reach, point["cost"] * reach, 64)
    else:
        reach = 0.2 * (right - left)
        cost = np.linspace(point["cost"] - reach, point["cost"] + reach, 2)
    success = point["success"] + lambda_ * (cost - point["cost"])
    axes.plot(cost, success, color=color, linewidth=1.5, linestyle=":", alpha=0.9, zorder=1.5)


def _frontier_line(axes: Axes, points: Sequence[Mapping[str, Any]], color: str, style: str) -> None:
    kept = [p for p in points if not p.get("dominated")]
    axes.plot(
        [p["cost"] for p in kept],
        [p["success"] for p in kept],
        color=color,
        linestyle=style,
        linewidth=1.1,
        alpha=0.6,
        zorder=2,
    )


def _point(axes: Axes, point: Mapping[str, Any], color: str, *, filled: bool) -> None:
    shown = MUTED if point.get("dominated") else color
    c, s = point["cost"], point["success"]
    axes.errorbar(
        [c],
        [s],
        xerr=[[max(0.0, c - point["cost_low"])], [max(0.0, point["cost_high"] - c)]],
        yerr=[[max(0.0, s - point["success_low"])], [max(0.0, point["success_high"] - s)]],
        fmt="o",
        color=shown,
        markersize=7.5,
        markerfacecolor=shown if filled else PAPER,
        markeredgewidth=1.6,
        elinewidth=1.1,
        alpha=0.45 if point.get("dominated") else 1.0,
        zorder=4 if filled else 3,
    )


def _arrow(axes: Axes, before: Mapping[str, Any], after: Mapping[str, Any], color: str) -> None:
    axes.annotate(
        "",
        xy=(after["cost"], after["success"]),
        xytext=(before["cost"], before["success"]),
        arrowprops={
            "arrowstyle": "-|>",
            "color": color,
            "linewidth": 1.5,
            "shrinkA": 6,
            "shrinkB": 6,
        },
        zorder=3.5,
    )


def _step(item: tuple[str, Any]) -> int:
    return int(item[0])


def _path(axes: Axes, points: Sequence[Mapping[str, Any]], color: str) -> None:
    costs, successes = [p["cost"] for p in points], [p["success"] for p in points]
    axes.plot(costs, successes, color=color, linewidth=1.1, alpha=0.6, zorder=2.5)
    axes.scatter(costs[1:], successes[1:], color=color, s=9, zorder=3)


def _label(axes: Axes, point: Mapping[str, Any], color: str) -> None:
    axes.annotate(
        point["effort"] + (" (dominated)" if point.get("dominated") else ""),
        (point["cost"], point["success"]),
        xytext=(-8, 7),
        textcoords="offset points",
        ha="right",
        color=MUTED if point.get("dominated") else color,
        fontsize=10,
        fontweight="bold",
        zorder=5,
    )


def _legend(axes: Axes, *, after: bool) -> None:
    from matplotlib.lines import Line2D

    entries = [("before", {"linestyle": "--", "marker": "o", "markerfacecolor": PAPER})]
    if after:
        entries.append(("after", {"linestyle": "-", "marker": "o", "markerfacecolor": MUTED}))
    entries.append(("equal reward", {"linestyle": ":", "marker": ""}))
    handles = [Line2D([], [], color=MUTED, label=text, **style) for text, style in entries]  # type: ignore[arg-type]
    legend = axes.legend(handles=handles, loc="lower right", frameon=False, fontsize=9)
    for text in legend.get_texts():
        text.set_color(MUTED)


def _moving_average(values: Any, share: float = 0.1) -> Any:
    """Centred mean over a tenth of the series; the window shrinks at the ends."""
    half = max(1, int(len(values) * share / 2)) if len(values) > 4 else 0
    totals = np.concatenate([[0.0], np.cumsum(values)])
    index = np.arange(len(values))
    start, stop = np.maximum(index - half, 0), np.minimum(index + half + 1, len(values))
    return (totals[stop] - totals[start]) / (stop - start)
