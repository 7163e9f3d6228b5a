"""Whoever changes their mind in mid-roll gets what they want now, and no request fails."""

from rolls.load import LEAST, MODEL, Watch
from rolls.release import Rolls, rollout
from tidegate_table.document import Phase


def test_the_deleted_resource_leaves_stable_serving(rolls: Rolls, watch: Watch) -> None:
    with watch.unnoticed() as part:
        rolls.begin_half(MODEL, 2)
        rolls.delete(MODEL)
        rolls.await_settled(MODEL, 1)
        part.await_answers_of(1, rolls.engines())


def test_a_third_version_is_rolled_to_after_going_back(rolls: Rolls, watch: Watch) -> None:
    with watch.unnoticed() as part:
        rolls.begin_half(MODEL, 2)
        rolls.change(MODEL, version=3)
        rolls.await_phase(MODEL, Phase.ROLLING_BACK)
        assert rolls.await_phase(MODEL, Phase.STEPPING).target == "3"
        assert list(rolls.table().loads[MODEL].versions) == ["1", "3"]
        rolls.let_go_on(MODEL)
        rolls.await_settled(MODEL, 3)
        part.await_answers_of(3, rolls.engines())


def test_the_stable_version_again_is_the_way_back(rolls: Rolls, watch: Watch) -> None:
    with watch.unnoticed() as part:
        rolls.begin_half(MODEL, 2)
        rolls.change(MODEL, version=1)
        rolls.await_settled(MODEL, 1)
        part.await_answers_of(1, rolls.engines())


def test_a_roll_is_paused_and_goes_on(rolls: Rolls, watch: Watch) -> None:
    with watch.unnoticed() as part:
        held = rolls.begin_half(MODEL, 2)
        rolls.change(MODEL, paused=True)
        rolls.let_go_on(MODEL)
        rolls.wait(
            lambda: rolls.condition(MODEL, "Progressing").get("reason") == "Paused", "it is paused"
        )
        before = part.answered_by(2)
        # At half of the requests these take some seconds, which is longer than the hold is now.
        rolls.wait(lambda: part.answered_by(2) > before + LEAST, "both answer")
        assert rolls.roll(MODEL) == held
        rolls.change(MODEL, paused=False)
        rolls.await_settled(MODEL, 2)
        part.await_answers_of(2, rolls.engines())


def test_nothing_begins_while_it_is_paused(rolls: Rolls, watch: Watch) -> None:
    with watch.unnoticed() as part:
        rolls.apply(rollout(MODEL, 2, paused=True))
        rolls.wait(
            lambda: rolls.condition(MODEL, "Progressing").get("reason") == "Paused", "it is paused"
        )
        assert rolls.roll(MODEL) is None
        rolls.change(MODEL, paused=False)
        rolls.await_settled(MODEL, 2)
        part.await_answers_of(2, rolls.engines())
