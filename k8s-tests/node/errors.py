"""What can go wrong with the test cluster, as sentences that say what to do."""


class ClusterError(Exception):
    """The cluster cannot be made, changed or taken away; the message says why and what to do."""


class CommandFailed(ClusterError):
    """A program ended with an error; the message holds the command and what it said."""
