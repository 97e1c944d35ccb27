"""A plugin of koopsim: importing it registers a task, a model and a data set, each in its own file."""

from koopsim_pendulum import pendulum, stripes, tanh

__all__ = ["pendulum", "stripes", "tanh"]
