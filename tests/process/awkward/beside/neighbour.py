"""A module that stands beside its script."""

WHERE = __file__
