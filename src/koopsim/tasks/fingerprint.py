"""A fingerprint of a task's data: the same pictures, labels and class names give the same one, on every device.

    SHA-256 over kind, shape and bytes of what is trained and tested on, and over the names

A run keeps it, so that evaluating or resuming on data that was replaced is noticed.
"""

import hashlib

import torch

from koopsim.tasks.base import Task


def fingerprint_of(task: Task) -> str:
    """Of the training and test splits, and of the names of classes or pictures; or what the task says itself."""
    own = task.fingerprint()
    if own is not None:
        return own
    found = hashlib.sha256()
    for split in ("train+valid", "test"):
        for t in task.split(split):
            plain = t.detach().cpu().contiguous()
            found.update(f"{split}\0{plain.dtype}\0{tuple(plain.shape)}\0".encode())
            if plain.numel():
                found.update(plain.reshape(-1).view(torch.uint8).numpy().data)
    for names in ("classes", "names"):
        found.update(repr(tuple(getattr(task, names, ()))).encode())
    return found.hexdigest()
