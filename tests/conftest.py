"""Property tests of the api room run the same examples every time and are not timed."""

from hypothesis import settings

settings.register_profile("api", deadline=None, derandomize=True)
settings.load_profile("api")
