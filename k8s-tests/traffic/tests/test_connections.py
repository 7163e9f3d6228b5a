from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate_traffic.connections import Connections, Lease
from tidegate_traffic.outcomes import Answer, Outcome


class Recording:
    """A sender that only tells whether it was closed."""

    def __init__(self) -> None:
        self.closed = False

    async def send(self, number: int, request_id: str) -> Answer:
        return Answer(Outcome.OK)

    async def close(self) -> None:
        assert not self.closed
        self.closed = True


@settings(deadline=None)
@given(
    count=st.integers(min_value=1, max_value=4),
    requests_each=st.integers(min_value=0, max_value=5),
    orders=st.lists(st.booleans(), max_size=60),
)
async def test_no_connection_serves_more_than_it_should_or_closes_under_a_request(
    count: int, requests_each: int, orders: list[bool]
) -> None:
    made: list[Recording] = []

    def make() -> Recording:
        made.append(Recording())
        return made[-1]

    connections = Connections(make, count, requests_each)
    leases: list[Lease] = []
    served: dict[int, int] = {}
    for take in orders:
        if take or not leases:
            leases.append(connections.take())
            sender = leases[-1].sender
            assert isinstance(sender, Recording)
            assert not sender.closed
            served[id(sender)] = served.get(id(sender), 0) + 1
        else:
            await connections.give_back(leases.pop(0))
        assert not any(isinstance(x.sender, Recording) and x.sender.closed for x in leases)
    for lease in leases:
        await connections.give_back(lease)
    await connections.close()
    assert all(sender.closed for sender in made)
    if requests_each:
        assert max(served.values(), default=0) <= requests_each
    else:
        assert len(made) <= count


async def test_connections_are_used_in_turn() -> None:
    connections = Connections(Recording, 2, 0)
    first, second, third = (connections.take().sender for _ in range(3))
    assert first is third
    assert first is not second
