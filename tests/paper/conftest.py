import pytest


@pytest.fixture(scope="session")
def tried(tmp_path_factory):
    """One folder for what all experiments train, so that runs that several of them ask for are trained once."""
    return tmp_path_factory.mktemp("tried")
