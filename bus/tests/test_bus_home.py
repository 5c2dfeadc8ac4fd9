"""Homes, locks, epochs and addresses."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from mosaic_bus import Address, BusError, Home
from mosaic_bus.errors import HomeInUseError, UnsafeAddressError

FOREIGN_USER = 54321


def mode(path):
    return path.stat().st_mode & 0o777


def test_home_comes_from_argument_then_environment_then_default(tmp_path, monkeypatch):
    assert Home.find().path == Path("~/.mosaic").expanduser()
    monkeypatch.setenv("MOSAIC_HOME", "~/elsewhere")
    assert Home.find().path == Path("~/elsewhere").expanduser()
    assert Home.find(tmp_path).path == tmp_path


def test_folders_are_for_their_owner_only_and_modes_are_repaired(tmp_path):
    home = Home.find(tmp_path / "home")
    home.create()
    assert {mode(each) for each in (home.path, home.sockets)} == {0o700}
    home.sockets.chmod(0o777)
    home.create()
    assert mode(home.sockets) == 0o700


def test_home_too_long_for_a_socket_gets_a_short_folder(tmp_path):
    home = Home.find(tmp_path / ("long" * 30))
    home.create()
    try:
        assert home.sockets.parent == Path(f"/tmp/mosaic-{os.getuid()}")
        assert mode(home.sockets) == mode(home.sockets.parent) == 0o700
        assert Home.find(tmp_path / ("long" * 30) / "x" / "..").sockets == home.sockets
        link = tmp_path / "link"
        link.symlink_to(home.path)
        assert Home.find(link).sockets == home.sockets
    finally:
        home.sockets.rmdir()


def test_longest_socket_path_fits_every_unix():
    for length in range(60, 120):
        home = Home(Path("/" + "h" * length))
        assert len(os.fsencode(home.sockets / "out.sock")) <= 103


def test_socket_folder_of_somebody_else_is_refused(tmp_path, monkeypatch):
    home = Home.find(tmp_path)
    home.create()
    if os.getuid() == 0:
        os.chown(home.sockets, FOREIGN_USER, -1)
    else:
        # A fake: only root can change the owner of a folder.
        monkeypatch.setattr(os, "getuid", lambda: FOREIGN_USER)
    with pytest.raises(BusError, match="belongs to user"):
        home.create()


def test_socket_folder_that_is_a_link_is_refused(tmp_path):
    home = Home.find(tmp_path / "home")
    home.path.mkdir()
    (tmp_path / "mine").mkdir(mode=0o755)
    home.sockets.symlink_to(tmp_path / "mine")
    with pytest.raises(BusError, match="is a link"):
        home.create()
    assert mode(tmp_path / "mine") == 0o755


def test_lock_is_held_by_one_process_and_freed_by_its_death(tmp_path):
    home = Home.find(tmp_path)
    code = (
        "import sys; from mosaic_bus import Home; held = Home.find(sys.argv[1]).lock('x'); print(flush=True); input()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout.readline() == "\n"
        with pytest.raises(HomeInUseError, match=str(holder.pid)):
            home.lock("x")
        home.lock("y").close()
        holder.kill()
        holder.wait()
        home.lock("x").close()


def test_concurrent_processes_and_threads_get_distinct_epochs(tmp_path):
    code = (
        "import sys; from mosaic_bus import Home; print(*(Home.find(sys.argv[1]).next_epoch('x') for _ in range(50)))"
    )
    children = [
        subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    with ThreadPoolExecutor(4) as pool:
        mine = list(pool.map(lambda _: Home.find(tmp_path).next_epoch("x"), range(50)))
    theirs = [int(number) for child in children for number in child.communicate()[0].split()]
    assert sorted(mine + theirs) == list(range(1, 201))
    assert Home.find(tmp_path).next_epoch("y") == 1


@pytest.mark.parametrize("spoilt", ["", "garbage and more of it", "-5", "\x00\x00"])
def test_spoilt_epoch_does_not_keep_a_service_from_starting(tmp_path, spoilt):
    home = Home.find(tmp_path)
    (tmp_path / "epochs").mkdir()
    (tmp_path / "epochs" / "x").write_text(spoilt)
    assert [home.next_epoch("x"), home.next_epoch("x")] == [1, 2]


@pytest.mark.parametrize(
    ("text", "ingress", "egress"),
    [
        ("tcp://127.0.0.1:5550", "tcp://127.0.0.1:5550", "tcp://127.0.0.1:5551"),
        ("tcp://[::1]:5550", "tcp://[::1]:5550", "tcp://[::1]:5551"),
        ("tcp://localhost:65534", "tcp://localhost:65534", "tcp://localhost:65535"),
        ("ipc:///a/b", "ipc:///a/b/in.sock", "ipc:///a/b/out.sock"),
        ("ipc:///a/b/", "ipc:///a/b/in.sock", "ipc:///a/b/out.sock"),
        ("ipc:///a/exp#1?x", "ipc:///a/exp#1?x/in.sock", "ipc:///a/exp#1?x/out.sock"),
    ],
)
def test_addresses(text, ingress, egress):
    assert Address.parse(text) == Address(ingress, egress)
    assert str(Address.parse(text)) == text.rstrip("/"), "what is shown can be given again"


@pytest.mark.parametrize(
    "text",
    [
        *("", "tcp", "tcp://", "tcp://127.0.0.1", "tcp://127.0.0.1:", "tcp://127.0.0.1:0", "tcp://127.0.0.1:65535"),
        *("tcp://127.0.0.1:65536", "tcp://127.0.0.1:-1", "tcp://127.0.0.1:port", "tcp://:5550", "tcp://[::1:5550"),
        *("ipc://", "ipc:///", "ipc://relative", "ipc://relative/folder", "http://127.0.0.1:80", "127.0.0.1:5550"),
    ],
)
def test_bad_address_is_refused_with_its_text(text):
    with pytest.raises(BusError, match="bus address"):
        Address.parse(text)


@pytest.mark.parametrize(
    "host",
    ["0.0.0.0", "[::]", "*", "192.168.1.2", "example.org", "lo", "eth0", "127.0.0.1.example.org", "[::ffff:10.0.0.1]"],
)
def test_address_that_others_can_reach_is_refused(host):
    with pytest.raises(UnsafeAddressError, match="no keys"):
        Address.parse(f"tcp://{host}:5550").require_private()


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "localhost", "[::1]"])
def test_loopback_is_allowed(host):
    address = Address.parse(f"tcp://{host}:5550")
    address.require_private()
    assert address.ingress == f"tcp://{host}:5550"


def test_socket_folder_open_to_other_users_is_refused(tmp_path):
    tmp_path.chmod(0o755)
    with pytest.raises(UnsafeAddressError, match="other users"):
        Address.parse(f"ipc://{tmp_path}").require_private()


def test_address_of_a_home(tmp_path, monkeypatch):
    home = Home.find(tmp_path)
    assert home.address().ingress == f"ipc://{home.sockets}/in.sock"
    (tmp_path / "bus-address").write_text("\n")
    assert home.address().ingress == f"ipc://{home.sockets}/in.sock"
    (tmp_path / "bus-address").write_text("tcp://127.0.0.1:7000\n")
    assert home.address().egress == "tcp://127.0.0.1:7001"
    monkeypatch.setenv("MOSAIC_BUS", "tcp://127.0.0.1:8000")
    assert home.address().ingress == "tcp://127.0.0.1:8000"
    assert home.address("tcp://127.0.0.1:9000").ingress == "tcp://127.0.0.1:9000"
