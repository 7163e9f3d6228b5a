"""The repository of one model, with versions that are good, or bad in some way."""

MODEL = "m"
CONFIG = 'name: "m"'

GOOD = "good"
BAD = ("missing", "broken", "crashing", "wrong", "other config", "torn", "hanging")


class Repository:
    """What is in the repository.

    Attributes:
        kinds: how the versions are, by version; the others are good.
    """

    def __init__(self) -> None:
        self.kinds: dict[str, str] = {}

    def kind(self, version: str) -> str:
        return self.kinds.get(version, GOOD)

    def config(self, version: str) -> str:
        """The text of config.pbtxt beside that version."""
        other = self.kind(version) == "other config"
        return f"{CONFIG} max_batch_size: 8" if other else CONFIG

    def digest(self, version: str, engine: str) -> str:
        torn = self.kind(version) == "torn" and engine == "engine-1"
        return "sha256:" + f"{version}{'f' if torn else '0'}".rjust(64, "0")
