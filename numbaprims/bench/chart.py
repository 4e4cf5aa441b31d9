"""The chart of the README: what numbaprims gains over its rivals, a bar for each CPU and thread count, as SVG."""

from __future__ import annotations

import math
from html import escape

from numbaprims.bench.headlines import HEADLINES, Reached

# Colours that stay apart for colour-blind readers (Okabe and Ito).
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
_LEFT, _RIGHT, _BAR, _GAP, _TOP = 300, 760, 10, 10, 30


def svg(columns: dict[str, dict[str, Reached]]) -> str:
    """Speed-ups on a scale of powers of two, to the right of 1 where numbaprims is faster."""
    values = [reached.value for column in columns.values() for reached in column.values()]
    low = min(-1, math.floor(math.log2(min(values, default=1.0))))
    high = max(2, math.ceil(math.log2(max(values, default=1.0))))

    def x(value: float) -> float:
        return _LEFT + (math.log2(value) - low) / (high - low) * (_RIGHT - _LEFT)

    row = _BAR * len(columns) + _GAP
    bottom = _TOP + row * len(HEADLINES)
    height = bottom + 26 + 16 * len(columns)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_RIGHT + 40}" height="{height}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{_RIGHT + 40}" height="{height}" fill="white"/>',
    ]
    for power in range(low, high + 1):
        at, shade = x(2.0**power), "#333" if power == 0 else "#ccc"
        parts.append(f'<path d="M{at:.0f} {_TOP - 6}V{bottom}" stroke="{shade}"/>')
        parts.append(f'<text x="{at:.0f}" y="{_TOP - 12}" text-anchor="middle">{2.0**power:g} x</text>')
    for index, title in enumerate(HEADLINES):
        top = _TOP + index * row
        middle = top + _BAR * len(columns) / 2 + 4
        parts.append(f'<text x="{_LEFT - 8}" y="{middle:.0f}" text-anchor="end">{escape(title)}</text>')
        for number, column in enumerate(columns.values()):
            if title in column:
                value, colour = column[title].value, _COLOURS[number % len(_COLOURS)]
                begin, end = sorted((x(1.0), x(value)))
                y = top + number * _BAR
                parts.append(
                    f'<rect x="{begin:.1f}" y="{y}" width="{end - begin:.1f}" height="{_BAR - 1}" fill="{colour}"/>'
                    f'<text x="{end + 4:.1f}" y="{y + _BAR - 1}" font-size="9">{value:.2f}</text>'
                )
    for number, name in enumerate(columns):
        y = bottom + 16 + 16 * number
        parts.append(f'<rect x="{_LEFT}" y="{y}" width="10" height="10" fill="{_COLOURS[number % len(_COLOURS)]}"/>')
        parts.append(f'<text x="{_LEFT + 16}" y="{y + 9}">{escape(name)}</text>')
    return "\n".join([*parts, "</svg>", ""])
