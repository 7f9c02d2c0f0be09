"""How the decisions of routers are made use of: profiles, capacities, placement, speculation."""
