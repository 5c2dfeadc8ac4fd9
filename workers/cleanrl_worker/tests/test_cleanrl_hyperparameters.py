"""The worker reads a script's arguments from its source: every kind of argument that CleanRL's scripts have."""

import os
import sys
from pathlib import Path

import pytest

# The reader needs only the worker kit, so this process can import it.
sys.path.insert(0, str(Path(__file__).parents[1]))

from cleanrl_worker.hyperparameters import read_arguments
from cleanrl_worker.registry import DEFAULT_ALGO_REGISTRY

TYRO = '''
import os
from dataclasses import dataclass, field
from typing import List, Literal, Optional

raise SystemExit("a script must not be run to be read")


@dataclass
class Args:
    exp_name: str = os.path.basename(__file__)[: -len(".py")]
    """the name of this
    experiment"""
    seed: int = 1
    cuda: bool = True
    """if toggled, cuda"""
    wandb_entity: str = None
    hub: str = ""

    # Algorithm specific arguments
    buffer_size: int = int(1e6)
    learning_starts: int = 25e3
    """timestep to start learning"""
    start_e: float = 1
    v_min: float = -10
    horizon: int = 60 * 60
    limit: float = float("inf")
    broken: int = 1 // 0
    target_kl: float | None = None
    alpha: Optional[float] = 0.2
    quoted: "float" = 0.5
    backend: Literal["gloo", "nccl"] = "gloo"
    level: Literal[1, 2] = 1
    device_ids: List[int] = field(default_factory=lambda: [])

    # to be filled in runtime
    batch_size: int = 0
    num_iterations: int = 0
    """the number of iterations (computed in runtime)"""


@dataclass
class Other:
    batch_size: int = 7
'''

ARGPARSE = """
import argparse
from distutils.util import strtobool

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="an agent")
    parser.add_argument("--exp-name", type=str, default=os.path.basename(__file__).rstrip(".py"), help="the name")
    parser.add_argument("--gym-id", type=str, default="CartPole-v0",
                        help='the id of the gym environment')
    parser.add_argument("-g", "--gamma", type=float, default=0.99)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--cuda", type=lambda x:bool(strtobool(x)), default=True, nargs="?", const=True, help="a GPU")
    parser.add_argument("--capture_video", type=lambda x: bool(strtobool(x)), default=False, nargs="?", const=True)
    parser.add_argument("--buffer-size", type=int, default=int(1e5))
    parser.add_argument("--init", default="xavier", const="xavier", nargs="?", choices=["xavier", "uniform"])
    parser.add_argument("--target-kl", type=float, default=None)
    parser.add_argument("--fast", action="store_true")
    parser.add_argument("--tau", dest="rate", type=float, default=0.5)
    parser.add_argument("--layers", type=int, nargs="+", default=[64, 64])
    parser.add_argument("--parsed", type=json.loads)
    parser.add_argument("-v", type=int)
    parser.add_argument("positional")
    args = parser.parse_args()
"""


def found_in(source):
    style, parameters = read_arguments(source)
    types = {each.name: (each.type, each.default) for each in parameters}
    return style, types, {each.name: each.help for each in parameters if each.help}


def test_every_kind_of_field_of_a_dataclass_is_read():
    style, found, helps = found_in(TYRO)
    assert style == "tyro"
    assert found == {
        "exp_name": ("str", None),
        "seed": ("int", 1),
        "cuda": ("bool", True),
        "wandb_entity": ("str", None),
        "hub": ("str", ""),
        "buffer_size": ("int", 1_000_000),
        "learning_starts": ("int", 25_000),
        "start_e": ("float", 1.0),
        "v_min": ("float", -10.0),
        "horizon": ("int", 3600),
        "limit": ("float", None),
        "broken": ("int", None),
        "target_kl": ("float", None),
        "alpha": ("float", 0.2),
        "quoted": ("float", 0.5),
        "backend": ("str", "gloo"),
    }
    assert helps == {
        "exp_name": "the name of this experiment",
        "cuda": "if toggled, cuda",
        "learning_starts": "timestep to start learning",
    }


def test_numbers_have_the_type_that_they_are_declared_with():
    _, found, _ = found_in(TYRO)
    assert isinstance(found["learning_starts"][1], int)
    assert isinstance(found["start_e"][1], float)


def test_every_kind_of_option_of_a_parser_is_read():
    style, found, helps = found_in(ARGPARSE)
    assert style == "argparse"
    assert found == {
        "exp_name": ("str", None),
        "gym_id": ("str", "CartPole-v0"),
        "gamma": ("float", 0.99),
        "seed": ("int", 1),
        "cuda": ("bool", True),
        "capture_video": ("bool", False),
        "buffer_size": ("int", 100_000),
        "init": ("str", "xavier"),
        "target_kl": ("float", None),
        "rate": ("float", 0.5),
    }
    assert helps == {
        "exp_name": "the name",
        "gym_id": "the id of the gym environment",
        "cuda": "a GPU",
    }


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("print('hello')\n", "neither a class Args nor a call of add_argument"),
        ("class Args(\n", "not Python: .* in line 1"),
    ],
)
def test_a_file_that_cannot_be_read_is_refused_with_the_reason(source, said):
    with pytest.raises(ValueError, match=said):
        read_arguments(source)


def test_every_script_of_a_checkout_is_read():
    checkout = os.environ.get("MOSAIC_CLEANRL_CHECKOUT")
    if not checkout:
        pytest.skip("MOSAIC_CLEANRL_CHECKOUT is not set: there is no checkout of CleanRL to read")
    for name in DEFAULT_ALGO_REGISTRY:
        source = (Path(checkout) / "cleanrl" / f"{name}.py").read_text()
        style, found, helps = found_in(source)
        assert style == ("argparse" if "add_argument" in source else "tyro"), name
        assert {"env_id", "seed", "total_timesteps", "gamma", "exp_name", "capture_video"} <= found.keys(), name
        assert "num_iterations" not in found, name
        # The worker would refuse a valid hyperparameter that the reader missed.
        declared = source.partition("class Args:")[2].partition("filled in runtime")[0].partition("\ndef ")[0]
        fields = [line.split(":")[0].strip() for line in declared.splitlines() if line[4:5].isalpha() and ":" in line]
        assert style == "argparse" or set(fields) - found.keys() <= {"device_ids"}, name
        assert helps.keys() == found.keys(), name
