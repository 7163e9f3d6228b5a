"""What of the protocol is offered beyond its core, and why the rest is not."""

EXTENSIONS = (
    "classification",
    "sequence",
    "model_repository",
    "schedule_policy",
    "model_configuration",
    "binary_tensor_data",
    "parameters",
    "statistics",
    "generate",
)
"""By Triton's names, where it has one. Of model_repository it is the index alone."""

NO_MODELS = "models are loaded and unloaded by the operator, or by the engines' own configuration"
NO_MEMORY = "clients and engines share no machine; send the tensors themselves"
NO_SETTINGS = "the engines' logs and traces are set where the engines are installed"


def not_offered(what: str, why: str) -> str:
    """The sentence for a client that asks for `what`."""
    return f"Tidegate does not offer {what}: {why}"
