"""Stops of a training, at which a test compares the step that ragent knows with the true one."""

import json
import os


def stop(place, step, steps):
    """Names the place and the true step to the test, and waits until it gives an order."""
    folder = os.environ["SCRATCH"]
    with open(f"{folder}/stop.new", "w") as file:
        json.dump({"place": place, "step": step, "steps": steps}, file)
    os.rename(f"{folder}/stop.new", f"{folder}/stop.json")
    with open(f"{folder}/orders.0") as orders:
        orders.readline()
