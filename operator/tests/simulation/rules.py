"""What is said when something is that must never be, and which guards are in force."""

from dataclasses import dataclass


class Violation(AssertionError):
    """Something that must never be."""


@dataclass
class Rules:
    """Guards that are not in the plan, each of which a test takes out."""

    precondition: bool = True
    persist_first: bool = True
    by_revision: bool = True
