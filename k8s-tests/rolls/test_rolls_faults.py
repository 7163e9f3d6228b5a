"""Whoever dies in whichever phase of a roll: no request fails, and the roll ends as the spec says.

Each phase comes once, with another fault each time that the tests run; ROLL_SEED=n repeats a
choice. With E2E_FULL=1 every fault comes in every phase.
"""

import os
import random
from collections.abc import Sequence

import pytest

from rolls.faults import FAULTS
from rolls.load import MODEL, Watch
from rolls.release import Rolls, rollout
from tidegate_table.document import Phase, Roll

FULL = os.environ.get("E2E_FULL", "") not in ("", "0")
SEED = int(os.environ.get("ROLL_SEED") or random.randrange(10_000))
LONG = "10m"
SHORT = "1s"
# It takes a few seconds to load.
SLOW_VERSION = 4


def pairs() -> Sequence[tuple[Phase, str]]:
    """Those of this run, in its order."""
    chosen = random.Random(SEED)
    faults = chosen.sample([*FAULTS], len(FAULTS))
    if not FULL:
        # The operator's death is what the phases are for, so it is never the one left out.
        faults.sort(key=lambda fault: fault != "operator killed")
        faults = chosen.sample(faults[: len(Phase)], len(Phase))
        return list(zip(Phase, faults, strict=True))
    every = [(phase, fault) for phase in Phase for fault in faults]
    return chosen.sample(every, len(every))


@pytest.mark.parametrize(("phase", "fault"), pairs())
def test_a_fault_in_mid_roll_is_not_noticed(
    rolls: Rolls, watch: Watch, phase: Phase, fault: str
) -> None:
    print(f"ROLL_SEED={SEED}")
    candidate = SLOW_VERSION if phase is Phase.LOADING else 2
    with watch.unnoticed() as part:
        reached = reach(rolls, phase, candidate)
        with FAULTS[fault](rolls, watch, f"{fault} in {phase.value}"):
            if phase is Phase.LOADING:
                assert fault == "API server stopped" or rolls.roll(MODEL) == reached
        if phase is not Phase.LOADING:
            # The holds are long, so the fault has found it there.
            assert rolls.roll(MODEL) == reached
            rolls.let_go_on(MODEL)
        serves = 1 if phase is Phase.ROLLING_BACK else candidate
        rolls.await_settled(MODEL, serves)
        part.await_answers_of(serves, rolls.engines())


def reach(rolls: Rolls, phase: Phase, candidate: int) -> Roll:
    """Begin a roll that stays in a phase; where it is loading, for as long as that takes."""
    going_back = phase is Phase.ROLLING_BACK
    stays = {
        "steps": LONG if phase is Phase.STEPPING or going_back else SHORT,
        "bake": LONG if phase is Phase.BAKING else SHORT,
        "drain": LONG if phase is Phase.PROMOTED or going_back else SHORT,
    }
    rolls.apply(
        rollout(
            MODEL,
            candidate,
            steps=[(50, stays["steps"])],
            bake=stays["bake"],
            drain=stays["drain"],
        )
    )
    if going_back:
        rolls.await_phase(MODEL, Phase.STEPPING)
        rolls.change(MODEL, version=1)
    return rolls.await_phase(MODEL, phase)
