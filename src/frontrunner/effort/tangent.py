"""Slope of a concave, increasing curve through a few (cost, success) points.

The curve is s(x) with x = log cost: equal *ratios* of cost buy less and less. Everything is
vectorised over bootstrap draws: B draws, K levels.
"""

from __future__ import annotations

import numpy as np

from frontrunner.effort.bootstrap import Floats

END_LIMIT = 4.0
"""Largest factor between the slope at an end and the nearest secant."""

_MIN_STEP = 1e-3
"""Smallest step in log cost; keeps bootstrap draws whose costs touch finite."""


def concave_secants(x: Floats, s: Floats) -> Floats:
    """Secants between neighbouring points after the pool-adjacent-violators fit, `[B, K - 1]`.

    `x`, `s`: `[B, K]`, x rising. The result falls along each row and is never negative: they are
    the secants of the least concave majorant, cut at its maximum. In the min-max form of isotonic
    regression, g_i = min over a <= i of max over b >= i of the mean slope from a to b + 1.
    """
    num_secants = x.shape[1] - 1
    out = np.empty((x.shape[0], num_secants))
    for i in range(num_secants):
        majorants = []
        for a in range(i + 1):
            means = [
                (s[:, b + 1] - s[:, a]) / (x[:, b + 1] - x[:, a]) for b in range(i, num_secants)
            ]
            majorants.append(np.max(means, axis=0))
        out[:, i] = np.min(majorants, axis=0)
    return np.maximum(out, 0.0)


def log_slopes(x: Floats, secants: Floats) -> Floats:
    """ds/dx at every point, `[B, K]`: three-point differences, one-sided at the ends.

    Exact when s is quadratic in x and bends gently. The ends extrapolate the bend, which is mostly
    noise in small samples, so they stay within a factor `END_LIMIT` of the nearest secant. Falls
    along each row as the secants do.
    """
    steps = np.diff(x, axis=1)
    if secants.shape[1] == 1:
        return np.repeat(secants, 2, axis=1)
    left, right = steps[:, :-1], steps[:, 1:]
    inner = (secants[:, :-1] * right + secants[:, 1:] * left) / (left + right)
    bend = (secants[:, :-1] - secants[:, 1:]) / (left + right)
    first, last = secants[:, :1], secants[:, -1:]
    first = np.minimum(first + bend[:, :1] * left[:, :1], first * END_LIMIT)
    last = np.maximum(last - bend[:, -1:] * right[:, -1:], last / END_LIMIT)
    slopes: Floats = np.concatenate([first, inner, last], axis=1)
    return slopes


def tangent_slopes(cost: Floats, success: Floats) -> Floats:
    """m = dS/dC at every level, in 1/USD, `[B, K]`, for K >= 2 levels in order of rising cost.

    m = s'(log c) / c, with s concave and increasing. Rows in which costs touch or cross (possible
    in single bootstrap draws) are spread to the smallest legal step.
    """
    x = _rising_log(cost)
    slopes: Floats = log_slopes(x, concave_secants(x, success)) / cost
    return slopes


def _rising_log(cost: Floats) -> Floats:
    x = np.log(cost)
    for k in range(1, x.shape[1]):
        x[:, k] = np.maximum(x[:, k], x[:, k - 1] + _MIN_STEP)
    return np.asarray(x)


def secant_slopes(cost: Floats, success: Floats) -> Floats:
    """Cross-check that assumes no curve, `[B, K]` in 1/USD: raw secants in plain cost.

    Inside the geometric mean of the left and right secant, one-sided at the ends; NaN where a
    secant that is needed is not positive. `cost`, `success`: `[B, K]`.
    """
    steps = np.diff(cost, axis=1)
    raw = np.diff(success, axis=1) / np.where(steps > 0.0, steps, np.nan)
    logs = np.log(np.where(raw > 0.0, raw, np.nan))
    inner = (logs[:, :-1] + logs[:, 1:]) / 2.0
    slopes: Floats = np.exp(np.concatenate([logs[:, :1], inner, logs[:, -1:]], axis=1))
    return slopes


def truncation_slopes(cost: Floats, success: Floats, at: Floats) -> Floats:
    """m at costs `at` `[K]` from a budget-truncation (anytime) curve, `[B, K]`.

    The curve holds, for rising budgets, the success S(B) of rollouts that are forced to stop at B,
    and their mean cost E[min(C, B)]: `[B, P]` each, P budgets. Every budget uses the same rollouts,
    so neighbouring points share their noise and slopes are sharper than between effort levels. It
    needs answers that can be graded at any time, and its slope is that of *this* policy cut short.
    """
    x = _rising_log(cost)
    slopes = log_slopes(x, concave_secants(x, success))
    found = [np.interp(np.log(at), row, m) for row, m in zip(x, slopes, strict=True)]
    return np.asarray(found, dtype=np.float64) / at
