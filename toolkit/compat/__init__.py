"""Can these live together? Pure: facts, environments, host, deployment and surroundings to findings and a verdict."""
