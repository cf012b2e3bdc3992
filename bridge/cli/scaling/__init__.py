"""``python -m bridge scaling``: collectives fitted on this machine, modelled to 65,536 devices."""
