"""When a stopping rule looks at results, in numbers of episodes. Light: no numerical library is imported."""

from __future__ import annotations

__all__ = ["CAP", "FIRST_LOOK"]

# The first look; each further one is after twice as many episodes, until the cap.
FIRST_LOOK = 50
CAP = 3_200
