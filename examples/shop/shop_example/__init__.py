"""An order and its event, relayed to a broker, counted once by a consumer: seed 001, on todoku."""
