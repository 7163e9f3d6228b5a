"""The routing table: what it says, and how gateways, loaders and the operator follow it."""
