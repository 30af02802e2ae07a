"""A resolved config small enough to run in a fraction of a second, as the tests of trainings have it."""

from lab.conftest import make_config, process_settings_restored, write_config

__all__ = ["make_config", "process_settings_restored", "write_config"]
