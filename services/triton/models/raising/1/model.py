"""Raises."""


class TritonPythonModel:
    def execute(self, requests):
        raise ValueError(f"raised on purpose, for {len(requests)} request(s)")
