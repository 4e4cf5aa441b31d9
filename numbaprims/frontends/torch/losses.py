"""CTC with gradients of any order."""

from __future__ import annotations

from typing import Any

import torch

from numbaprims.frontends.torch.rules import EVERYWHERE, Rule, through, wrapped
from numbaprims.ops._ctc_pose import table_of


def _composed(
    log_probs: Any, *, targets: Any, input_lengths: Any, target_lengths: Any, blank: int, reduction: str,
    zero_infinity: bool,
) -> Any:  # fmt: skip
    """The loss by torch's own functions, in logarithms, all sequences and states at a time."""
    steps, batch, _ = log_probs.shape
    table, columns = table_of(log_probs.detach(), targets, input_lengths, target_lengths, blank)
    inputs, counts, labels = table[:batch], table[batch : 2 * batch], table[2 * batch :].reshape(batch, columns)
    states = torch.full((batch, 2 * columns + 1), blank, device=labels.device)
    states[:, 1::2] = labels
    skips = torch.zeros_like(states, dtype=torch.bool)
    skips[:, 3::2] = labels[:, 1:] != labels[:, :-1]
    none = -1e30  # of infinities the differences have no derivatives
    a = torch.full(states.shape, none, dtype=log_probs.dtype, device=states.device)
    a[:, 0] = 0.0
    for t in range(steps):
        one, two = (torch.nn.functional.pad(a[:, :-by], (by, 0), value=none) for by in (1, 2))
        terms = torch.stack([a, one, two.masked_fill(~skips, none)])
        a = torch.where((inputs > t)[:, None], terms.logsumexp(0) + log_probs[t].gather(1, states), a)
    ends = torch.stack([2 * counts, (2 * counts - 1).clamp(min=0)], 1)
    last = a.gather(1, ends)
    last = torch.stack([last[:, 0], last[:, 1].masked_fill(counts == 0, none)]).logsumexp(0)
    loss = torch.where(last > none / 2, -last, 0.0 if zero_infinity else torch.inf)
    if reduction == "mean":
        loss = loss / (counts.clamp(min=1) * batch)
    return loss if reduction == "none" else loss.sum()


ctc_loss = wrapped(
    Rule(
        "ctc_loss", "log_probs", "loss", "log_probs", through(_composed), float32=EVERYWHERE
    )
)  # fmt: skip


class CTCLoss(torch.nn.CTCLoss):
    """`torch.nn.CTCLoss` by `numbaprims.ctc_loss`."""

    def forward(self, log_probs: Any, targets: Any, input_lengths: Any, target_lengths: Any) -> Any:
        words = {"blank": self.blank, "reduction": self.reduction, "zero_infinity": self.zero_infinity}
        if log_probs.ndim == 3:
            return ctc_loss(log_probs, targets, input_lengths, target_lengths, **words)
        lengths = (torch.as_tensor(each).reshape(1) for each in (input_lengths, target_lengths))
        y = ctc_loss(log_probs[:, None], targets, *lengths, **words)
        return y[0] if y.ndim else y
