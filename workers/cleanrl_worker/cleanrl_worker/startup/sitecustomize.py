"""Python imports this by itself when it starts; the folder is on the path of upstream scripts only."""

import cleanrl_worker.sitecustomize  # noqa: F401 - importing it is all there is to do
