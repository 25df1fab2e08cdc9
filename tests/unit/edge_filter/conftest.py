"""No example of these tests has a deadline: how long one takes says more of the machine than of the code."""

from hypothesis import settings

settings.register_profile("no deadline", deadline=None)
settings.load_profile("no deadline")
