"""A policy that answers as those of the original MOSAIC do: one agent, one decision at a time, no kit."""

import json
import sys


def say(**answer):
    print(json.dumps(answer), flush=True)


say(type="init", name="original")
say(type="ready")
asked = 0
for line in sys.stdin:
    request = json.loads(line)
    command = request.get("cmd")
    if command == "stop":
        break
    if command == "init_agent":
        asked = 0
        say(type="agent_initialized", player_id=request["agent"], success=True)
    elif command == "select_action":
        asked += 1
        if asked == 3:  # the action beside it must not be played
            say(type="action_selected", action=1, success=False, error="the quota is used up")
        else:
            say(type="action_selected", action=0, action_str="left", reasoning=f"move {asked}", success=True)
    else:
        say(type="error", message=f"unknown command {command}")
