"""What can go wrong between the operator and what it talks to.

ClusterFailed       the API server refuses, or does not answer
├── Conflict        what was to be written has changed since it was read
└── NotFound        there is none
"""


class ClusterFailed(Exception):
    """The API server refuses, or does not answer; the message says what was asked and why not."""


class Conflict(ClusterFailed):
    """What was to be written has been changed, or made, by someone else since it was read."""


class NotFound(ClusterFailed):
    """What was asked for is not there."""
