"""Chooses how an environment's observations are described."""

from llm_worker.sights.base import Describer, Scene
from llm_worker.sights.boards import (
    ChessDescriber,
    ConnectFourDescriber,
    GoDescriber,
    RpsDescriber,
    TicTacToeDescriber,
)
from llm_worker.sights.grids import GridDescriber
from llm_worker.sights.small import NumbersDescriber, StateDescriber, numbers_of, state_of
from llm_worker.sights.teams import ParticleDescriber

__all__ = ["describer_of"]

_BY_NAME: dict[str, type[Describer]] = {
    "tictactoe_v": TicTacToeDescriber,
    "connect_four_v": ConnectFourDescriber,
    "chess_v": ChessDescriber,
    "go_v": GoDescriber,
    "rps_v": RpsDescriber,
    "simple_": ParticleDescriber,
}
_GRID = {"image", "direction", "mission"}


def describer_of(scene: Scene) -> Describer:
    """Return the describer of a scene: by its observations, by its name, or the one for everything."""
    parts = scene.observation_space.get("spaces")
    if isinstance(parts, dict) and parts.keys() >= _GRID and len(parts["image"].get("shape", ())) == 3:  # noqa: PLR2004
        return GridDescriber(scene)
    known = next((kind for start, kind in _BY_NAME.items() if scene.name.startswith(start)), None)
    if known is not None:
        return known(scene)
    if numbers_of(scene.name) and scene.observation_space.get("type") == "Box":
        return NumbersDescriber(scene)
    if state_of(scene.name):
        return StateDescriber(scene)
    return Describer(scene)
