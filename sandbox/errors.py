"""The two errors that are nobody's bug, known on every floor.

`UserError` says what the user gave, what was expected and what to do: it is shown without a traceback.
`InfrastructureError` is a fault of the machine or a service that trying again may cure.
"""

from __future__ import annotations


class UserError(Exception):
    """Wrong input or setting. The message is for the user and complete by itself."""


class InfrastructureError(Exception):
    """A service or machine failed. A stage that ends with it is tried once more."""
