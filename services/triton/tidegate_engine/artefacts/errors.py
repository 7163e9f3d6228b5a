"""What can go wrong with artefacts, each with one exact sentence as its message."""


class ArtefactError(Exception):
    """An artefact cannot be built, checked or placed. The message is one sentence for a user."""


class CheckpointError(ArtefactError):
    """The PyTorch checkpoint is not one that this package reads."""
