"""A package, so that pytest names these modules `tests.…`: without it they would be `operator.…`,
and its making of that module would hide Python's own."""
