"""A step of contrastive training that several processes take together."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import distributed

from distill.data.collate import Batch
from distill.data.source import Share
from distill.training.objectives import Contrast, InfoNCE

STEPS = ([5, 3, 0, 1, 2], [4, 0], [2], [1, 5, 4])
# Rows 0 and 3 have one anchor; the positive of 1 is the anchor of 2; 4's hard negative is 1's positive.
CODES = np.array([[0, 1, 2], [3, 4, 5], [4, 6, 7], [0, 8, 9], [10, 11, 4], [12, 13, 14]])


def inputs() -> torch.Tensor:
    """Return the inputs of all texts, shape (rows, 3, 7)."""
    return torch.randn(len(CODES), 3, 7, generator=torch.Generator().manual_seed(1))


def steps(share: Share) -> list[tuple[float, torch.Tensor]]:
    """Return the loss and the gradient of a linear map that this process has at each step."""
    contrast = Contrast(InfoNCE(0.1), CODES)
    found = []
    for rows in STEPS:
        torch.manual_seed(0)
        weight = torch.randn(7, 5, requires_grad=True)
        part, counted = share.of(len(rows))
        own = inputs()[rows[part]].transpose(0, 1).reshape(-1, 7)
        nothing = torch.zeros(len(own), 1, dtype=torch.int64)
        batch = Batch(nothing, nothing, 3, torch.tensor(rows), torch.empty(len(rows), 0), part.start, counted)
        loss = contrast.loss(own @ weight, batch, share)
        loss.backward()
        found.append((loss.item(), weight.grad))
    return found


def run_process(process: int, folder: str) -> None:
    """Take the steps as one of two processes, and save the means over both."""
    distributed.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=process, world_size=2)
    torch.set_num_threads(1)
    found = []
    for loss, gradient in steps(Share(process, 2)):
        mean = torch.cat([torch.tensor([loss]), gradient.reshape(-1)])
        distributed.all_reduce(mean)
        found.append(mean / 2)
    if process == 0:
        torch.save(torch.stack(found), Path(folder) / "means.pt")
    distributed.destroy_process_group()
