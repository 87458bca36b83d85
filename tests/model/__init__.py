"""An explicit-state model of the protocol, searched exhaustively: see docs/model.md."""
