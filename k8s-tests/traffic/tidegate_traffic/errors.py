"""What can go wrong with the generator itself; what goes wrong with requests is an outcome."""


class TrafficError(Exception):
    """The load cannot be generated, or its generator not be reached."""


class PlanError(TrafficError):
    """The plan is not one; the message names the member, what was expected and what came."""


class ControlError(TrafficError):
    """A running generator refused an order, or cannot be reached."""
