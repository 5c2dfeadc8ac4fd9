"""What travels: addresses, the bytes of a message, sending them."""
