"""The search for the best prefixes, for one sample: the text of kernels of both devices.

Of a beam's extensions only the `width` + 1 best classes of a step can be among the `width` best prefixes: each class in
front of one gives the same beam a better prefix, but for the beam's own last label, which may.  So classes are
looked through once a step, and what takes width**2 operations does not depend on how many there are.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

#: Parts of `width` + 1 numbers of a sample's scratch memory, of float64 and of int64.
FLOATS, INTS = 10, 6
NONE = -1


class Search(NamedTuple):
    """The functions of a search."""

    search: Any
    """(x, at, x_t, x_c, length, classes, blank, width, nodes, floats, ints, dtype) -> beams; those of a sample
    begin at x[at]."""
    trace: Any
    """(out, at, steps, blank, path, beams, nodes, floats, ints) -> (labels of a path, its score)."""


def make_search(function: Callable[..., Any], load: Any, both: Any, advance: Any) -> Search:
    """A search of a device, of which `load(x, i, dtype)` is an element as float64, `both(a, b)` is log(e**a + e**b)."""

    @function
    def offer(score, beam, label, scores, beams, labels, found, most):  # type: ignore[no-untyped-def]
        """How many of the `most` best are known, the first the best, once this one is among them where it belongs."""
        if score > -math.inf and (found < most or score > scores[found - 1]):
            at = found if found < most else found - 1
            found = at + 1
            while at > 0 and scores[at - 1] < score:
                scores[at] = scores[at - 1]
                beams[at] = beams[at - 1]
                labels[at] = labels[at - 1]
                at -= 1
            scores[at] = score
            beams[at] = beam
            labels[at] = label
        return found

    @function
    def child_of(node, label, before, labels, first, following, nodes):  # type: ignore[no-untyped-def]
        """The prefix that a label makes of a prefix, which is new where it is `nodes`."""
        at = first[node]
        while at != NONE and labels[at] != label:
            at = following[at]
        if at == NONE:
            at = nodes
            before[at] = node
            labels[at] = label
            first[at] = NONE
            following[at] = first[node]
            first[node] = at
        return at

    @function
    def search(x, at, x_t, x_c, length, classes, blank, width, nodes, floats, ints, dtype):  # type: ignore[no-untyped-def]
        """The beams after all steps, the best first."""
        Q, M = width + 1, nodes
        # of each prefix the one before, its last label, its first child, the next child of the one before
        before, labels, first, following = ints, advance(ints, M), advance(ints, 2 * M), advance(ints, 3 * M)
        parts = advance(ints, 4 * M)
        node, beam, label = parts, advance(parts, Q), advance(parts, 2 * Q)
        next_node, top, unused = advance(parts, 3 * Q), advance(parts, 4 * Q), advance(parts, 5 * Q)
        # logarithms of the paths of each beam: of all, of those that end in a blank, in a label
        total, in_blank, in_label = floats, advance(floats, Q), advance(floats, 2 * Q)
        y_last, stay_blank, stay_label = advance(floats, 3 * Q), advance(floats, 4 * Q), advance(floats, 5 * Q)
        scores, next_blank = advance(floats, 6 * Q), advance(floats, 7 * Q)
        next_label, y_top = advance(floats, 8 * Q), advance(floats, 9 * Q)
        before[0] = NONE
        labels[0] = NONE
        first[0] = NONE
        following[0] = NONE
        node[0] = 0
        total[0] = 0.0
        in_blank[0] = 0.0
        in_label[0] = -math.inf
        beams, made = width - width + 1, width - width + 1  # of the type of what follows
        for t in range(length):
            row = at + t * x_t
            tops = beams - beams
            for c in range(classes):
                y = load(x, row + c * x_c, dtype)
                if c != blank and (tops < Q or y > y_top[Q - 1]):
                    tops = offer(y, c, 0, y_top, top, unused, tops, Q)
            y_blank = load(x, row + blank * x_c, dtype)
            for i in range(beams):
                last = labels[node[i]]
                y = -math.inf
                if last != NONE:
                    y = load(x, row + last * x_c, dtype)
                y_last[i] = y
                stay_blank[i] = total[i] + y_blank
                stay_label[i] = in_label[i] + y
            found = beams - beams
            for j in range(beams):
                last = labels[node[j]]
                for i in range(beams):
                    if last != NONE and node[i] == before[node[j]]:
                        source = in_blank[i] if labels[node[i]] == last else total[i]
                        stay_label[j] = both(stay_label[j], source + y_last[j])
                found = offer(both(stay_blank[j], stay_label[j]), j, NONE, scores, beam, label, found, width)
            for i in range(beams):
                for k in range(tops):
                    score = total[i] + y_top[k]
                    if found == width and score <= scores[width - 1]:
                        break
                    c = top[k]
                    if c == labels[node[i]]:
                        score = in_blank[i] + y_top[k]
                    for j in range(beams):
                        if labels[node[j]] == c and before[node[j]] == node[i]:
                            score = -math.inf  # it is beam j
                    found = offer(score, i, c, scores, beam, label, found, width)
            beams = found
            for r in range(beams):
                i = beam[r]
                if label[r] == NONE:
                    next_node[r] = node[i]
                    next_blank[r] = stay_blank[i]
                    next_label[r] = stay_label[i]
                else:
                    child = child_of(node[i], label[r], before, labels, first, following, made)
                    made = max(made, child + 1)
                    next_node[r] = child
                    next_blank[r] = -math.inf
                    next_label[r] = scores[r]
            for r in range(beams):
                node[r] = next_node[r]
                in_blank[r] = next_blank[r]
                in_label[r] = next_label[r]
                total[r] = scores[r]
        return beams

    @function
    def trace(out, at, steps, blank, path, beams, nodes, floats, ints):  # type: ignore[no-untyped-def]
        """Write the labels of beam number `path` to out[at] ...; how many there are, and its score."""
        before, labels, node = ints, advance(ints, nodes), advance(ints, 4 * nodes)
        count, score, end = path - path, -math.inf, path - path
        if path < beams:
            end, score = node[path], floats[path]
        p = end
        while before[p] != NONE:
            p = before[p]
            count += 1
        for k in range(count, steps):
            out[at + k] = blank
        for k in range(count):
            out[at + count - 1 - k] = labels[end]
            end = before[end]
        return count, score

    return Search(search, trace)
