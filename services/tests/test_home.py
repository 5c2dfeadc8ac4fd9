"""Where the services keep their files."""

from mosaic_services.home import StackHome


def test_folders_are_for_their_owner_only_and_modes_are_repaired(tmp_path):
    home = StackHome.find(tmp_path / "home")
    home.create()
    folders = (home.path, home.runs, home.logs, home.scheduler_store.parent, home.telemetry_store.parent, home.sockets)
    assert {each.stat().st_mode & 0o777 for each in folders} == {0o700}
    home.runs.chmod(0o777)
    home.create()
    assert home.runs.stat().st_mode & 0o777 == 0o700
