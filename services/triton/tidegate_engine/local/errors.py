"""What can go wrong with a local engine."""


class EngineError(Exception):
    """A local engine cannot be started, reached or controlled; the message says what to do."""
