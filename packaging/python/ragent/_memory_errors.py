"""The errors of `ragent.checkpoint`. They are here so that importing them does not import torch."""


class MismatchError(ValueError):
    """The state of the script is not the one that was saved: a tensor has another shape, type or name. Nothing was changed."""


class DamagedError(ValueError):
    """The content of a checkpoint in memory makes no sense. Nothing was changed."""
