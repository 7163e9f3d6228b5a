"""What is known against a candidate: pure, from what loaders report."""

from collections.abc import Sequence

from tidegate_operator import preflight
from tidegate_operator.guards import listed
from tidegate_operator.situation import Fail, LoaderSeen, Observed, VersionSeen
from tidegate_operator.spec import Rollout
from tidegate_table.document import Loads, Roll


def unfit(rollout: Rollout, loads: Loads, loaders: Sequence[LoaderSeen]) -> Fail | None:
    """What is known against a roll without loading the candidate.

    Args:
        loaders: of the engines that it would be loaded in.
    """
    version = rollout.spec.version
    told = [loader for loader in loaders if loader.revision is not None]
    for loader in told:
        if loader.config_error:
            return Fail(version, "ConfigInvalid", f"{loader.name}: {loader.config_error}")
    # Some may not have looked at this model yet.
    configs = [(loader.name, loader.config) for loader in told if loader.config]
    if why := preflight.differing(configs, loads.config):
        return Fail(version, "ConfigDiffers", why)
    for _, config in configs:
        if why := preflight.unfit(config):
            return Fail(version, "CannotBeRolled", why)
    return None


def too_large(rollout: Rollout, loaders: Sequence[LoaderSeen]) -> Fail | None:
    """Whether the candidate does not fit beside what there is.

    To be asked before it is wanted: once it is being loaded, what is free has part of it already.
    """
    free = [(each.name, each.free_memory) for each in loaders if each.free_memory is not None]
    why = preflight.too_large(rollout.spec.memory_bytes, free)
    return Fail(rollout.spec.version, "TooLarge", why) if why else None


def reported(seen: Observed, roll: Roll) -> Fail | None:
    """What a loader that acts on this phase and step says against the candidate."""
    for loader in seen.loaders:
        if loader.revision is None or loader.revision < roll.since:
            continue
        version = loader.versions.get(roll.target, VersionSeen())
        if version.failed:
            return Fail(roll.target, "CandidateFailed", f"{loader.name}: {version.error}")
    return None


def digests(roll: Roll, loads: Loads, loaders: Sequence[LoaderSeen]) -> Fail | None:
    """Whether the engines that have proven the candidate have the same files, and the wanted."""
    found: dict[str, str] = {}
    for loader in loaders:
        version = loader.versions.get(roll.target, VersionSeen())
        if loader.revision is not None and loader.revision >= roll.since and version.proven:
            found.setdefault(version.digest, loader.name)
    if len(found) > 1:
        message = f"version {roll.target} has other files on {listed([*found.values()])}"
        return Fail(roll.target, "DigestsDiffer", message)
    pinned = loads.versions[roll.target]
    if pinned and found and pinned not in found:
        message = f"version {roll.target}: expected the digest {pinned}, got {next(iter(found))}"
        return Fail(roll.target, "DigestDiffers", message)
    return None
