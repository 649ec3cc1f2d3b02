"""Cold-start measurements: a deployment is booted again and again, and what users of it would feel is reported."""
