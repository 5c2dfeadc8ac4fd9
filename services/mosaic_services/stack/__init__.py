"""A stack of services on one machine: the table of services, and what starts, watches and stops them."""
