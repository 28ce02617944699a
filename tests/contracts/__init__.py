"""What every engine has to keep: one abstract suite a port, subclassed for each engine."""
